// Steps hold entries of at most so many adapters, and every adapter has its turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/scheduler/scheduler_fixture.h"

namespace espalier {
namespace {

class AdapterAdmission : public SchedulerTest {
 protected:
  void add_with(AdapterId adapter, SequenceId id) {
    adapter_ = adapter;
    cache_namespace_ = std::to_string(adapter);
    ASSERT_TRUE(add(id, counting(static_cast<TokenId>(id), 6), 5).ok());
  }
  // The most adapters that a step had, until all have ended.
  size_t run_to_end() {
    size_t most = 0;
    while (!next().empty()) {
      std::set<AdapterId> adapters;
      for (const BatchEntry& entry : batches_[(num_launched_ - 1) % 2].entries)
        if (entry.adapter != kNoAdapter) adapters.insert(entry.adapter);
      most = std::max(most, adapters.size());
      commit();
    }
    return most;
  }
};

TEST_F(AdapterAdmission, KeepsToTheBoundAndServesAll) {
  for (const int32_t bound : {0, 1, 2, 5}) {
    start(400, {.max_adapters = bound});
    ends_.clear();
    for (SequenceId id = 1; id <= 20; ++id) add_with(static_cast<AdapterId>(id % 6), id);
    const size_t most = run_to_end();
    EXPECT_EQ(most, bound == 0 ? 5u : static_cast<size_t>(bound));
    EXPECT_EQ(ends_.size(), 20u);
    EXPECT_TRUE(scheduler_->idle());
  }
}

TEST_F(AdapterAdmission, SequencesWithoutAnAdapterNeedNoRoom) {
  start(400, {.max_adapters = 1});
  add_with(1, 1);
  add_with(kNoAdapter, 2);
  add_with(1, 3);
  EXPECT_EQ(next().size(), 3u);
  commit();
  run();
}

}  // namespace
}  // namespace espalier
