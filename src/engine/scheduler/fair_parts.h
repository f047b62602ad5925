// What each share (a tenant or a priority) holds of the slots and pages, against its fair part of
// them: the whole, divided by weight among the shares that hold something or ask for it.
//
// A share may hold more than its part while no other one asks. When one below its part asks, the
// last admitted sequences of those above theirs are preempted; none falls below its part by it. A
// sixteenth above or below counts as the part: shares whose sequences come and go by turns would
// otherwise take slots from each other again and again. Of two equal shares each keeps 46.9 %.
// Made anew for each decision. Not thread-safe. Borrows the running set.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/scheduler/running_set.h"

namespace espalier {

class FairParts {
 public:
  // `asking`: the share that asks for more; may be null. Questions are about it and about shares
  // of sequences that run.
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
  bool exceeds(const WaitingShare* share, const Usage& usage) const {
    const Usage part = part_of(share);
    return usage.num_slots > part.num_slots + slack_of(part.num_slots) ||
           usage.num_pages > part.num_pages + slack_of(part.num_pages);
  }
  static int32_t slack_of(int32_t part) { return part / 16; }
  Usage usage_of(const WaitingShare* share) const;
  Usage part_of(const WaitingShare* share) const;  // at least one slot and one page

  const RunningSet& running_;
  const int32_t num_pages_;
  std::map<const WaitingShare*, Usage> usage_;
  double weight_ = 0;  // of all shares in usage_
};

}  // namespace espalier
