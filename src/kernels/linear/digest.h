// A hash by which tuning compares the bits of two outputs. Internal to kernels/linear; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

// Adds the hash of the buffer's bytes / 4 words to *out (device memory), asynchronously on
// `stream`. The order of threads does not change it.
Status digest(const void* data, size_t bytes, uint64_t* out, Stream stream);

}  // namespace espalier::kernels::cuda
