// Matrices that safetensors folders spread over several tensors, against their makers' own
// unpacking (tests/compat/checkpoint/make_block_goldens.py), and what does not fit together.
#include "checkpoint/quantized_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/int4_checkpoint.h"
#include "checkpoint/small_floats.h"
#include "checkpoint/temp_folder.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kGoldens = "tests/golden/checkpoint";

std::vector<float> values_of(const CheckpointTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  copy_as_float(tensor, 0, values);
  return values;
}

Checkpoint open_as_model(const TempFolder& folder, const std::string& golden,
                         const std::string& config) {
  folder.write("model.safetensors", read_text_file(kGoldens / golden).value());
  folder.write("config.json", config);
  auto checkpoint = Checkpoint::open(folder.path());
  EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  return *std::move(checkpoint);
}

void expect_unpacked(const std::string& name, const std::string& config) {
  TempFolder folder;
  const Checkpoint checkpoint = open_as_model(folder, name + ".safetensors", config);
  ASSERT_EQ(checkpoint.tensors().size(), 1u) << "the parts are gone";
  const int64_t shape[] = {16, 32};
  const CheckpointTensor* weight = checkpoint.require("x.weight", shape).value();
  const SafetensorsFile goldens =
      SafetensorsFile::open(kGoldens / (name + "_values.safetensors")).value();
  EXPECT_EQ(values_of(*weight), values_of(goldens.tensors()[0])) << name;
}

TEST(Quantized, GptqAndAwqUnpackAsTheirMakersDo) {
  expect_unpacked("gptq4", R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})");
  expect_unpacked("gptq8", R"({"quantization_config": {"quant_method": "gptq", "bits": 8}})");
  expect_unpacked("awq", R"({"quantization_config": {"quant_method": "awq", "bits": 4}})");
  expect_unpacked("awq", "{}");  // known by its shapes
  expect_unpacked("gptq4", "{}");
}

