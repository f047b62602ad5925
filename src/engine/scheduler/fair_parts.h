// What each share (a tenant or a priority) holds of the slots and pages, against its fair part of
// them: the whole, divided by the shares that hold something or ask for it.
//
// A share may hold more than its part while no other one asks. When one below its part asks, the
// last admitted sequences of those above theirs are preempted; none falls below its part by it.
// Made anew for each decision. Not thread-safe. Borrows the running set.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/scheduler/running_set.h"

namespace espalier {

class FairParts {
 public:
  // `asking`: the share that asks for more; may be null.
  FairParts(const RunningSet& running, int32_t num_pages, const WaitingShare* asking);

  bool exceeds(const WaitingShare* share) const;
  // Whether a share may take so many pages and a slot from shares above their part. One that holds
  // nothing may in any case, for its first sequence may need more than a part.
  bool may_take(const WaitingShare* share, int32_t num_pages) const;
  // Running sequences of shares above their part, in the order in which they are to be preempted.
  // `preemptions_max`: how often a share's only sequence is preempted, so that one which needs more
  // than a part ends too.
  std::vector<Sequence*> preemptible(int32_t preemptions_max) const;

 private:
  struct Usage {
    int32_t num_slots = 0, num_pages = 0;
  };
  bool exceeds(const Usage& usage) const {
    return usage.num_slots > slots_part_ || usage.num_pages > pages_part_;
  }
  Usage usage_of(const WaitingShare* share) const;

  const RunningSet& running_;
  std::map<const WaitingShare*, Usage> usage_;
  int32_t slots_part_ = 0, pages_part_ = 0;
};

}  // namespace espalier
