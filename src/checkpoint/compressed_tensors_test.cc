// Matrices rounded to compressed-tensors' formats: what is read back is near, in the file's own
// steps, and what is not rounded stays to the bit.
#include "checkpoint/compressed_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "checkpoint/convert.h"
#include "checkpoint/int4_checkpoint.h"
#include "checkpoint/temp_folder.h"
#include "tensor/float16.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kMatrix[] = "model.layers.0.mlp.down_proj.weight";
constexpr char kOdd[] = "model.layers.0.self_attn.o_proj.weight";
constexpr char kRouter[] = "model.layers.0.mlp.gate.weight";

// A folder with a matrix that every format takes, one that few do, and a router.
class Source {
 public:
  explicit Source(uint64_t seed = 11) {
    Rng rng(seed);
    test::SafetensorsBuilder file;
    const auto add = [&](const char* name, int64_t rows, int64_t columns) {
      std::vector<uint16_t> bits;
      for (int64_t i = 0; i < rows * columns; ++i) {
        // One row of large numbers, one of zeros, one outlier a row.
        const double size = i / columns == 3 ? 40 : i / columns == 5 ? 0 : 0.05;
        const double value = size * (rng.uniform() - 0.5) * (i % columns == 17 ? 9 : 1);
        bits.push_back(to_bfloat16(static_cast<float>(value)).bits);
      }
      file.add(name, "BF16", {rows, columns}, std::as_bytes(std::span(bits)));
    };
    add(kMatrix, 256, 384), add(kOdd, 12, 100), add(kRouter, 4, 128);
    folder_.write("model.safetensors", file.bytes());
    folder_.write("config.json", "{}");
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

std::vector<float> values_of(const Checkpoint& checkpoint, const char* name) {
  const CheckpointTensor* tensor = checkpoint.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  std::vector<float> out(static_cast<size_t>(tensor->num_elements()));
  copy_as_float(*tensor, 0, out);
  return out;
}

// The checkpoint in a format, read back.
Checkpoint rounded(const Checkpoint& from, std::string_view name, const TempFolder& folder,
                   int64_t shard_bytes = 1 << 30) {
  const CompressedFormat* format = find_compressed_format(name);
  EXPECT_NE(format, nullptr);
  const CompressedPlan plan = plan_compressed(from, *format).value();
  folder.write("config.json",
               fmt::format(R"({{"quantization_config": {}}})", plan.quantization_config));
  EXPECT_TRUE(write_safetensors(folder.path(), plan.tensors, shard_bytes, nullptr).ok());
  return Checkpoint::open(folder.path()).value();
}

double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double off = 0, all = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    off += std::pow(double{got[i]} - want[i], 2);
    all += std::pow(double{want[i]}, 2);
  }
  return std::sqrt(off / all);
}

TEST(CompressedTensors, WhatIsReadBackIsNear) {
  const Source source;
  const Checkpoint checkpoint = Checkpoint::open(source.path()).value();
  const std::vector<float> before = values_of(checkpoint, kMatrix);
  for (const auto& [name, bound] : {std::pair{"FP8", 0.04},
                                    {"FP8_BLOCK", 0.04},
                                    {"INT8", 0.06},
                                    {"INT4", 0.3},
                                    {"INT4_ZP", 0.3}}) {
    SCOPED_TRACE(name);
    const TempFolder folder;
    const Checkpoint after = rounded(checkpoint, name, folder);
    ASSERT_EQ(after.tensors().size(), 3u);
    const double error = relative_error(values_of(after, kMatrix), before);
    EXPECT_LT(error, bound);
    EXPECT_GT(error, bound / 20);
    EXPECT_EQ(values_of(after, kRouter), values_of(checkpoint, kRouter)) << "to the bit";
  }
}

// Codes reach a GPU as they are, of the sizes that it takes.
TEST(CompressedTensors, CodesAreThoseThatDevicesRead) {
  const Source source;
  const Checkpoint checkpoint = Checkpoint::open(source.path()).value();
  for (const char* name : {"INT4", "INT4_ZP"}) {
    const TempFolder folder;
    const Checkpoint after = rounded(checkpoint, name, folder);
    const auto stored = after.find(kMatrix)->reader->int4();
    ASSERT_TRUE(stored);
    EXPECT_EQ(stored->group, 128);
    EXPECT_EQ(stored->zeros, std::string_view(name) == "INT4_ZP");
    EXPECT_EQ(after.find(kOdd)->reader, nullptr) << "100 inputs are no groups";
  }
  for (const char* name : {"FP8", "FP8_BLOCK"}) {
    const TempFolder folder;
    const Checkpoint after = rounded(checkpoint, name, folder);
    const auto stored = after.find(kMatrix)->reader->e4m3();
    ASSERT_TRUE(stored);
    EXPECT_EQ(stored->block_columns, std::string_view(name) == "FP8_BLOCK" ? 3 : 0);
  }
}

