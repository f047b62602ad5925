// Several replicas of an engine behind one front (data parallelism): each has a scheduler, a cache
// and the whole model, on GPUs or threads of its own. Callers see one engine.
//
//   submit() -> ReplicaPlacement -> replica i: registry, tokenizer threads, loop, executor
//
// - A request runs on one replica from begin to end. A request of a session goes to the session's
//   replica, which its id states; one that continues joined branches to theirs.
// - Ids of requests are unique over all replicas. Seeds of requests that bring none are drawn here,
//   so what a request is answered does not depend on which replica answers it.
// - What concerns an engine as a whole (flush, pause, adapters, grammars) concerns each replica.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/replicas/placement.h"
#include "engine/requests/rid_source.h"

namespace espalier {

class Replicas final : public Engine {
 public:
  // REQUIRES: at least one engine; all of them run the same model.
  Replicas(std::vector<std::unique_ptr<Engine>> engines, LoadBalance method);
  ~Replicas() override;

  Result<std::string> submit(GenerateRequest request, EventSink sink) override;
  void abort(std::string_view rid, AbortScope scope) override;
  Result<GrammarReport> compile_grammar(const SamplingParams& params, size_t drawn_states) override;
  // On one replica, which computes the branches that it lacks.
  void join_branches(JoinRequest request, JoinDone done) override;
  bool can_join_branches() const override { return first().can_join_branches(); }
  Result<std::string> open_session(const SessionOptions& options) override;
  Status close_session(std::string_view id) override;
  Result<std::vector<TokenId>> session_prompt(const SessionParams& params,
                                              std::vector<TokenId> ids) override;
  Result<AdapterInfo> load_adapter(const std::string& name,
                                   const std::filesystem::path& path) override;
  Status unload_adapter(const std::string& name) override;
  // Bytes and requests of all replicas together.
  std::vector<LoadedAdapter> adapters() const override;
  Status flush_cache() override;
  Result<std::vector<StorageReport>> storage(const StorageRequest& request) override;
  Status pause_generation(PauseMode mode) override;
  Status continue_generation() override;
  void drain(Duration timeout) override;

  // These three are of the first replica; replicas() has those of the others.
  Result<CacheEvents> read_cache(uint64_t from, size_t num_events_max) const override;
  void read_cache(const CacheNodesQuery& query, CacheNodesDone done) override;
  void profile(ProfileCall call) override { at(0).profile(std::move(call)); }
  EngineStats stats() const override;  // sums
  std::vector<const Engine*> replicas() const override;
  const ModelInfo& model_info() const override { return first().model_info(); }
  const EngineConfig& config() const override { return config_; }
  const Tokenizer* tokenizer() const override { return first().tokenizer(); }
  int32_t context_length() const override { return context_length_; }

  // The replica that has a request which has not ended; -1: none.
  int32_t replica_of(std::string_view rid) const { return placement_.replica_of(rid); }

 private:
  const Engine& first() const { return *engines_.front(); }
  Engine& at(int32_t replica) const { return *engines_[static_cast<size_t>(replica)]; }

  EngineConfig config_;  // totals of all replicas
  int32_t context_length_ = 0;
  RidSource rids_;
  std::atomic<uint64_t> num_seeds_{0};
  ReplicaPlacement placement_;
  std::vector<std::unique_ptr<Engine>> engines_;  // last: their sinks use all of the above
};

// The sums of counters, sizes and rates.
EngineStats sum_of(const std::vector<EngineStats>& stats);

}  // namespace espalier
