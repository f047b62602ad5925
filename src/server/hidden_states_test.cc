// How hidden states are written, list and binary.
#include "server/hidden_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "base/base64.h"

namespace espalier::server {
namespace {

using ::testing::HasSubstr;

std::string written(std::vector<float> states, size_t first_row, const HiddenShape& shape,
                    HiddenFormat format = HiddenFormat::kList) {
  std::string out;
  JsonWriter w(out);
  write_hidden_states(w, states, first_row, shape, format);
  return out;
}

TEST(WrittenHiddenStates, APromptIsOneElementAndATokenEachOther) {
  const HiddenShape shape{.hidden_size = 2, .num_prompt = 2};
  EXPECT_EQ(written({1, 2, 3, 4, 5, 6, 7, 8}, 0, shape), "[[[1,2],[3,4]],[5,6],[7,8]]");
  EXPECT_EQ(written({1, 2, 3, 4}, 0, shape), "[[[1,2],[3,4]]]");
  EXPECT_EQ(written({5, 6, 7, 8}, 2, shape), "[[5,6],[7,8]]");
  EXPECT_EQ(written({}, 0, shape), "[]");
  EXPECT_EQ(written({}, 3, shape), "[]");
}

TEST(WrittenHiddenStates, WithLayersARowHasAVectorForEach) {
  const HiddenShape shape{.hidden_size = 2, .num_layers = 2, .num_prompt = 1};
  EXPECT_EQ(written({1, 2, 3, 4, 5, 6, 7, 8}, 0, shape), "[[[[1,2],[3,4]]],[[5,6],[7,8]]]");
  EXPECT_EQ(written({1, 2, 3, 4}, 0, {.hidden_size = 4, .num_layers = 1, .num_prompt = 9}),
            "[[[[1,2,3,4]]]]");
}

TEST(WrittenHiddenStates, NumbersInBinaryAreLittleEndian) {
  const std::vector<float> values = {1.5f, -0.1f, 3e38f, 0.0f};
  const std::string out =
      written(values, 3, {.hidden_size = 2, .num_prompt = 2}, HiddenFormat::kFloat32);
  std::string bytes;
  for (const float value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(bits >> 8 * i));
  }
  EXPECT_EQ(out, R"({"dtype":"float32","shape":[2,2],"first_token":3,"data":")" +
                     encode_base64(bytes) + R"("})");
}

// 1 + 2^-8 lies in the middle of two bfloat16 and goes to the even one, 1; 1 + 3 * 2^-8 to 1 +
// 2^-6.
TEST(WrittenHiddenStates, BFloat16IsTheNearestTiesToEven) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string out =
      written({1 + 0x1p-8f, 1 + 3 * 0x1p-8f, -1 - 0x1.2p-8f, nan}, 0,
              {.hidden_size = 1, .num_layers = 4, .num_prompt = 1}, HiddenFormat::kBFloat16);
  EXPECT_THAT(out, HasSubstr(R"("dtype":"bfloat16","shape":[1,4,1],"first_token":0)"));
  std::string bytes;
  const size_t begin = out.rfind("data") + 7;
  ASSERT_TRUE(decode_base64(out.substr(begin, out.size() - begin - 2), bytes));
  ASSERT_EQ(bytes.size(), 8u);
  const auto at = [&](size_t i) {
    return static_cast<uint8_t>(bytes[2 * i]) | static_cast<uint8_t>(bytes[2 * i + 1]) << 8;
  };
  EXPECT_EQ(at(0), 0x3f80);
  EXPECT_EQ(at(1), 0x3f82);
  EXPECT_EQ(at(2), 0xbf81);
  EXPECT_EQ(at(3) & 0x7fc0, 0x7fc0) << "NaN stays NaN";
}

TEST(HiddenFormats, HaveNames) {
  EXPECT_EQ(parse_hidden_format("list").value(), HiddenFormat::kList);
  EXPECT_EQ(parse_hidden_format("bfloat16").value(), HiddenFormat::kBFloat16);
  EXPECT_THAT(parse_hidden_format("int8").error().message(),
              HasSubstr("list, float32 or bfloat16"));
}

TEST(HiddenStatesMemory, IsChargedAndRefused) {
  MemoryCharge charge(std::make_shared<MemoryAccount>("answers", 100));
  EXPECT_TRUE(charge_hidden_states(charge, 20).ok());
  EXPECT_EQ(charge.bytes(), 80);
  const Status refused = charge_hidden_states(charge, 6);
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("24 bytes"));
  EXPECT_EQ(charge.bytes(), 80);
}

}  // namespace
}  // namespace espalier::server
