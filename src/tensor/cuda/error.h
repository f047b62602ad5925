// CUDA's return codes as Status.
#pragma once

#include <string_view>

#include "base/status.h"

namespace espalier::cuda {

// `code` is a cudaError_t; `operation` says what was being done ("capture decode graph of 8
// entries"). kResourceExhausted for memory, kInternal for the rest, with CUDA's name and words for
// it.
Status to_status(int code, std::string_view operation);

// The error of the last launch, which is then cleared. A kernel's own fault (an address outside its
// memory) shows only at a later synchronisation, and stays: nothing runs on that device any more.
Status last_error(std::string_view operation);

}  // namespace espalier::cuda
