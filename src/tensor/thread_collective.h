// Ranks that are threads of one process and read each other's memory.
//
// Each of rank(0) to rank(n - 1) is used by one thread; the group outlives their use. A call blocks
// until all ranks have made it, so a rank that stops calling stops the others. A call allocates
// nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/collective.h"
#include "tensor/rank_group.h"
#include "tensor/work_pool.h"

namespace espalier {

class ThreadCollectives final : public RankGroup {
 public:
  // threads: of each rank, for long sums; borrowed, and idle while the rank calls. Null: the rank's
  // own thread alone. REQUIRES: at least one rank.
  explicit ThreadCollectives(const std::vector<WorkPool*>& threads);
  ~ThreadCollectives() override;
  ThreadCollectives(const ThreadCollectives&) = delete;
  ThreadCollectives& operator=(const ThreadCollectives&) = delete;

  int32_t size() const override { return static_cast<int32_t>(ranks_.size()); }
  Collective& rank(int32_t rank) override;

 private:
  class Rank;
  // Returns when all ranks have called it as often.
  void meet();

  alignas(64) std::atomic<uint32_t> arrived_{0};  // ranks that are at the meeting
  alignas(64) std::atomic<uint32_t> meeting_{0};  // its number; moves when all are there
  std::atomic<uint32_t> parked_{0};
  // What each rank has published for the call that runs.
  std::vector<float*> data_;
  std::vector<Collective::Gather> gathers_;
  std::vector<Collective::RankParts> parts_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace espalier
