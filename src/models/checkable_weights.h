// Weights whose tensors can be compared with those of an earlier time, for a trainer that checks
// whether its update reached all of them (/weights_checker).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"

namespace espalier {

// Of the bytes of a tensor as its file has them.
struct TensorDigest {
  std::string name;
  Sha256::Digest digest{};
  friend bool operator==(const TensorDigest&, const TensorDigest&) = default;
};

// ModelWeights that can do so implement this beside them. Thread safety is theirs.
class CheckableWeights {
 public:
  virtual ~CheckableWeights() = default;

  // Of all tensors, sorted by name. Steps may run.
  virtual Result<std::vector<TensorDigest>> digests() = 0;

  // As ModelWeights::prepare(), with random values of magnitudes from 1/64 to 1/32 in place of
  // every tensor. kUnimplemented for a tensor that is held in codes.
  virtual Status prepare_random(uint64_t seed) = 0;
};

}  // namespace espalier
