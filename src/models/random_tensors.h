// A file of random tensors with the names, types and shapes of a checkpoint's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "base/status.h"
#include "checkpoint/checkpoint.h"

namespace espalier {

// Writes a safetensors file: magnitudes from 1/64 to 1/32, either sign. kUnimplemented for a
// tensor that is no plain array of numbers; kResourceExhausted where `fd` takes no more bytes.
Status write_random_tensors(const Checkpoint& like, uint64_t seed, int fd);

// Calls `use` with such a file, which lies in memory and ends with the call, unless `use` keeps it
// open.
Status with_random_tensors(const Checkpoint& like, uint64_t seed,
                           const std::function<Status(const std::filesystem::path&)>& use);

}  // namespace espalier
