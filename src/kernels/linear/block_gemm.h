// GEMMs of e4m3 with scales of blocks on our kernel for few rows: the rounding of the rows, and the
// GEMM of up to 128 of them at a time. Internal to kernels/linear: Linear::run() chooses it.
// Thread-safe; requirements of pointers as in cuda.h.
#pragma once

#include "kernels/linear/cuda.h"

namespace espalier::kernels::cuda {

struct DeviceTraits;

// Of whose multiples cuBLASLt multiplies numbers of rows with scales of blocks.
inline constexpr int32_t kBlockGemmFour = 4;

// Rows [first, first + rows) of a GEMM.
LinearArgs gemm_rows_of(const LinearArgs& args, int32_t first, int32_t rows);

// Whether block_gemm() multiplies these arguments; else cuBLASLt does, without a residual.
// row_invariant: a row's bits may not depend on how many rows there are, so that all numbers of
// rows take one kernel.
bool block_gemm_supports(const LinearArgs& args, const DeviceTraits& traits, bool row_invariant);

// Runs as Linear::run. scratch: room for the rounded rows and their scales, 256-byte aligned.
// REQUIRES: block_gemm_supports(args, traits, row_invariant).
Status block_gemm(const LinearArgs& args, const DeviceTraits& traits, bool row_invariant,
                  void* scratch, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
