#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "checkpoint/convert.h"
#include "checkpoint/temp_folder.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kHeader[] = R"({"__metadata__":{"format":"pt"},)"
                           R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[12,16]},)"
                           R"("a":{"dtype":"F32","shape":[3,1],"data_offsets":[0,12]},)"
                           R"("none":{"dtype":"I64","shape":[4,0],"data_offsets":[16,16]},)"
                           R"("h":{"dtype":"F16","shape":[],"data_offsets":[16,18]}}  )";

std::string good_data() {
  const float a[3] = {1.5f, -2.0f, 3.25f};
  const BFloat16 b[2] = {to_bfloat16(0.5f), to_bfloat16(-8.0f)};
  const uint16_t h = 0x3e00;  // 1.5
  std::string data(18, '\0');
  std::memcpy(data.data(), a, 12);
  std::memcpy(data.data() + 12, b, 4);
  std::memcpy(data.data() + 16, &h, 2);
  return data;
}

Result<SafetensorsFile> open_bytes(const TempFolder& folder, std::string_view bytes) {
  return SafetensorsFile::open(folder.write("x.safetensors", bytes));
}

TEST(Safetensors, ReadsNamesShapesAndValues) {
  TempFolder folder;
  const auto file = open_bytes(folder, safetensors_bytes(kHeader, good_data()));
  ASSERT_TRUE(file) << file.error().to_string();
  ASSERT_EQ(file->tensors().size(), 4u);
  const CheckpointTensor& a = file->tensors()[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_THAT(a.shape, ElementsAre(3, 1));
  float values[3];
  copy_as_float(a, 0, values);
  EXPECT_THAT(values, ElementsAre(1.5f, -2.0f, 3.25f));
  copy_as_float(file->tensors()[1], 1, std::span(values, 1));
  EXPECT_EQ(values[0], -8.0f);
  const CheckpointTensor& h = file->tensors()[3];
  EXPECT_EQ(h.name, "h");
  EXPECT_EQ(h.num_elements(), 1);
  BFloat16 rounded[1];
  copy_as_bfloat16(h, 0, rounded);
  EXPECT_EQ(to_float(rounded[0]), 1.5f);
  EXPECT_FALSE(file->tensors()[2].dtype.has_value());  // I64 is listed, not read
  file->release(a);                                    // smaller than a page: nothing happens
}

struct BadHeader {
  const char* header;
  const char* message;
};

class SafetensorsBadHeader : public testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsBadHeader, IsDataLossThatSaysWhat) {
  TempFolder folder;
  const auto file = open_bytes(folder, safetensors_bytes(GetParam().header, std::string(8, 'x')));
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), StatusCode::kDataLoss);
  EXPECT_THAT(file.error().message(), HasSubstr(GetParam().message));
  EXPECT_THAT(file.error().message(), HasSubstr("x.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsBadHeader,
    testing::Values(
        BadHeader{"", "not valid JSON"}, BadHeader{"{\"a\":", "not valid JSON"},
        BadHeader{"[1]", "must be a JSON object"}, BadHeader{"{\"a\":3}", "'a' must be an object"},
        BadHeader{R"({"a":{"shape":[2],"data_offsets":[0,8]}})", "'a.dtype' is missing"},
        BadHeader{R"({"a":{"dtype":"Q9","shape":[2],"data_offsets":[0,8]}})", "'Q9'"},
        BadHeader{R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", "'a.shape' is missing"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", "'a.shape'"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "[-2] in F32"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "[3] in F32"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "two offsets"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "two offsets"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", "two offsets"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", "truncated"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "4 bytes follow"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "a gap"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  "overlaps"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  "'a' stands twice"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",
                  "[4611686018427387904, 4]"},
        BadHeader{R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", "[3] in F4"}));

TEST(Safetensors, RefusesLengthsThatCannotBe) {
  TempFolder folder;
  std::string bytes = safetensors_bytes(kHeader, good_data());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto file = open_bytes(folder, std::string_view(bytes).substr(0, size));
    ASSERT_FALSE(file) << "cut to " << size;
    ASSERT_EQ(file.error().code(), StatusCode::kDataLoss);
  }
  bytes[7] = '\x7f';
  const auto absurd = open_bytes(folder, bytes);
  ASSERT_FALSE(absurd);
  EXPECT_THAT(absurd.error().message(), HasSubstr("more than the format's"));
  bytes[7] = 0;
  bytes[2] = 1;
  const auto too_long = open_bytes(folder, bytes);
  ASSERT_FALSE(too_long);
  EXPECT_THAT(too_long.error().message(), HasSubstr("truncated or corrupt"));
  EXPECT_EQ(SafetensorsFile::open(folder.path() / "absent").error().code(), StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::open(folder.path()).error().code(), StatusCode::kInvalidArgument);
}

// Whatever is changed: it opens and all its bytes can be read, or it fails with the file's name.
TEST(Safetensors, SurvivesSeededMutations) {
  constexpr uint64_t kSeed = 20;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Rng rng(kSeed);
  TempFolder folder;
  const std::string good = safetensors_bytes(kHeader, good_data());
  constexpr std::string_view kTokens[] = {
      "[",      "]",     "{",       "}",    ",", "9999999999999999999", "-1", "null",
      "\"a\":", "1e300", "\\u0000", "\xff", "0"};
  int opened = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = good;
    for (uint64_t edits = 1 + rng.below(3); edits > 0 && !bytes.empty(); --edits) {
      const size_t at = rng.below(bytes.size());
      switch (rng.below(5)) {
        case 0:
          bytes[at] = static_cast<char>(rng());
          break;
        case 1:
          bytes[at] = static_cast<char>('0' + rng.below(10));
          break;
        case 2:
          bytes.erase(at, 1 + rng.below(8));
          break;
        case 3:
          bytes.insert(at, kTokens[rng.below(std::size(kTokens))]);
          break;
        case 4:
          bytes[rng.below(std::min<size_t>(8, bytes.size()))] ^= 1 << rng.below(8);
          break;
      }
    }
    const auto file = open_bytes(folder, bytes);
    if (!file) {
      ASSERT_EQ(file.error().code(), StatusCode::kDataLoss) << "round " << round;
      ASSERT_THAT(file.error().message(), HasSubstr("x.safetensors"));
      continue;
    }
    ++opened;
    for (const CheckpointTensor& tensor : file->tensors()) {
      if (!tensor.dtype) continue;
      std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
      copy_as_float(tensor, 0, values);
    }
  }
  EXPECT_GT(opened, 50);  // changed names and values are no corruption
  EXPECT_LT(opened, 2000);
}

}  // namespace
}  // namespace espalier
