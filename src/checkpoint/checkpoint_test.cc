#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <string_view>

#include "checkpoint/convert.h"
#include "checkpoint/temp_folder.h"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr char kFirst[] = R"({"x.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})";
constexpr char kSecond[] = R"({"y.weight":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}})";
constexpr char kIndex[] =
    R"({"metadata":{"total_size":16},"weight_map":{"x.weight":"1.safetensors",)"
    R"("y.weight":"2.safetensors"}})";

class SplitCheckpoint : public testing::Test {
 protected:
  SplitCheckpoint() {
    folder_.write("1.safetensors", safetensors_bytes(kFirst, "abcdefgh"));
    folder_.write("2.safetensors", safetensors_bytes(kSecond, "abcdefgh"));
    write_index(kIndex);
  }
  void write_index(std::string_view text) { folder_.write("model.safetensors.index.json", text); }
  void expect_failure(StatusCode code, const char* message) {
    const auto checkpoint = Checkpoint::open(folder_.path());
    ASSERT_FALSE(checkpoint);
    EXPECT_EQ(checkpoint.error().code(), code) << checkpoint.error().message();
    EXPECT_THAT(checkpoint.error().message(), HasSubstr(message));
  }
  TempFolder folder_;
};

TEST_F(SplitCheckpoint, ShowsAllShardsAsOneList) {
  const auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  ASSERT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(checkpoint->tensors()[0].name, "x.weight");
  const int64_t shape[] = {1, 2};
  const auto x = checkpoint->require("x.weight", shape);
  ASSERT_TRUE(x);
  checkpoint->release(**x);
  std::array<float, 2> values;
  copy_as_float(**x, 0, values);
  const auto bytes = std::bit_cast<std::array<char, 8>>(values);
  EXPECT_EQ(std::string_view(bytes.data(), bytes.size()), "abcdefgh");
  EXPECT_EQ(checkpoint->find("z.weight"), nullptr);
}

TEST_F(SplitCheckpoint, RequireNamesWhatIsWrong) {
  const auto checkpoint = Checkpoint::open(folder_.path());
  ASSERT_TRUE(checkpoint);
  const int64_t shape[] = {2, 1};
  const auto absent = checkpoint->require("z.y.weight", shape);
  EXPECT_EQ(absent.error().code(), StatusCode::kNotFound);
  EXPECT_THAT(absent.error().message(),
              HasSubstr("'z.y.weight' is missing (the nearest name is 'y"));
  const auto misshapen = checkpoint->require("x.weight", shape);
  EXPECT_THAT(misshapen.error().message(),
              HasSubstr("has shape [1, 2] and config.json asks for [2, 1]"));
  const int64_t one[] = {1};
  const auto integers = checkpoint->require("y.weight", one);
  EXPECT_EQ(integers.error().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(integers.error().message(), HasSubstr("of type C64"));
}

TEST_F(SplitCheckpoint, IndexAndShardsMustAgree) {
  write_index(R"({"weight_map":{"x.weight":"1.safetensors","z":"1.safetensors"}})");
  expect_failure(StatusCode::kDataLoss, "1.safetensors lacks the tensor 'z'");
  write_index(R"({"weight_map":{"y.weight":"1.safetensors"}})");
  expect_failure(StatusCode::kDataLoss, "does not place there, the tensor 'x.weight'");
  write_index(R"({"weight_map":{"x.weight":"3.safetensors"}})");
  expect_failure(StatusCode::kNotFound, "names the shard 3.safetensors");
  write_index(R"({"weight_map":{"x.weight":"../1.safetensors"}})");
  expect_failure(StatusCode::kInvalidArgument, "no file of this folder");
  write_index(R"({"weight_map":{"x.weight":1}})");
  expect_failure(StatusCode::kInvalidArgument, "'weight_map.x.weight' must be a string");
  write_index(R"({"weight_map":[]})");
  expect_failure(StatusCode::kInvalidArgument, "'weight_map' must be an object");
  write_index(R"({"weight_map":{"x.weight":"1.safetensors","x.weight":"2.safetensors"}})");
  expect_failure(StatusCode::kDataLoss, "'x.weight' stands twice");
  write_index("{");
  expect_failure(StatusCode::kDataLoss, "not valid JSON");
}

TEST_F(SplitCheckpoint, FolderWithoutWeightsIsNotFound) {
  std::filesystem::remove(folder_.path() / "model.safetensors.index.json");
  expect_failure(StatusCode::kNotFound, "has no weights");
}

}  // namespace
}  // namespace espalier