// Code of an element, by the order that StoredInt4 states.
int code_of(const StoredInt4& stored, int64_t row, int64_t column) {
  const auto nibble = [&](int64_t line, int64_t index) {
    const auto byte = std::to_integer<int>(stored.data[line * stored.line_bytes + index / 2]);
    return byte >> index % 2 * 4 & 15;
  };
  constexpr int kSlots[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  switch (stored.order) {
    case StoredInt4::Order::kRows:
      return nibble(row, column);
    case StoredInt4::Order::kColumns:
      return nibble(column / 8, row * 8 + column % 8);
    case StoredInt4::Order::kAwq:
      return nibble(column, row / 8 * 8 + kSlots[row % 8]);
    case StoredInt4::Order::kQ4_0:
      return nibble(row, column / 32 * 36 + 4 + column % 16 * 2 + column % 32 / 16);
  }
  return -1;
}

// What a GPU takes as it is, is what the reader decodes.
TEST(Quantized, CodesOfFourBitsAreTheElements) {
  for (const test::Int4Method& method : test::kInt4Methods) {
    for (const int64_t group : {32, 64, 128}) {
      SCOPED_TRACE(fmt::format("{}, groups of {}", method.name, group));
      Rng rng(3);
      test::SafetensorsBuilder file;
      test::add_int4(method, "x", 16, 256, group, rng, file);
      TempFolder folder;
      folder.write("model.safetensors", file.bytes());
      folder.write("config.json", fmt::format(R"({{"quantization_config": {}}})", method.config));
      const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
      ASSERT_EQ(checkpoint.tensors().size(), 1u);
      const CheckpointTensor& tensor = checkpoint.tensors()[0];
      const auto stored = tensor.reader->int4();
      ASSERT_TRUE(stored.has_value());
      EXPECT_EQ(stored->group, group == 128 ? 128 : 32);
      EXPECT_EQ(stored->zeros, method.zeros);
      const std::vector<float> values = values_of(tensor);
      for (int64_t row = 0; row < 16; ++row) {
        for (int64_t column = 0; column < 256; ++column) {
          const int code = code_of(*stored, row, column);
          const float scale = tensor.reader->int4_scale(row, column);
          ASSERT_EQ(scale * static_cast<float>(code - tensor.reader->int4_zero(row, column)),
                    values[static_cast<size_t>(row * 256 + column)])
              << row << " " << column;
        }
      }
    }
  }
}

// Of inputs that name their groups, a GPU takes those of a group behind each other.
TEST(Quantized, InputsThatNameTheirGroupsAreOrderedByThem) {
  for (const test::Int4Method& method : test::kActOrderMethods) {
    for (const int64_t group : {32, 64, 128}) {
      SCOPED_TRACE(fmt::format("{}, groups of {}", method.name, group));
      Rng rng(3);
      test::SafetensorsBuilder file;
      test::add_int4(method, "x", 16, 256, group, rng, file);
      TempFolder folder;
      folder.write("model.safetensors", file.bytes());
      folder.write("config.json", fmt::format(R"({{"quantization_config": {}}})", method.config));
      const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
      ASSERT_EQ(checkpoint.tensors().size(), 1u);
      const CheckpointTensor& tensor = checkpoint.tensors()[0];
      const auto stored = tensor.reader->int4();
      ASSERT_TRUE(stored && stored->columns);
      EXPECT_EQ(stored->group, group == 128 ? 128 : 32);
      const std::vector<int32_t>& columns = *stored->columns;
      const std::vector<int32_t> groups = test::act_order(256, group);
      const std::vector<float> values = values_of(tensor);
      for (size_t input = 0; input < 256; ++input) {
        const int64_t column = columns[input];
        ASSERT_EQ(groups[static_cast<size_t>(column)], static_cast<int64_t>(input) / group);
        for (int64_t row = 0; row < 16; ++row) {
          const int code = code_of(*stored, row, column);
          ASSERT_EQ(tensor.reader->int4_scale(row, column) *
                        static_cast<float>(code - tensor.reader->int4_zero(row, column)),
                    values[static_cast<size_t>(row * 256 + column)]);
        }
      }
    }
  }
}

TEST(Quantized, Fp8NumbersAreTorchs) {
  const SafetensorsFile goldens = SafetensorsFile::open(kGoldens / "fp8.safetensors").value();
  std::string every;
  for (int i = 0; i < 256; ++i) every += static_cast<char>(i);
  for (const auto& [type, name] :
       {std::pair{"F8_E4M3", "e4m3fn"}, {"F8_E5M2", "e5m2"}, {"F8_E8M0", "e8m0fnu"}}) {
    CheckpointTensor tensor;
    tensor.dtype_name = type;
    tensor.shape = {256};
    tensor.bytes = std::as_bytes(std::span(every));
    tensor.reader = make_plain_reader(tensor);
    ASSERT_NE(tensor.reader, nullptr);
    const std::vector<float> ours = values_of(tensor);
    const auto golden = std::find_if(goldens.tensors().begin(), goldens.tensors().end(),
                                     [&, n = name](const auto& t) { return t.name == n; });
    const std::vector<float> expected = values_of(*golden);
    for (size_t i = 0; i < 256; ++i) {
      if (std::isnan(expected[i])) {
        EXPECT_TRUE(std::isnan(ours[i])) << type << " " << i;
      } else {
        EXPECT_EQ(ours[i], expected[i]) << type << " " << i;
      }
    }
  }
}

// A folder with an FP8 matrix of ones [rows, columns] and scales.
std::string fp8_file(int64_t rows, int64_t columns, const std::string& scale_name,
                     const std::vector<int64_t>& scale_shape, const std::vector<float>& scales) {
  const auto weight_bytes = static_cast<size_t>(rows * columns);
  const size_t end = weight_bytes + scales.size() * sizeof(float);
  std::string data(weight_bytes, '\x38');  // 1.0
  data.append(reinterpret_cast<const char*>(scales.data()), scales.size() * sizeof(float));
  return safetensors_bytes(
      fmt::format(
          R"({{"x.weight": {{"dtype": "F8_E4M3", "shape": [{}, {}], "data_offsets": [0, {}]}},)"
          R"("{}": {{"dtype": "F32", "shape": {}, "data_offsets": [{}, {}]}}}})",
          rows, columns, weight_bytes, scale_name, shape_string(scale_shape), weight_bytes, end),
      data);
}

TEST(Quantized, Fp8ScalesHoldForBlocksRowsOrAll) {
  TempFolder folder;
  folder.write("config.json", R"({"quantization_config":
      {"quant_method": "fp8", "weight_block_size": [2, 3]}})");
  const auto first_row_and_column = [&](const std::string& bytes) {
    folder.write("model.safetensors", bytes);
    const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
    EXPECT_EQ(checkpoint.tensors().size(), 1u);
    const std::vector<float> all = values_of(checkpoint.tensors()[0]);
    return std::vector<float>{all[0], all[2], all[3], all[4], all[4 * 2], all[4 * 2 + 3]};
  };
  EXPECT_THAT(first_row_and_column(fp8_file(3, 4, "x.weight_scale_inv", {2, 2}, {1, 2, 3, 4})),
              ElementsAre(1, 1, 2, 1, 3, 4));
  EXPECT_THAT(first_row_and_column(fp8_file(3, 4, "x.weight_scale", {3, 1}, {5, 6, 7})),
              ElementsAre(5, 5, 5, 6, 7, 7));
  EXPECT_THAT(first_row_and_column(fp8_file(3, 4, "x.weight_scale", {}, {9})),
              ElementsAre(9, 9, 9, 9, 9, 9));
  folder.write("model.safetensors", fp8_file(3, 4, "x.weight_scale_inv", {1, 2}, {1, 2}));
  EXPECT_THAT(Checkpoint::open(folder.path()).error().message(),
              HasSubstr("'x.weight_scale_inv' (F32 [1, 2]) does not hold blocks"));
}

