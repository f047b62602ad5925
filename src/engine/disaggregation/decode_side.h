// The role of a decode server: sequences with a room are loaded from the prefill server that
// computes them, page by page into their own pages while the prefill goes on, with the first token
// behind them. Only what the cache does not have is fetched. A fetch has a thread, and a sequence
// that is loaded has a slot, so there are at most as many as slots, and cancelled ones that end.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/disaggregation/disaggregation.h"
#include "engine/disaggregation/staging_maps.h"
#include "transfer/page_fetch.h"

namespace espalier {

struct DecodeSideConfig {
  transfer::KvShape shape;
  std::string token;
  PageNameScope name_scope;
  int32_t vocab_size = 0;
  Duration connect_timeout = std::chrono::seconds(5);
  Duration silence_max = std::chrono::seconds(10);
  // Threads of cancelled fetches that still connect; beyond, none is started.
  size_t num_ending_max = 256;
};

class DecodeSide final : public Disaggregation, public KvLoader {
 public:
  // Borrows all; `tiers` loads sequences without a room (null: none).
  DecodeSide(const DecodeSideConfig& config, PageCopier& copier, const Clock& clock,
             KvLoader* tiers);
  ~DecodeSide() override;  // cancels and awaits all fetches

  Handoff handoff() const override { return Handoff::kTake; }
  Status begin(const Prompt& prompt) override;
  void on_finish(SequenceId id, const FinishReason& reason) override;
  KvLoader* loader() override { return this; }
  void notify(std::function<void()> load_ended) override;
  DisaggregationStats stats() const override;

  void prefetch(const LoadRequest& request) override;
  void forget(SequenceId id) override;
  int32_t num_available(const LoadRequest& request) override;
  void start(const LoadRequest& request) override;
  void cancel(SequenceId id) override;
  void poll(std::vector<LoadResult>& ended) override;

 private:
  // A prompt whose load the scheduler has not started yet.
  struct Expected {
    std::string host;
    int port = 0;
    transfer::Hello hello;
  };
  class Fetch;
  // What fetches' threads reach: it outlives them.
  struct Signal {
    std::mutex mutex;
    std::function<void()> notify;
  };
  struct Running {
    std::shared_ptr<Fetch> fetch;  // shared with its thread
    std::thread thread;
    bool is_cancelled = false;
  };

  void end(Running& running, std::vector<LoadResult>& ended);
  LoadResult result_of(Fetch& fetch);
  Status check_tokens(const transfer::Fetched& fetched) const;
  void reap(bool all);

  const DecodeSideConfig config_;
  PageCopier& copier_;
  const Clock& clock_;
  KvLoader* const tiers_;
  const std::shared_ptr<Signal> signal_;  // shared with fetches
  std::unordered_map<SequenceId, Expected> expected_;
  StagingMaps maps_;
  std::list<Running> running_;
  std::list<Running> ended_;  // whose threads end by themselves
  mutable std::mutex stats_mutex_;
  DisaggregationStats stats_;
};

}  // namespace espalier
