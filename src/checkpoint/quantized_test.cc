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