// A folder's tensors from (name, type, shape, bytes).
struct Part {
  std::string name, type;
  std::vector<int64_t> shape;
  std::string bytes;
};
template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
std::string file_of(const std::vector<Part>& parts) {
  std::string header = "{", data;
  for (const Part& part : parts) {
    header += fmt::format(R"({}"{}": {{"dtype": "{}", "shape": {}, "data_offsets": [{}, {}]}})",
                          header.size() > 1 ? ", " : "", part.name, part.type,
                          shape_string(part.shape), data.size(), data.size() + part.bytes.size());
    data += part.bytes;
  }
  return safetensors_bytes(header + "}", data);
}
std::string compressed_config(const std::string& format, int bits) {
  return fmt::format(R"({{"quantization_config": {{"quant_method": "compressed-tensors",
      "format": "{}", "config_groups": {{"group_0": {{"weights": {{"num_bits": {}}}}}}}}}}})",
                     format, bits);
}

TEST(Quantized, CompressedIntegersHaveAScaleForEachRow) {
  TempFolder folder;
  folder.write("config.json", compressed_config("int-quantized", 8));
  folder.write("model.safetensors",
               file_of({{"x.weight", "I8", {2, 3}, bytes_of<int8_t>({1, -128, 3, 4, 127, -6})},
                        {"x.weight_scale", "F32", {2, 1}, bytes_of<float>({0.5f, 2})},
                        {"x.input_scale", "F32", {1}, bytes_of<float>({7})}}));
  const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
  ASSERT_EQ(checkpoint.tensors().size(), 1u) << "activations' scales are no tensors of the model";
  EXPECT_THAT(values_of(checkpoint.tensors()[0]), ElementsAre(0.5, -64, 1.5, 8, 254, -12));
}

