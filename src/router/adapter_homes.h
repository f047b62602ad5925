// Which workers were sent requests of which LoRA adapters lately: those probably have the adapter's
// weights where they compute, so that the next request of it costs no load.
#pragma once

#include <chrono>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "cache/shadow/worker_set.h"

namespace espalier::router {

// Adapters are named by hashes; two with the same one share their workers, which costs a load at
// most. What is remembered is dropped whole when it is old, so a worker is forgotten after one to
// two times kRememberedFor, or earlier where there are very many adapters. Not thread-safe.
class AdapterHomes {
 public:
  static constexpr Duration kRememberedFor = std::chrono::seconds(60);
  static constexpr size_t kAdaptersMax = 4096;  // of each half

  void insert(uint64_t adapter, WorkerSlot worker, TimePoint now) {
    const Duration age = now - recent_since_;
    if (age >= kRememberedFor || recent_.size() >= kAdaptersMax) {
      older_ = age >= 2 * kRememberedFor ? Homes() : std::move(recent_);
      recent_.clear();
      recent_since_ = now;
    }
    recent_[adapter].insert(worker);
  }

  bool contains(uint64_t adapter, WorkerSlot worker, TimePoint now) const {
    const Duration age = now - recent_since_;
    return (age < 2 * kRememberedFor && has(recent_, adapter, worker)) ||
           (age < kRememberedFor && has(older_, adapter, worker));
  }

  void forget_worker(WorkerSlot worker) {
    for (Homes* const homes : {&recent_, &older_})
      for (auto& [adapter, workers] : *homes) workers.erase(worker);
  }

 private:
  using Homes = std::unordered_map<uint64_t, WorkerSet>;
  static bool has(const Homes& homes, uint64_t adapter, WorkerSlot worker) {
    const auto found = homes.find(adapter);
    return found != homes.end() && found->second.contains(worker);
  }

  Homes recent_, older_;
  TimePoint recent_since_{};
};

}  // namespace espalier::router
