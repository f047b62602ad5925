// Linear layers on the GPU: y = x W^T with epilogues. cuBLASLt with algorithms chosen by measuring,
// and kernels of our own that stream the weights, start by programmatic dependent launch (PDL) and
// have the epilogues inside: gemv for 1 and 2 rows and, where tuning found it faster,
// gemm_small_batch for up to 64 (of e4m3: from 1 to 128; with PDL 1 and 2 too); gemm_int4 for up to
// 256 with weights of 4 bits, which become bfloat16 in the workspace for more.
//
// Thread safety: Linear::run() from any thread after tuning; tune() from one. Ownership: pointers
// are borrowed device memory for the call. Requirements of pointers and streams:
// kernels/cuda/stream.h.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "kernels/cuda/stream.h"
#include "kernels/linear/int4_weights.h"

namespace espalier::kernels::cuda {

// gemv runs up to this row count, unless tuning found cuBLASLt faster.
inline constexpr int32_t kSmallRows = 2;

struct LinearArgs {
  DType type = DType::kBFloat16;      // of x, weights, bias, residual: kBFloat16 or kFloat32
  DType out_type = DType::kBFloat16;  // of y: `type`, or kFloat32 (logits)
  int32_t rows = 0;                   // 0 does nothing
  int32_t in_features = 0;            // a multiple of 8
  int32_t out_features = 0;           // a multiple of 8; of y: with silu_mul that of one half
  const void* x = nullptr;  // [rows, in_features], rows x_stride apart; 16-byte aligned rows
  int64_t x_stride = 0;
  // [out_features, in_features]; with silu_mul [2 * out_features, in_features], gate above up.
  const void* weights = nullptr;
  // Not null: weights are e4m3, each output's times its scale; [out_features] ([2 * out_features]
  // with silu_mul) float32, 16-byte aligned. in_features and their number are multiples of 16, and
  // `type` is kBFloat16, that of bias, residual and norm. x is rounded to e4m3 first, each row by a
  // scale of its own (quantize_rows.h), unless x_scales says that it is so already.
  const float* weight_scales = nullptr;
  const float* x_scales = nullptr;  // [rows]: x is e4m3
  // The scales of e4m3 are of blocks instead: of weights of 128 x 128, a row for each 128 outputs
  // (with silu_mul out_features is a multiple of 128), block_scale_stride(in_features) from one to
  // the next; of x of 128 inputs of a row, [scale_blocks(in_features)][rows], x_scale_stride from
  // one to the next. The tensor cores add up 128 inputs, whose sum is scaled and then added to the
  // others in float32.
  bool block_scales = false;
  int64_t x_scale_stride = 0;
  // group not 0: weights are records of 4 bits (int4_weights.h). in_features is a multiple of 32,
  // out_features of 16, and `type` is kBFloat16, that of x, bias, residual and norm.
  Int4Format int4;
  void* y = nullptr;  // [rows, out_features], rows y_stride apart
  int64_t y_stride = 0;

  const void* bias = nullptr;      // [out_features] ([2 * out_features] with silu_mul), or none
  bool silu_mul = false;           // y = silu(x gate^T) * (x up^T)
  const void* residual = nullptr;  // [rows, out_features], y_stride apart: y = residual + x W^T; y
                                   // itself for a sum in place; not with silu_mul
  // RMSNorm of x first (as rms_norm without residual), [in_features]: inside gemv for few rows, by
  // a kernel in front otherwise.
  const void* norm_weight = nullptr;
  float norm_epsilon = 1e-6f;

  // Of 4 bits: which input of x each input of the weights is, [in_features]; null: their own order.
  const int32_t* x_columns = nullptr;
};

struct LinearOptions {
  // Folder of the tuning file (one small text file for each GPU and library version); empty:
  // nothing is kept. default_linear_cache() is ~/.cache/espalier.
  std::filesystem::path cache_folder;
};
std::filesystem::path default_linear_cache();

// Owns a cuBLASLt handle and the table of algorithms. run() is thread-safe after tuning; tune() is
// not.
class Linear {
 public:
  static Result<std::unique_ptr<Linear>> create(const LinearOptions& options);
  // Whether the current device runs GEMMs of e4m3: Hopper alone.
  static Result<bool> multiplies_e4m3();
  virtual ~Linear() = default;

  // Makes each row of a GEMM the same bits whatever the number of rows, from then on: gemv and
  // gemm_small_batch are not used, and of cuBLASLt's algorithms only those whose bits were seen to
  // equal those of the shape's standard one (they walk the inputs in the same order, whatever their
  // tiles; split-K does not). Call it before tune() and run().
  virtual void set_row_invariant() = 0;

  // Bytes of scratch that run() needs for up to max_rows rows of the shapes in `shapes` (their
  // pointers are not read), 256-byte aligned. GEMMs on one stream may share it.
  virtual size_t workspace_bytes(std::span<const LinearArgs> shapes, int32_t max_rows) const = 0;

  // Measures each shape (args with real pointers, whose y is overwritten) at its own number of rows
  // and keeps the fastest kernel; shapes in the tuning file are not measured again. Synchronises,
  // so never while capturing. An untuned shape takes the algorithm of the nearest tuned number of
  // rows, or cuBLASLt's first proposal. For a shape listed at several numbers of rows the pointers
  // have room for the largest.
  virtual Status tune(std::span<const LinearArgs> shapes, void* workspace, size_t workspace_bytes,
                      Stream stream) = 0;

  virtual Status run(const LinearArgs& args, void* workspace, size_t workspace_bytes,
                     const LaunchOptions& launch) = 0;
};

}  // namespace espalier::kernels::cuda
