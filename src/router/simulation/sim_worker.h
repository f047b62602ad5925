// A worker of the simulated fleet: the time that its requests take, and the prefixes that it has in
// its cache, which is the radix tree that real workers have.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <vector>

#include "base/clock.h"
#include "cache/radix_tree.h"

namespace espalier::router {

// Tokens are counted in units of 16, which is a block of the router's keys and a page of the cache.
inline constexpr int64_t kTokensPerUnit = 16;

// Defaults: an 8 B model in bf16 on one H200 (bench/README.md, bench/peers), measured.
struct WorkerSpeed {
  double prefill_tokens_per_second = 44800;
  // Seconds of a decode step of n sequences: a line through the times of 1 and of 256, which is
  // within a tenth of those between.
  double step_seconds_base = 0.0042, step_seconds_per_sequence = 0.0000518;
  int64_t cache_units = 24000;  // 384,000 tokens: 47 GiB of keys and values

  double step_seconds(size_t n) const {
    return step_seconds_base + step_seconds_per_sequence * static_cast<double>(n);
  }
};

// One request to a worker. Filled by who sends it; the worker fills the rest.
struct SimRequest {
  uint32_t id = 0;
  std::vector<int32_t> prompt;  // units
  std::vector<int32_t> answer;  // units; cached when it is complete
  int64_t num_cached = 0;       // units of the prompt that the worker had
  bool has_begun = false;       // its first token is out
  double ends_at = 0;           // in the worker's tokens a sequence
  RadixNode* node = nullptr;    // its lock
};

// Prefills run one after the other, in order of arrival; decodes run all at once and share the
// steps. While there are both, each gets half of the time, as chunked prefill gives it. Not
// thread-safe; times never go back.
class SimWorker {
 public:
  explicit SimWorker(const WorkerSpeed& speed);

  void receive(std::unique_ptr<SimRequest> request, TimePoint now);
  // When the next request changes its state, if nothing comes before; nothing when it is idle.
  std::optional<TimePoint> next_event() const;

  struct Progress {
    SimRequest* begun = nullptr;        // has its first token now
    std::unique_ptr<SimRequest> ended;  // is complete
  };
  Progress advance(TimePoint now);  // to next_event(). REQUIRES that it is due
  // The worker dies: its cache is gone, and its requests are returned.
  std::vector<std::unique_ptr<SimRequest>> die(TimePoint now);

  double busy_seconds() const { return busy_seconds_; }
  double request_seconds() const { return request_seconds_; }  // of all requests, added up
  size_t num_requests() const { return waiting_.size() + decoding_.size(); }
  void check_invariants() const;

 private:
  struct EndsLater {
    bool operator()(const std::unique_ptr<SimRequest>& a,
                    const std::unique_ptr<SimRequest>& b) const {
      return a->ends_at != b->ends_at ? a->ends_at > b->ends_at : a->id > b->id;
    }
  };

  void begin_prefill();
  void catch_up(TimePoint now);
  double decode_rate() const;   // tokens a second, of each sequence
  double prefill_rate() const;  // of the first waiting request, in its seconds of work
  void cache(SimRequest& request, std::span<const int32_t> units);
  void make_room();

  const WorkerSpeed speed_;
  std::unique_ptr<RadixTree> tree_;
  std::deque<std::unique_ptr<SimRequest>> waiting_;    // the first one is in prefill
  double prefill_left_ = 0;                            // seconds of work, of that one
  std::vector<std::unique_ptr<SimRequest>> decoding_;  // a heap, the first to end in front
  double decoded_ = 0;  // tokens that a sequence which has always been there would have
  TimePoint at_{};      // up to which all is counted
  double busy_seconds_ = 0, request_seconds_ = 0;
};

}  // namespace espalier::router
