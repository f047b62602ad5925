// Rows of E2M1 numbers, two a byte, low bits first, whose blocks have scales of their own: NVFP4
// (e4m3 for 16 numbers, times a number for all) and MXFP4 (powers of two for 32).
// Immutable and thread-safe; borrows the checkpoint's files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "checkpoint/tensor_reader.h"

namespace espalier {

struct E2m1Scales {
  const std::byte* data = nullptr;  // [rows, columns / block]
  std::array<float, 256> values{};  // of their bytes, times `of_all`
  int64_t block = 16;
  bool nvfp4 = false;
  float of_all = 1;
};

// codes: [rows, columns / 2]. REQUIRES: columns are whole blocks.
std::shared_ptr<const TensorReader> make_e2m1_reader(const std::byte* codes, int64_t columns,
                                                     const E2m1Scales& scales);

}  // namespace espalier
