// GEMM of quantised weights with Arm's sdot (FEAT_DotProd), which adds the four multiplied pairs of
// bytes of each group at once. The source is the generic one; integer sums are exact, so the
// results are those of NEON without it.
#include "kernels/cpu/bytes_neon.h"
// The vectors come first: what follows is written in them.
#include "kernels/linear/cpu_blocks_impl.h"

#ifndef __ARM_FEATURE_DOTPROD
#error "this file is compiled with -march=armv8.2-a+dotprod"
#endif

namespace espalier::kernels {

constinit const LinearFn kLinearBlocksNeonDot[kNumBlockFormats] = {
    linear_blocks<BlockFormat::kQ8_0>,  linear_blocks<BlockFormat::kQ4_0>,
    linear_blocks<BlockFormat::kQ4_1>,  linear_blocks<BlockFormat::kQ5_0>,
    linear_blocks<BlockFormat::kQ5_1>,  linear_blocks<BlockFormat::kQ4K>,
    linear_blocks<BlockFormat::kQ5K>,   linear_blocks<BlockFormat::kQ6K>,
    linear_blocks<BlockFormat::kQ2K>,   linear_blocks<BlockFormat::kQ3K>,
    linear_blocks<BlockFormat::kIq4Nl>, linear_blocks<BlockFormat::kIq4Xs>,
    linear_blocks<BlockFormat::kMxfp4>};

}  // namespace espalier::kernels