// Rows of 10 in words of eight, groups of 5 (or as g_idx has them).
TEST(Quantized, CompressedWordsHoldARowsNeighbours) {
  const auto number = [](int row, int column) { return (row * 7 + column * 3) % 16; };
  std::vector<uint32_t> words(2 * 2), zeros(2, 0);
  for (int row = 0; row < 2; ++row) {
    for (int column = 0; column < 10; ++column) {
      words[static_cast<size_t>(row * 2 + column / 8)] |= static_cast<uint32_t>(number(row, column))
                                                          << (column % 8 * 4);
    }
  }
  const auto zero_of = [](int row, int group) { return 3 + row * 2 + group; };
  for (int row = 0; row < 2; ++row) {
    for (int group = 0; group < 2; ++group) {
      zeros[static_cast<size_t>(group)] |= static_cast<uint32_t>(zero_of(row, group)) << (row * 4);
    }
  }
  const std::vector<float> scales{1, 2, 3, 4};  // [row][group]
  const std::vector<int32_t> order{1, 1, 0, 0, 1, 0, 1, 0, 1, 0};
  for (const bool has_zeros : {false, true}) {
    for (const bool has_order : {false, true}) {
      TempFolder folder;
      folder.write("config.json", compressed_config("pack-quantized", 4));
      std::vector<Part> parts{{"x.weight_packed", "I32", {2, 2}, bytes_of(words)},
                              {"x.weight_scale", "F32", {2, 2}, bytes_of(scales)},
                              {"x.weight_shape", "I64", {2}, bytes_of<int64_t>({2, 10})}};
      if (has_zeros) parts.push_back({"x.weight_zero_point", "I32", {1, 2}, bytes_of(zeros)});
      if (has_order) parts.push_back({"x.weight_g_idx", "I32", {10}, bytes_of(order)});
      folder.write("model.safetensors", file_of(parts));
      const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
      ASSERT_EQ(checkpoint.tensors().size(), 1u);
      EXPECT_EQ(checkpoint.tensors()[0].name, "x.weight");
      const std::vector<float> got = values_of(checkpoint.tensors()[0]);
      for (int row = 0; row < 2; ++row) {
        for (int column = 0; column < 10; ++column) {
          const int group = has_order ? order[static_cast<size_t>(column)] : column / 5;
          const int zero = has_zeros ? zero_of(row, group) : 8;
          EXPECT_EQ(got[static_cast<size_t>(row * 10 + column)],
                    scales[static_cast<size_t>(row * 2 + group)] *
                        static_cast<float>(number(row, column) - zero))
              << row << ", " << column;
        }
      }
    }
  }
}

// NVFP4 as ModelOpt and as compressed-tensors have it, and MXFP4 of the latter.
TEST(Quantized, FloatsOfFourBitsHaveScalesOfBlocks) {
  constexpr float kSizes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  constexpr int kRows = 2, kColumns = 64;
  std::string codes, halves, powers;
  for (int i = 0; i < kRows * kColumns / 2; ++i) codes += static_cast<char>(i * 37 + 11);
  for (int i = 0; i < kRows * kColumns / 16; ++i) halves += static_cast<char>(0x30 + i);  // e4m3
  for (int i = 0; i < kRows * kColumns / 32; ++i) powers += static_cast<char>(120 + i);
  const auto scale16 = [&](int block) { return (8.0f + static_cast<float>(block)) / 16; };
  const auto check = [&](const std::string& config, const std::vector<Part>& parts, auto scale) {
    TempFolder folder;
    folder.write("config.json", config);
    folder.write("model.safetensors", file_of(parts));
    const auto checkpoint = Checkpoint::open(folder.path());
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    ASSERT_EQ(checkpoint->tensors().size(), 1u);
    EXPECT_EQ(checkpoint->tensors()[0].name, "x.weight");
    const std::vector<float> got = values_of(checkpoint->tensors()[0]);
    ASSERT_EQ(got.size(), size_t{kRows * kColumns});
    for (int i = 0; i < kRows * kColumns; ++i) {
      const int code = static_cast<uint8_t>(codes[static_cast<size_t>(i / 2)]) >> (i % 2 * 4) & 15;
      const float size = kSizes[code & 7] * scale(i);
      ASSERT_EQ(got[static_cast<size_t>(i)], code < 8 ? size : -size) << i;
    }
  };
  const std::vector<int64_t> words{kRows, kColumns / 2};
  check(R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})",
        {{"x.weight", "U8", words, codes},
         {"x.weight_scale", "F8_E4M3", {kRows, kColumns / 16}, halves},
         {"x.weight_scale_2", "F32", {}, bytes_of<float>({0.25f})},
         {"x.input_scale", "F32", {}, bytes_of<float>({3})}},
        [&](int i) { return scale16(i / 16) * 0.25f; });
  check(compressed_config("nvfp4-pack-quantized", 4),
        {{"x.weight_packed", "U8", words, codes},
         {"x.weight_scale", "F8_E4M3", {kRows, kColumns / 16}, halves},
         {"x.weight_global_scale", "F32", {1}, bytes_of<float>({4})},
         {"x.input_global_scale", "F32", {1}, bytes_of<float>({3})}},
        [&](int i) { return scale16(i / 16) / 4; });
  check(compressed_config("mxfp4-pack-quantized", 4),
        {{"x.weight_packed", "U8", words, codes},
         {"x.weight_scale", "U8", {kRows, kColumns / 32}, powers}},
        [&](int i) { return std::ldexp(1.0f, i / 32 - 7); });
}

