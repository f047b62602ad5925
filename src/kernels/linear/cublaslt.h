// GEMM on cuBLASLt: proposals of algorithms, and the multiplication with one of them. Internal to
// kernels/linear.
//
// cuBLASLt is column-major: our rows [rows, in] are its [in x rows], so y = x W^T is its D = op(A)
// B with A = W [in x out] transposed, B = x, D = y [out x rows]. REQUIRES of all calls: where
// weights are e4m3, x is too (LinearArgs::x_scales).
#pragma once

#include <cublasLt.h>

#include <memory>
#include <vector>

#include "kernels/linear/cuda.h"

namespace espalier::kernels::cuda {

// Bytes of the workspace that belong to cuBLASLt: what its manual advises for Hopper.
inline constexpr size_t kCublasLtBytes = size_t{32} << 20;
// Row-invariant GEMMs: cuBLASLt's first algorithm at this row count is a shape's reference.
inline constexpr int32_t kStandardRows = 256;

// The outputs of the GEMM of a call: gate and up together with silu_mul.
inline int32_t gemm_outputs(const LinearArgs& args) {
  return args.silu_mul ? 2 * args.out_features : args.out_features;
}
// The stride of the rows that the GEMM of a call writes, in elements: with silu_mul [gate | up]
// rows in scratch.
inline int64_t gemm_stride(const LinearArgs& args) {
  return args.silu_mul ? 2 * int64_t{args.out_features} : args.y_stride;
}

// Owns a cuBLASLt handle. Thread-safe but for set_row_invariant(), which precedes all other calls.
class CublasLt {
 public:
  using Algorithm = cublasLtMatmulAlgo_t;

  static Result<std::unique_ptr<CublasLt>> create();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Proposals are then restricted to algorithms that do not split the inputs (split-K).
  void set_row_invariant() { row_invariant_ = true; }
  bool row_invariant() const { return row_invariant_; }

  // cuBLASLt's first `count` algorithms for the GEMM, at least one; kUnimplemented where it has
  // none.
  Result<std::vector<Algorithm>> propose(const LinearArgs& args, int count) const;
  // The algorithm that defines the shape's bits, whatever the number of rows.
  Result<Algorithm> standard(const LinearArgs& args) const;

  // y = [residual +] x W^T [+ bias], rows gemm_stride(args) apart. workspace: workspace_bytes of
  // device memory.
  Status multiply(const LinearArgs& args, const Algorithm& algorithm, void* y, void* workspace,
                  Stream stream, size_t workspace_bytes = kCublasLtBytes) const;

 private:
  explicit CublasLt(cublasLtHandle_t handle) : handle_(handle) {}

  cublasLtHandle_t handle_;
  bool row_invariant_ = false;
};

}  // namespace espalier::kernels::cuda
