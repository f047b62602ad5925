// Experts' matrices in MXFP4 in device memory (OCP Microscaling formats 1.0: E2M1 elements, 32 of a
// row share a scale of a power of two), in the order in which coded_experts.cu reads them. This
// header makes such records of a checkpoint's blocks or of numbers.
//
// A record has 64 rows x 64 inputs of a matrix: 16 bytes for each of a warp group's 128 threads,
// their fragments of wgmma, then 128 bytes of scales. Records lie by [two of 64 rows][inputs][which
// of the two]; an odd last 64 rows stand alone. Rows and inputs that fill up the last record are
// zeros.
// Thread-safe; pointers are borrowed device memory; streams as kernels/cuda/stream.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

inline constexpr int32_t kMxfp4Block = 32;       // elements that share a scale
inline constexpr int32_t kMxfp4BlockBytes = 16;  // of such a block
inline constexpr int32_t kMxfp4Rows = 64;        // of a record
inline constexpr int32_t kMxfp4Inputs = 64;      // of a record
inline constexpr int32_t kMxfp4CodeBytes = 2048;
inline constexpr int32_t kMxfp4RecordBytes = kMxfp4CodeBytes + 128;

// The shape of each matrix of a stack. gated: a row of gate stands beside the row of up that it is
// multiplied with, and both are filled up alike.
struct Mxfp4Shape {
  int32_t out_features = 0;  // gated: of gate and up, even
  int32_t in_features = 0;   // a multiple of 8; the last block of a row is filled up with zeros
  bool gated = false;

  constexpr int32_t row_records() const {
    const int32_t whole = gated ? 2 * kMxfp4Rows : kMxfp4Rows;
    return (out_features + whole - 1) / whole * (gated ? 2 : 1);
  }
  constexpr int32_t row_blocks() const { return (in_features + kMxfp4Block - 1) / kMxfp4Block; }
  constexpr int32_t input_records() const {
    return (in_features + kMxfp4Inputs - 1) / kMxfp4Inputs;
  }
  constexpr int64_t size_bytes() const {
    return int64_t{row_records()} * input_records() * kMxfp4RecordBytes;
  }
};

// Rows that are written: row i of the source is row first_row + i * row_step of a matrix, in which
// rows of gate and up alternate where it is gated.
struct Mxfp4Destination {
  Mxfp4Shape shape;
  void* records = nullptr;  // of the matrix, 16-byte aligned
  int32_t first_row = 0;
  int32_t row_step = 1;
  int32_t rows = 0;
};

// Takes blocks as they are. REQUIRES: the records' bytes of these rows are zeros before; whole
// blocks.
struct RepackMxfp4Args {
  const void* blocks = nullptr;  // [rows, in / 32, 16], low halves of bytes first; 16-byte aligned
  const uint8_t* scales = nullptr;  // [rows, in / 32]: the exponent + 127
  Mxfp4Destination to;
};
Status repack_mxfp4(const RepackMxfp4Args& args, const LaunchOptions& launch);

// Rounds numbers: a block's scale is the power of two that puts its largest magnitude in [4, 8), of
// which what is above 6 becomes 6 (OCP Microscaling formats 1.0, section 6.3); elements go to the
// nearest, ties to the even one. A NaN or an infinity makes its block's numbers NaN or infinite.
// REQUIRES: as repack_mxfp4().
struct QuantizeMxfp4Args {
  DType type = DType::kBFloat16;  // of x: kBFloat16 or kFloat32
  const void* x = nullptr;        // [to.rows, in_features]
  int64_t x_stride = 0;
  Mxfp4Destination to;
};
Status quantize_mxfp4(const QuantizeMxfp4Args& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
