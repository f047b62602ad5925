// The ranks of this process among all that compute one model together, which may be on several
// nodes: rank(0) of the group is rank first_rank() of them all.
//
// The group owns its collectives and outlives their use. As Collective: each is used by one thread
// at a time, and all ranks of all processes make the same calls in the same order.
#pragma once

#include <cstdint>

#include "tensor/collective.h"

namespace espalier {

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int32_t size() const = 0;         // ranks of this process, at least 1
  virtual Collective& rank(int32_t i) = 0;  // i: below size()

  int32_t first_rank() { return rank(0).ranks().rank; }
};

}  // namespace espalier
