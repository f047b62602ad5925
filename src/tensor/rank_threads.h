// Threads of ranks that compute together in one process: one for each rank but rank 0, whose thread
// is the caller's.
//
// run() is called from one thread at a time. Between runs the threads spin for microseconds, then
// park.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace espalier {

class RankThreads {
 public:
  // at_start: called once on each thread with its rank, before its first run; may be empty.
  // REQUIRES: num_ranks >= 1.
  explicit RankThreads(int32_t num_ranks, std::function<void(int32_t)> at_start = {});
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;
  ~RankThreads();

  int32_t num_ranks() const { return static_cast<int32_t>(threads_.size()) + 1; }

  // Calls fn(rank) for all ranks at the same time and returns when all have returned.
  void run(const std::function<void(int32_t)>& fn);

 private:
  void start();
  void serve(int32_t rank);

  const std::function<void(int32_t)> at_start_;
  const std::function<void(int32_t)>* fn_ = nullptr;  // written before the epoch moves
  bool stopping_ = false;                             // likewise
  std::atomic<uint32_t> epoch_{0}, parked_{0};        // of runs; threads that sleep
  std::atomic<uint32_t> running_{0};                  // threads that have not finished the run
  std::atomic<uint32_t> caller_parked_{0};
  std::vector<std::jthread> threads_;  // last, for they use all of the above
};

}  // namespace espalier
