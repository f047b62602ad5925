// Weights of 4 bits in device memory: codes with a float16 scale, and a zero point where the format
// has one, for each row and group of neighbouring inputs. A weight is (code - zero) * scale. They
// lie in records of 8 rows x 256 inputs in the order in which gemm_int4() reads them; this header
// makes records of numbers or of a checkpoint's codes, and numbers of records.
// Thread-safe; pointers are borrowed device memory; streams as kernels/cuda/stream.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

inline constexpr int32_t kInt4Rows = 8;          // of a record
inline constexpr int32_t kInt4Inputs = 256;      // of a record; the last of a row is filled up
inline constexpr int32_t kInt4CodeBytes = 1024;  // of a record
inline constexpr int32_t kInt4Zero = 8;          // of a format without zero points

inline constexpr int32_t kNvfp4Group = 16;  // inputs

// How a matrix is cut into groups. group: 32 or 128 inputs; 16: codes are NVFP4's; 0: weights are
// not of 4 bits.
struct Int4Format {
  int32_t group = 0;
  bool zeros = false;

  // A weight is an E2M1 number, times an e4m3 for each row and group, times a float32 for each row
  // (the file's number for the whole tensor). There are no zero points.
  constexpr bool nvfp4() const { return group == kNvfp4Group; }
  constexpr int32_t groups_per_record() const { return kInt4Inputs / group; }
  // Of a record: its codes, 8 scales for each group, 8 zero points (bytes) for each group. Scales
  // of NVFP4 are bytes, [row][group] (nvfp4_codes.cuh).
  constexpr int32_t record_bytes() const {
    const int32_t each = nvfp4() ? 1 : zeros ? 3 : 2;
    return kInt4CodeBytes + groups_per_record() * each * kInt4Rows;
  }
  friend bool operator==(const Int4Format&, const Int4Format&) = default;
};

// [ceil(in / 256)][out / 8] records.
constexpr int64_t int4_records(int64_t out, int64_t in) {
  return (in + kInt4Inputs - 1) / kInt4Inputs * (out / kInt4Rows);
}
// Behind the records of NVFP4 lie the rows' scales.
constexpr int64_t int4_bytes(const Int4Format& format, int64_t out, int64_t in) {
  const int64_t of_rows = format.nvfp4() ? out * static_cast<int64_t>(sizeof(float)) : 0;
  return int4_records(out, in) * format.record_bytes() + of_rows;
}

// Which records a matrix has: those above, or those of an expert (kernels/moe/int4_experts.h), of
// whose first GEMM the rows are all of gate, then all of up. Records of experts have zero points
// whatever their format.
enum class Int4Records : uint8_t { kDense, kExpert, kGatedExpert };

// Records that are written: rows [first_row, first_row + rows) of a matrix.
struct Int4Destination {
  Int4Format format;
  Int4Records kind = Int4Records::kDense;
  void* records = nullptr;   // of the whole matrix, 16-byte aligned
  int32_t out_features = 0;  // of the whole matrix, a multiple of 16; kExpert: of 8
  int32_t in_features = 0;   // a multiple of 32; of an expert: of Int4ExpertShape::record_inputs()
  int32_t first_row = 0;     // multiples of 8
  int32_t rows = 0;
};

// Rounds numbers. In each group the number of the largest magnitude becomes code 0, eight steps
// below the zero point; a NaN or an infinity makes its group's numbers NaN or infinite. To NVFP4: a
// row's largest magnitude becomes 6 x 448 of its scale, a group's largest 6 of the group's scale,
// as near as e4m3 has it; a NaN or an infinity makes its group's numbers NaN. REQUIRES of dense
// records: to.format.zeros is false.
struct QuantizeInt4Args {
  DType type = DType::kBFloat16;  // of x: kBFloat16 or kFloat32
  const void* x = nullptr;        // [to.rows, to.in_features]
  int64_t x_stride = 0;
  Int4Destination to;
};
Status quantize_int4(const QuantizeInt4Args& args, const LaunchOptions& launch);

// How a checkpoint stores codes: little-endian words of eight codes, low bits first.
enum class Int4Order : uint8_t {
  kRows,     // [row][input / 8] words (compressed-tensors)
  kColumns,  // [input / 8][row] words of one row's inputs (GPTQ)
  kAwq,      // [input][row / 8] words of eight rows, which lie in them as 0, 2, 4, 6, 1, 3, 5, 7
  kQ4_0,     // [row][input / 32] blocks of a float16 scale and 16 bytes, of inputs i and i + 16
};

// Takes codes as they are, of a range of inputs: first_input and inputs are multiples of 256, but
// for the matrix's last inputs.
struct RepackInt4Args {
  Int4Order order = Int4Order::kRows;
  const void* codes = nullptr;  // the range's lines, each of rows or of inputs
  int64_t line_bytes = 0;       // from one line to the next
  // [to.rows, groups of the range] float16; null for kQ4_0; of NVFP4 bytes of e4m3.
  const void* scales = nullptr;
  const float* row_scales = nullptr;  // [to.rows], of NVFP4
  const uint8_t* zeros = nullptr;     // [to.rows, groups of the range]: 0 to 16; with format.zeros
  // Which of the source's inputs each input is, [inputs]; null: their own order. REQUIRES: the
  // range is the whole matrix's inputs.
  const int32_t* columns = nullptr;
  int32_t first_input = 0;
  int32_t inputs = 0;
  Int4Destination to;
};
Status repack_int4(const RepackInt4Args& args, const LaunchOptions& launch);

// All weights as bfloat16 (rounded to nearest even), [out_features, in_features].
struct WidenInt4Args {
  Int4Format format;
  const void* records = nullptr;
  int32_t out_features = 0, in_features = 0;
  void* y = nullptr;
};
Status widen_int4(const WidenInt4Args& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
