// Request ids for requests that bring none.
#pragma once

#include <atomic>
#include <cstdint>
#include <random>
#include <string>

#include "base/rng.h"
#include "fmt/core.h"

namespace espalier {

// Nobody can predict an id, and two sources hardly make the same one. Thread-safe.
class RidSource {
 public:
  RidSource() {
    std::random_device device;
    nonce_ = uint64_t{device()} << 32 | device();
  }

  std::string next() {
    const uint64_t number = num_made_++;
    return fmt::format("{:016x}{:016x}", mix64(nonce_ ^ number), mix64(nonce_ + ~number));
  }

 private:
  uint64_t nonce_ = 0;
  std::atomic<uint64_t> num_made_{0};
};

}  // namespace espalier
