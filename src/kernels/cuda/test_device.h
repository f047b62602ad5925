// Device memory and device checks for the tests and the benchmark of the CUDA kernels. Not
// thread-safe.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/test_support.h"
#include "kernels/cuda/stream.h"
#include "tensor/dtype.h"

namespace espalier::kernels::test {

// Owns device memory; move-only.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<size_t>(1, count) * sizeof(T)), cudaSuccess);
    cudaMemset(data_, 0xff, std::max<size_t>(1, count) * sizeof(T));  // NaN: unwritten shows
    // Streams of tests do not wait for the one that fills.
    EXPECT_EQ(cudaStreamSynchronize(cudaStreamLegacy), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { set(values); }
  DeviceArray(DeviceArray&& other) noexcept : data_(other.data_), count_(other.count_) {
    other.data_ = nullptr;
  }
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* get() const { return data_; }
  size_t size() const { return count_; }
  void set(const std::vector<T>& values) {
    ASSERT_LE(values.size(), count_);
    ASSERT_EQ(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyDefault),
              cudaSuccess);
  }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDefault), cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

inline std::vector<float> to_floats(const std::vector<BFloat16>& values) {
  std::vector<float> result;
  result.reserve(values.size());
  for (BFloat16 value : values) result.push_back(espalier::to_float(value));
  return result;
}

// The values of the codes 0 .. 0x7e of e4m3 (the OCP's FN variant: no infinities, NaN is 0x7f), in
// rising order.
inline const std::array<float, 127>& e4m3_values() {
  static const std::array<float, 127> values = [] {
    std::array<float, 127> all{};
    for (int code = 0; code < 127; ++code) {
      const int exponent = code >> 3, fraction = code & 7;
      all[static_cast<size_t>(code)] =
          exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                        : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    }
    return all;
  }();
  return values;
}
inline float of_e4m3(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return NAN;
  const float size = e4m3_values()[code & 0x7f];
  return (code & 0x80) != 0 ? -size : size;
}
// The code of the nearest value, the even one of two; +-448 beyond.
inline uint8_t to_e4m3(float value) {
  const auto& values = e4m3_values();
  const float size = std::min(std::abs(value), values.back());
  auto code = std::ranges::lower_bound(values, size) - values.begin();
  if (code > 0) {
    const float above = values[static_cast<size_t>(code)] - size;
    const float below = size - values[static_cast<size_t>(code - 1)];
    if (below < above || (below == above && code % 2 == 1)) --code;
  }
  return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

// The square root of sum (a - b)^2 / sum b^2; NaN where either holds one.
inline double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, size = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    size += double{want[i]} * want[i];
  }
  return std::sqrt(difference / size);
}

// Fixture with fresh inputs from a printed seed; skips with a message where there is no device, or
// fails where ESPALIER_REQUIRE_CUDA=1.
class OnDevice : public testing::Test {
 protected:
  OnDevice()
      : seed_(fresh_seed()),
        rng_(seed_),
        trace_(__FILE__, __LINE__, "ESPALIER_TEST_SEED=" + std::to_string(seed_)) {}

  void SetUp() override {
    const auto traits = cuda::device_traits();
    if (traits) return;
    const char* required = std::getenv("ESPALIER_REQUIRE_CUDA");
    if (required != nullptr && std::string(required) == "1") FAIL() << traits.error().message();
    GTEST_SKIP() << "SKIPPED: " << traits.error().message();
  }

  const uint64_t seed_;
  Rng rng_;
  testing::ScopedTrace trace_;
};

}  // namespace espalier::kernels::test
