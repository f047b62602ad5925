#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/rng.h"

#include "tensor/float16.h"

namespace espalier {
namespace {

TEST(DTypeTest, NamesAreThoseOfSafetensors) {
  EXPECT_EQ(parse_dtype("F32"), DType::kFloat32);
  EXPECT_EQ(parse_dtype("BF16"), DType::kBFloat16);
  EXPECT_EQ(parse_dtype("F16"), DType::kFloat16);
  EXPECT_EQ(parse_dtype("bf16"), std::nullopt);
  EXPECT_EQ(dtype_name(DType::kBFloat16), "BF16");
  EXPECT_EQ(dtype_size(DType::kFloat32), 4u);
  EXPECT_EQ(dtype_size(DType::kBFloat16), 2u);
}

// Every number of float16, and the float32 around the middle between it and the next.
TEST(DTypeTest, Float16IsTheNearest) {
  EXPECT_EQ(to_float16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(to_float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_float16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(to_float16(std::numeric_limits<float>::infinity()).bits, 0x7c00);
  EXPECT_GT(to_float16(std::nanf("")).bits & 0x7fff, 0x7c00);
  EXPECT_EQ(to_float16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_float16(0x1p-26f).bits, 0);
  for (uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const auto next = static_cast<uint16_t>(bits + 1);
    const float low = to_float(Float16{bits}), high = to_float(Float16{next});
    const float middle = (low + high) / 2;  // float32 has it
    ASSERT_EQ(to_float16(low).bits, bits);
    ASSERT_EQ(to_float16(-low).bits, bits | 0x8000);
    ASSERT_EQ(to_float16(middle).bits, bits % 2 == 0 ? bits : next);
    ASSERT_EQ(to_float16(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(to_float16(std::nextafter(middle, 1e9f)).bits, next);
  }
}

TEST(DTypeTest, EveryBFloat16SurvivesTheWayThroughFloat32) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const BFloat16 value{static_cast<uint16_t>(bits)};
    const BFloat16 back = to_bfloat16(to_float(value));
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(back)));
    } else {
      ASSERT_EQ(back, value) << bits;
    }
  }
}

// The nearest by brute force: of the two neighbours the closer, of two equally close the even.
TEST(DTypeTest, RoundsToNearestTiesToEven) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  for (int i = 0; i < 200000; ++i) {
    uint32_t bits = static_cast<uint32_t>(rng());
    if (i % 4 == 0) bits = (bits & 0xffff0000u) | 0x8000u;  // an exact tie
    const float value = std::bit_cast<float>(bits);
    if (!std::isfinite(value)) continue;
    const BFloat16 low{static_cast<uint16_t>(bits >> 16)};
    const BFloat16 high{static_cast<uint16_t>((bits >> 16) + 1)};
    // Past the largest finite value the next step counts as 2^128.
    const double low_value = to_float(low);
    const double high_value = std::isinf(to_float(high)) ? std::copysign(0x1.0p128, value)
                                                         : static_cast<double>(to_float(high));
    const double to_low = std::abs(value - low_value);
    const double to_high = std::abs(high_value - value);
    const bool take_low = to_low < to_high || (to_low == to_high && low.bits % 2 == 0);
    ASSERT_EQ(to_bfloat16(value), take_low ? low : high) << bits;
  }
}

TEST(DTypeTest, NanAndInfinityStay) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_float(to_bfloat16(infinity)), infinity);
  EXPECT_EQ(to_float(to_bfloat16(-infinity)), -infinity);
  // A NaN whose upper half alone would read as infinity.
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(to_float(to_bfloat16(std::bit_cast<float>(0xffffffffu)))));
}

TEST(DTypeTest, Float16ReadsAllItsKinds) {
  EXPECT_EQ(to_float(Float16{0x3c00}), 1.0f);
  EXPECT_EQ(to_float(Float16{0xc000}), -2.0f);
  EXPECT_EQ(to_float(Float16{0x7bff}), 65504.0f);
  EXPECT_EQ(to_float(Float16{0x0001}), 0x1.0p-24f);
  EXPECT_EQ(to_float(Float16{0x83ff}), -1023 * 0x1.0p-24f);
  EXPECT_EQ(to_float(Float16{0x0400}), 0x1.0p-14f);
  EXPECT_EQ(to_float(Float16{0x7c00}), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(to_float(Float16{0x7c01})));
  EXPECT_EQ(std::bit_cast<uint32_t>(to_float(Float16{0x8000})), 0x80000000u);
}

}  // namespace
}  // namespace espalier
