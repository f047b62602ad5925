// The batches of one worker's events in their order: some may be lost on the way, others come
// twice, and the worker may have started anew.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace espalier::router {

// Batches have numbers 0, 1, 2 ... They come live; where one is missing, those that the worker
// keeps are asked for, and what comes live meanwhile waits. What the worker keeps no more is
// lost: then what was known of its cache is void, for it may have been evicted. A number that is
// not higher than the last one shows another process; one that has passed its predecessor's before
// any batch of it arrived is not noticed here, but by the worker's health checks. Not thread-safe.
class KvEventOrder {
 public:
  struct Sink {
    std::function<void(std::string_view batch)> apply;
    std::function<void()> clear;                // what was applied is void
    std::function<void(uint64_t from)> replay;  // ask for batches from a number on; may be empty
  };
  static constexpr size_t kWaitingMax = 10000;
  static constexpr Duration kReplayTimeout = std::chrono::seconds(5);

  explicit KvEventOrder(Sink sink) : sink_(std::move(sink)) {}

  void begin(TimePoint now);  // once: asks for all that there is
  void on_live(uint64_t number, std::string batch, TimePoint now);
  void on_replayed(uint64_t number, std::string_view batch);
  void on_replay_end();
  void tick(TimePoint now);  // gives up on a replay that does not end

  int64_t num_lost() const { return num_lost_; }  // times that batches were lost
  bool is_waiting() const { return replay_began_.has_value(); }

 private:
  void ask(TimePoint now);
  void take(uint64_t number, std::string_view batch);

  const Sink sink_;
  uint64_t next_ = 0;                    // the number of the batch that is applied next
  std::optional<uint64_t> newest_live_;  // so that a number that is not higher shows a restart
  std::optional<TimePoint> replay_began_;
  struct Waiting {
    uint64_t number = 0;
    std::string batch;
  };
  std::deque<Waiting> waiting_;
  int64_t num_lost_ = 0;
};

}  // namespace espalier::router
