// GEMM of quantised weights with AVX512-VNNI: vpdpbusd adds the four multiplied pairs of bytes of
// each group at once. The source is the generic one; integer sums are exact, so the results are
// those of AVX-512 without it.
#include "kernels/cpu/bytes_avx512.h"
// The vectors come first: what follows is written in them.
#include "kernels/linear/cpu_blocks_impl.h"

#ifndef __AVX512VNNI__
#error "this file is compiled with -mavx512vnni"
#endif

namespace espalier::kernels {

constinit const LinearFn kLinearBlocksVnni[kNumBlockFormats] = {
    linear_blocks<BlockFormat::kQ8_0>,  linear_blocks<BlockFormat::kQ4_0>,
    linear_blocks<BlockFormat::kQ4_1>,  linear_blocks<BlockFormat::kQ5_0>,
    linear_blocks<BlockFormat::kQ5_1>,  linear_blocks<BlockFormat::kQ4K>,
    linear_blocks<BlockFormat::kQ5K>,   linear_blocks<BlockFormat::kQ6K>,
    linear_blocks<BlockFormat::kQ2K>,   linear_blocks<BlockFormat::kQ3K>,
    linear_blocks<BlockFormat::kIq4Nl>, linear_blocks<BlockFormat::kIq4Xs>,
    linear_blocks<BlockFormat::kMxfp4>};

}  // namespace espalier::kernels
