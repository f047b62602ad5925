// Where codes of 4 bits lie in the records of a dense matrix (int4_weights.h): lane l of 32 has 16
// bytes of each half of the inputs, four words of two steps of 16 inputs each, of row l / 4. Of a
// step it has the inputs k = 2 (l % 4), k + 1, k + 8 and k + 9: those of wgmma's and mma.sync's
// fragments. For kernels that write or read whole records, a block of a warp a row each.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/linear/int4_weights.h"

namespace espalier::kernels::cuda {

inline constexpr int kRecordThreads = kInt4Rows * 32;  // a warp a row

// Codes of a record, one a byte.
using RecordCodes = uint8_t[kInt4Rows][kInt4Inputs];

// Of a word's eight codes the step's input that one has, and which of the word's two steps.
__device__ __forceinline__ int input_of(int lane, int word, int nibble) {
  const int step = 2 * word + nibble / 2 % 2;
  return step * 16 + lane % 4 * 2 + nibble / 4 + nibble % 2 * 8;
}

__device__ __forceinline__ char* record_at(const Int4Destination& to, int k_tile, int eight) {
  const int64_t index = int64_t{k_tile} * (to.out_features / kInt4Rows) + eight;
  return static_cast<char*>(to.records) + index * to.format.record_bytes();
}

// Records of `rows` rows.
inline dim3 records_grid(int32_t inputs, int32_t rows) {
  return {static_cast<unsigned>((inputs + kInt4Inputs - 1) / kInt4Inputs),
          static_cast<unsigned>(rows / kInt4Rows)};
}

}  // namespace espalier::kernels::cuda
