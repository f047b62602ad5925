// CUDA's return codes as Status. Thread-safe.
#pragma once

#include <string_view>

#include "base/status.h"

namespace espalier::cuda {

// `code` is a cudaError_t; `operation` names what was being done ("capture decode graph of 8
// entries"). kResourceExhausted for memory, kInternal for the rest, with CUDA's name and
// description.
Status to_status(int code, std::string_view operation);

}  // namespace espalier::cuda
