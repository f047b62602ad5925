// What /start_expert_distribution_record and its companions record: the tokens of each expert in a
// span of time, as differences of the engine's counts, which only grow.
#pragma once

#include <mutex>

#include "base/status.h"
#include "engine/engine.h"

namespace espalier::server {

// Thread-safe. `now` is what the engine has counted so far.
class ExpertRecord {
 public:
  struct Dump {
    ExpertTotals totals;
    bool is_recording = false;  // and it goes on, from zeros
  };

  // Begins from zeros, also where a record is under way.
  void start(ExpertTotals now);
  // kFailedPrecondition where none is under way.
  Status stop(const ExpertTotals& now);
  // What was recorded, which is then forgotten. kFailedPrecondition where there is nothing.
  Result<Dump> dump(const ExpertTotals& now);

 private:
  std::mutex mutex_;
  bool is_recording_ = false, has_record_ = false;
  ExpertTotals begin_;     // while it records
  ExpertTotals recorded_;  // when it has stopped
};

}  // namespace espalier::server