// What a device takes as it is: the words, the scales of 16 and that of all.
TEST(Quantized, Nvfp4HasCodesForDevices) {
  for (const test::Int4Method& method : test::kNvfp4Methods) {
    SCOPED_TRACE(method.name);
    TempFolder folder;
    folder.write("config.json", fmt::format(R"({{"quantization_config": {}}})", method.config));
    Rng rng(3);
    test::SafetensorsBuilder file;
    test::add_nvfp4(method, "x", 4, 64, rng, file);
    folder.write("model.safetensors", file.bytes());
    const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
    ASSERT_EQ(checkpoint.tensors().size(), 1u);
    const auto stored = checkpoint.tensors()[0].reader->int4();
    ASSERT_TRUE(stored);
    EXPECT_EQ(stored->group, 16);
    EXPECT_EQ(stored->line_bytes, 32);
    EXPECT_EQ(stored->scale_of_all, method.name == "modelopt" ? 0x1.8p-9f : 0x1p-9f);
    const std::vector<float> values = values_of(checkpoint.tensors()[0]);
    constexpr float kSizes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int64_t i = 0; i < 4 * 64; ++i) {
      const int code = static_cast<int>(stored->data[i / 2]) >> (i % 2 * 4) & 15;
      const float scale = e4m3(static_cast<uint8_t>(stored->e4m3_scales[i / 16]));
      const float size = kSizes[code & 7] * scale * stored->scale_of_all;
      ASSERT_EQ(values[static_cast<size_t>(i)], code < 8 ? size : -size) << i;
    }
  }
}

// Groups of unequal sizes, of which a device has none.
TEST(Quantized, GroupsOfUnequalSizesAreNumbersAlone) {
  std::vector<int32_t> groups(64, 0);
  std::fill(groups.begin(), groups.begin() + 16, 1);
  TempFolder folder;
  folder.write("config.json", R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})");
  folder.write("model.safetensors",
               file_of({{"x.qweight", "I32", {8, 8}, bytes_of(std::vector<uint32_t>(64))},
                        {"x.qzeros", "I32", {2, 1}, bytes_of(std::vector<uint32_t>(2))},
                        {"x.scales", "F32", {2, 8}, bytes_of(std::vector<float>(16, 1.0f))},
                        {"x.g_idx", "I32", {64}, bytes_of(groups)}}));
  const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
  ASSERT_EQ(checkpoint.tensors().size(), 1u);
  EXPECT_FALSE(checkpoint.tensors()[0].reader->int4().has_value());
}

TEST(Quantized, CompressedFormatsThatAreNotReadAreNamed) {
  TempFolder folder;
  folder.write("model.safetensors", file_of({{"x.weight", "F32", {1}, bytes_of<float>({1})}}));
  const auto message = [&](const std::string& config) {
    folder.write("config.json", config);
    return Checkpoint::open(folder.path()).error().message();
  };
  EXPECT_THAT(message(compressed_config("marlin-24", 4)),
              HasSubstr("'quantization_config.format' is marlin-24"));
  EXPECT_THAT(message(compressed_config("pack-quantized", 3)),
              HasSubstr("num_bits' is 3; pack-quantized of 4 and 8 bits is read"));
  EXPECT_THAT(message(R"({"quantization_config": {"quant_method": "modelopt",
                          "quant_algo": "W4A8_AWQ"}})"),
              HasSubstr("quant_algo' is W4A8_AWQ; of ModelOpt FP8 and NVFP4 are read"));
  EXPECT_THAT(message(R"({"quantization_config": {"quant_method": "bitsandbytes"}})"),
              HasSubstr("'bitsandbytes' is not read; those that are"));
}

