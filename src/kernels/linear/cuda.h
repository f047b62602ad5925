// y = x W^T on the GPU: cuBLASLt with algorithms chosen by measuring, and kernels of our own for
// few rows and, where they measured faster, for batches up to 64, which stream the weights, start
// before the kernel in front has ended and carry the epilogues.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

// Up to so many rows our own kernels run, unless tuning found cuBLASLt faster.
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
  void* y = nullptr;  // [rows, out_features], rows y_stride apart
  int64_t y_stride = 0;

  const void* bias = nullptr;      // [out_features] ([2 * out_features] with silu_mul), or none
  bool silu_mul = false;           // y = silu(x gate^T) * (x up^T)
  const void* residual = nullptr;  // [rows, out_features], y_stride apart: y = residual + x W^T; y
                                   // itself for a sum in place; not with silu_mul
  // RMSNorm of x first (as rms_norm without residual), [in_features]; inside the kernel for few
  // rows, a kernel in front otherwise.
  const void* norm_weight = nullptr;
  float norm_epsilon = 1e-6f;
};

struct LinearOptions {
  // Chosen algorithms are kept here (one small text file for each GPU and library version); empty:
  // nowhere. default_linear_cache() is ~/.cache/espalier.
  std::filesystem::path cache_folder;
};
std::filesystem::path default_linear_cache();

// Owns a cuBLASLt handle and the table of algorithms. run() is thread-safe after tuning; tune()
// not.
class Linear {
 public:
  static Result<std::unique_ptr<Linear>> create(const LinearOptions& options);
  virtual ~Linear() = default;

  // From then on each row of a product is the same bits whatever the number of rows: our own
  // kernels for few rows stay out, and of cuBLASLt's algorithms only those are taken that were seen
  // to give the bits of one that stands for the shape (they walk the inputs in the same order,
  // whatever their tiles; those that split the inputs do not). Before tune() and run().
  virtual void set_row_invariant() = 0;

  // Scratch that run() needs for up to max_rows of the shapes that `args` list (pointers are not
  // looked at), 256-byte aligned. Products on one stream may share it.
  virtual size_t workspace_bytes(std::span<const LinearArgs> shapes, int32_t max_rows) const = 0;

  // Measures each shape (args with real pointers, whose y is overwritten) at its own rows and keeps
  // the fastest; a shape that the cache folder knows is not measured again. Synchronises, so never
  // while capturing. A shape that was not tuned takes the algorithm of the nearest tuned number of
  // rows, or cuBLASLt's first proposal. Of a shape that is listed at several numbers of rows the
  // pointers have room for the largest of them.
  virtual Status tune(std::span<const LinearArgs> shapes, void* workspace, size_t workspace_bytes,
                      Stream stream) = 0;

  virtual Status run(const LinearArgs& args, void* workspace, size_t workspace_bytes,
                     const LaunchOptions& launch) = 0;
};

}  // namespace espalier::kernels::cuda
