// Random numbers for the tests of experts, on the host and on the device: in one type, or rows of
// e4m3 with their scales.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cuda/test_device.h"
#include "kernels/linear/quantize_rows.h"

namespace espalier::kernels::test {

// Random values rounded to `type`, and their bytes on the device.
struct Values {
  std::vector<float> host;
  DeviceArray<uint8_t> device;

  static Values random(Rng& rng, DType type, int64_t count, double deviation = 1.0) {
    return of(random_floats(rng, count, deviation), type);
  }
  static Values of(std::vector<float> values, DType type) {
    DeviceArray<uint8_t> device(values.size() * dtype_size(type));
    if (type == DType::kBFloat16) {
      const auto rounded = to_bfloat16s(values);
      values = to_floats(rounded);
      cudaMemcpy(device.get(), rounded.data(), rounded.size() * 2, cudaMemcpyDefault);
    } else {
      cudaMemcpy(device.get(), values.data(), values.size() * 4, cudaMemcpyDefault);
    }
    return {std::move(values), std::move(device)};
  }
};

inline std::vector<float> read(const DeviceArray<uint8_t>& device, DType type) {
  const auto bytes = device.read();
  if (type == DType::kFloat32) {
    std::vector<float> result(bytes.size() / 4);
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }
  std::vector<BFloat16> result(bytes.size() / 2);
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return to_floats(result);
}

// Rows of e4m3: codes and scales on the device, and the numbers that they stand for.
struct RoundedRows {
  DeviceArray<uint8_t> codes;
  DeviceArray<float> scales;
  std::vector<float> values;
};

// Rounds x [rows, dim]; dim a multiple of 16.
inline RoundedRows rounded_rows(const DeviceArray<BFloat16>& x, int rows, int dim) {
  const auto count = static_cast<size_t>(rows) * static_cast<size_t>(dim);
  RoundedRows out{DeviceArray<uint8_t>(count), DeviceArray<float>(static_cast<size_t>(rows)), {}};
  EXPECT_TRUE(cuda::quantize_rows({.x = x.get(),
                                   .x_stride = dim,
                                   .y = out.codes.get(),
                                   .scales = out.scales.get(),
                                   .rows = rows,
                                   .dim = dim},
                                  {})
                  .ok());
  const std::vector<uint8_t> codes = out.codes.read();
  const std::vector<float> scales = out.scales.read();
  out.values.reserve(count);
  for (size_t i = 0; i < count; ++i)
    out.values.push_back(of_e4m3(codes[i]) * scales[i / static_cast<size_t>(dim)]);
  return out;
}

}  // namespace espalier::kernels::test