// Rows and groups whose numbers are all zero stay zero, and the largest of a row of e4m3 is exact
// up to its scale's rounding.
TEST(CompressedTensors, ZerosStayAndNothingOverflows) {
  const Source source;
  const Checkpoint checkpoint = Checkpoint::open(source.path()).value();
  const std::vector<float> before = values_of(checkpoint, kMatrix);
  for (const CompressedFormat& format : compressed_formats()) {
    if (format.kind == CompressedFormat::Kind::kFp8Static) continue;  // calibration alone makes it
    SCOPED_TRACE(format.name);
    const TempFolder folder;
    const std::vector<float> after = values_of(rounded(checkpoint, format.name, folder), kMatrix);
    for (int64_t i = 0; i < 384; ++i) EXPECT_EQ(after[static_cast<size_t>(5 * 384 + i)], 0);
    for (size_t i = 0; i < after.size(); ++i)
      ASSERT_LE(std::abs(after[i] - before[i]), 0.3 * std::abs(before[i]) + 13) << i;
  }
}

TEST(CompressedTensors, ShardsHoldTheSame) {
  const Source source;
  const Checkpoint checkpoint = Checkpoint::open(source.path()).value();
  const TempFolder whole, parts;
  EXPECT_EQ(values_of(rounded(checkpoint, "INT4_ZP", whole), kMatrix),
            values_of(rounded(checkpoint, "INT4_ZP", parts, 20000), kMatrix));
}

// Matrices that were rounded before are those that are rounded while they are written.
TEST(CompressedTensors, WhatWasRoundedBeforeIsWritten) {
  const Source source;
  const Checkpoint checkpoint = Checkpoint::open(source.path()).value();
  const std::vector<float> before = values_of(checkpoint, kMatrix);
  for (const CompressedFormat& format : compressed_formats()) {
    SCOPED_TRACE(format.name);
    const bool fixed = format.kind == CompressedFormat::Kind::kFp8Static;
    const TempFolder folder;
    const std::filesystem::path path = folder.path() / "before";
    {
      RoundedMatrices matrices = RoundedMatrices::create(path).value();
      RoundedRows rows = round_rows(format.kind, before, 384);
      rows.input_scale = 0.25f;
      ASSERT_TRUE(matrices.add("model.layers.0.mlp.down_proj", rows).ok());
      ASSERT_TRUE(matrices.finish().ok());
      const CompressedPlan plan = plan_compressed(checkpoint, format, &matrices).value();
      folder.write("config.json",
                   fmt::format(R"({{"quantization_config": {}}})", plan.quantization_config));
      ASSERT_TRUE(write_safetensors(folder.path(), plan.tensors, 1 << 30, nullptr).ok());
    }
    EXPECT_FALSE(std::filesystem::exists(path));
    const Checkpoint after = Checkpoint::open(folder.path()).value();
    const TempFolder other;
    EXPECT_EQ(values_of(after, kMatrix),
              values_of(rounded(checkpoint, fixed ? "FP8" : format.name, other), kMatrix));
    if (!fixed) continue;
    EXPECT_EQ(values_of(after, kOdd), values_of(checkpoint, kOdd)) << "nothing is known of it";
  }
}

TEST(CompressedTensors, ModulesThatAreNotRoundedAreNamed) {
  const Source source;
  const Checkpoint checkpoint = Checkpoint::open(source.path()).value();
  const CompressedPlan int4 = plan_compressed(checkpoint, *find_compressed_format("INT4")).value();
  EXPECT_THAT(int4.quantization_config, HasSubstr("model.layers.0.mlp.gate\""));
  EXPECT_THAT(int4.quantization_config, HasSubstr("model.layers.0.self_attn.o_proj\""));
  const CompressedPlan fp8 = plan_compressed(checkpoint, *find_compressed_format("FP8")).value();
  EXPECT_THAT(fp8.quantization_config, Not(HasSubstr("o_proj")));
}

TEST(CompressedTensors, WhatIsNoFolderOfNumbersIsRefused) {
  const Source source;
  const Checkpoint checkpoint = Checkpoint::open(source.path()).value();
  const TempFolder folder;
  const Checkpoint codes = rounded(checkpoint, "INT4", folder);
  const auto again = plan_compressed(codes, *find_compressed_format("FP8"));
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().to_string(), HasSubstr("from a folder of F32, F16 or BF16"));
  const TempFolder without;
  test::SafetensorsBuilder file;
  const float one = 1;
  file.add("model.norm.weight", "F32", {1}, std::as_bytes(std::span(&one, 1)));
  without.write("model.safetensors", file.bytes());
  const Checkpoint none = Checkpoint::open(without.path()).value();
  const auto refused = plan_compressed(none, *find_compressed_format("FP8"));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("no matrix that FP8 takes"));
}

}  // namespace
}  // namespace espalier
