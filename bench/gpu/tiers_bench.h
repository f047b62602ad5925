// Keys and values in the host's memory beside a GPU: what a prefix costs loaded instead of
// computed, what copies reach, what they cost running requests, and talks that exceed the device's
// memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace espalier::bench {

struct TiersOptions {
  std::string config;  // folder with config.json; weights are drawn from the seed
  std::string only;    // rows of parts whose names contain it: "first token", "copies", "decode",
                       // "beside", "talks"; empty: all
  int32_t page_size = 16;
  uint64_t seed = 1;
  bool quick = false;
};

// One figure; what it counts is stated by `unit`.
struct TiersRow {
  std::string name;
  double value = 0;
  std::string unit;  // "ms", "GB/s", "s", "tokens", "%"
};

// REQUIRES an open device.
Result<std::vector<TiersRow>> run_tiers(const TiersOptions& options);

}  // namespace espalier::bench
