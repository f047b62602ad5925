// Experts' matrices of 4-bit codes with a float16 scale and a zero point for each row and 128
// inputs, in device memory in the order in which coded_experts.cu reads them. repack_int4() and
// quantize_int4() of linear/int4_weights.h make such records.
//
// A record has 64 rows x 128 inputs of a matrix: 32 bytes of codes for each of a warp group's 128
// threads (their fragments of wgmma), the scales of two rows eight apart beside each other, and
// their zero points alike. Records lie as those of mxfp4_weights.h: by [two of 64 rows][inputs]
// [which of the two]; an odd last 64 rows stand alone. Rows that fill up the last record have zeros
// as scales where the memory was zeros before.
// Plain values; thread-safe.
#pragma once

#include <cstdint>

namespace espalier::kernels::cuda {

inline constexpr int32_t kInt4ExpertRows = 64;     // of a record
inline constexpr int32_t kInt4ExpertInputs = 128;  // of a record: one group
inline constexpr int32_t kInt4ExpertCodeBytes = 4096;
inline constexpr int32_t kInt4ExpertScaleBytes = 128;  // behind the codes
inline constexpr int32_t kInt4ExpertZeroBytes = 64;    // behind the scales
inline constexpr int32_t kInt4ExpertRecordBytes =
    kInt4ExpertCodeBytes + kInt4ExpertScaleBytes + kInt4ExpertZeroBytes;

// The shape of each matrix of a stack. gated: a row of gate stands beside the row of up that it is
// multiplied with, and both are filled up alike.
struct Int4ExpertShape {
  int32_t out_features = 0;  // a multiple of 8; gated: of gate and up, a multiple of 16
  int32_t in_features = 0;   // a multiple of kInt4ExpertInputs
  bool gated = false;

  constexpr int32_t row_records() const {
    const int32_t whole = gated ? 2 * kInt4ExpertRows : kInt4ExpertRows;
    return (out_features + whole - 1) / whole * (gated ? 2 : 1);
  }
  constexpr int32_t input_records() const { return in_features / kInt4ExpertInputs; }
  constexpr int64_t size_bytes() const {
    return int64_t{row_records()} * input_records() * kInt4ExpertRecordBytes;
  }
};

}  // namespace espalier::kernels::cuda
