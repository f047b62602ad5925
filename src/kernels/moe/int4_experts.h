// Experts' matrices of 4-bit codes with a float16 scale and a zero point for each row and group of
// 128 or 32 inputs, in device memory in the order in which coded_experts.cu reads them.
// repack_int4() and quantize_int4() of linear/int4_weights.h make such records.
//
// A record has 64 rows x 128 inputs of a matrix: 32 bytes of codes for each of a warp group's 128
// threads (their fragments of wgmma), the scales of two rows eight apart beside each other, and
// their zero points alike. Of groups of 32 a record has 64 inputs, which are two groups: 16 bytes
// of codes for each thread, of two rows eight apart the scales of the first group and of the
// second, and their zero points alike. Records lie as those of mxfp4_weights.h: by [two of 64
// rows][inputs] [which of the two]; an odd last 64 rows stand alone. Rows that fill up the last
// record have zeros as scales where the memory was zeros before. Plain values; thread-safe.
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

// The same of groups of 32.
inline constexpr int32_t kInt4SmallGroup = 32;
inline constexpr int32_t kInt4SmallInputs = 64;
inline constexpr int32_t kInt4SmallCodeBytes = 2048;
inline constexpr int32_t kInt4SmallScaleBytes = 256;
inline constexpr int32_t kInt4SmallZeroBytes = 128;
inline constexpr int32_t kInt4SmallRecordBytes =
    kInt4SmallCodeBytes + kInt4SmallScaleBytes + kInt4SmallZeroBytes;

// The shape of each matrix of a stack. gated: a row of gate stands beside the row of up that it is
// multiplied with, and both are filled up alike.
struct Int4ExpertShape {
  int32_t out_features = 0;  // a multiple of 8; gated: of gate and up, a multiple of 16
  int32_t in_features = 0;   // a multiple of record_inputs()
  bool gated = false;
  int32_t group = kInt4ExpertInputs;  // inputs: that, or kInt4SmallGroup

  constexpr bool small_groups() const { return group == kInt4SmallGroup; }
  constexpr int32_t record_inputs() const {
    return small_groups() ? kInt4SmallInputs : kInt4ExpertInputs;
  }
  constexpr int32_t record_bytes() const {
    return small_groups() ? kInt4SmallRecordBytes : kInt4ExpertRecordBytes;
  }

  constexpr int32_t row_records() const {
    const int32_t whole = gated ? 2 * kInt4ExpertRows : kInt4ExpertRows;
    return (out_features + whole - 1) / whole * (gated ? 2 : 1);
  }
  constexpr int32_t input_records() const { return in_features / record_inputs(); }
  constexpr int64_t size_bytes() const {
    return int64_t{row_records()} * input_records() * record_bytes();
  }
};

}  // namespace espalier::kernels::cuda
