// The ceilings of the GPU, for kernels_cuda_bench: a stream of reads, and random data for the rest
// (GEMMs of zeros run faster than any that matter).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

void read_all(const void* from, size_t bytes, uint32_t* to, int blocks, Stream stream);
// `count` bfloat16, uniform, of this deviation.
void fill_random(void* to, size_t count, uint32_t seed, float deviation, Stream stream);
void do_nothing(Stream stream);

}  // namespace espalier::kernels::cuda
