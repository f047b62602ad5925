// A number that two buffers of the same bits share, and two of other bits do not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

// Adds the digest of bytes / 4 words to *out, in device memory. The order of threads does not
// matter.
Status digest(const void* data, size_t bytes, uint64_t* out, Stream stream);

}  // namespace espalier::kernels::cuda