// What a device may hold as it is: codes whose rows have one scale each, or one for all.
TEST(Quantized, Fp8CodesAreKnownWhereRowsHaveOneScale) {
  TempFolder folder;
  folder.write("config.json", R"({"quantization_config":
      {"quant_method": "fp8", "weight_block_size": [2, 3]}})");
  const auto scales = [&](const std::string& bytes) -> std::vector<float> {
    folder.write("model.safetensors", bytes);
    const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
    const CheckpointTensor& tensor = checkpoint.tensors()[0];
    const auto stored = tensor.reader->e4m3();
    if (!stored) return {};
    EXPECT_EQ(stored->data, tensor.bytes.data());
    return {stored->scale(0), stored->scale(2)};
  };
  EXPECT_THAT(scales(fp8_file(3, 4, "x.weight_scale", {3, 1}, {5, 6, 7})), ElementsAre(5, 7));
  EXPECT_THAT(scales(fp8_file(3, 4, "x.weight_scale", {}, {9})), ElementsAre(9, 9));
  EXPECT_TRUE(scales(fp8_file(3, 4, "x.weight_scale_inv", {2, 2}, {1, 2, 3, 4})).empty());
}

TEST(Quantized, Fp8CodesAreKnownInBlocksOf128) {
  TempFolder folder;
  folder.write("config.json", R"({"quantization_config":
      {"quant_method": "fp8", "weight_block_size": [128, 128]}})");
  folder.write("model.safetensors",
               fp8_file(130, 260, "x.weight_scale_inv", {2, 3}, {1, 2, 3, 4, 5, 6}));
  const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
  const CheckpointTensor& tensor = checkpoint.tensors()[0];
  const auto stored = tensor.reader->e4m3();
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->data, tensor.bytes.data());
  EXPECT_EQ(stored->block_columns, 3);
  EXPECT_THAT(stored->scales, testing::ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(Quantized, WholeNumbersAndDoublesAreRead) {
  TempFolder folder;
  std::string data(32, '\0');
  const int64_t integer = -7;
  const double number = 0.1;
  std::memcpy(data.data(), &integer, 8);
  std::memcpy(data.data() + 8, &number, 8);
  data[16] = 1;
  folder.write("model.safetensors",
               safetensors_bytes(
                   R"({"a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]},
                       "b": {"dtype": "F64", "shape": [1], "data_offsets": [8, 16]},
                       "c": {"dtype": "BOOL", "shape": [16], "data_offsets": [16, 32]}})",
                   data));
  const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
  EXPECT_EQ(values_of(*checkpoint.find("a"))[0], -7.0f);
  EXPECT_EQ(values_of(*checkpoint.find("b"))[0], 0.1f);
  EXPECT_EQ(values_of(*checkpoint.find("c"))[0], 1.0f);
}

TEST(Quantized, WhatDoesNotFitIsNamed) {
  TempFolder folder;
  const auto message = [&](const std::string& config) {
    folder.write("config.json", config);
    const auto checkpoint = Checkpoint::open(folder.path());
    return checkpoint ? std::string("accepted") : checkpoint.error().message();
  };
  folder.write("model.safetensors", read_text_file(kGoldens / "gptq4.safetensors").value());
  EXPECT_EQ(message("{}"), "accepted");
  EXPECT_THAT(message(R"({"quantization_config": {"quant_method": "aqlm"}})"), HasSubstr("'aqlm'"));
  EXPECT_THAT(message(R"({"quantization_config": {"quant_method": "gptq", "bits": 3}})"),
              HasSubstr("is 3"));
  EXPECT_THAT(message(R"({"quantization_config": {"quant_method": "awq"}})"),
              HasSubstr("'x.qweight'"));
  EXPECT_THAT(message(R"({"quantization_config": {"quant_method": "gptq", "bits": 8}})"),
              HasSubstr("'x.qzeros'"));
  folder.write("model.safetensors",
               safetensors_bytes(
                   R"({"x.qweight": {"dtype": "I32", "shape": [1, 8], "data_offsets": [0, 32]}})",
                   std::string(32, '\0')));
  EXPECT_THAT(message("{}"), HasSubstr("'x.qzeros' is missing"));
}

TEST(Checkpoint, PicklesAreRefusedWithAdvice) {
  TempFolder folder;
  folder.write("pytorch_model.bin", "x");
  const Status status = Checkpoint::open(folder.path()).error();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("save_pretrained"));
}

}  // namespace
}  // namespace espalier
