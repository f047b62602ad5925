// The engine's front: checks requests on the caller's thread and hands them to the loop.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>

#include "cache/cache_events.h"
#include "cache/prefix_cache.h"
#include "engine/constrained/grammar_compiler.h"
#include "engine/engine.h"
#include "engine/executor/executor.h"
#include "engine/images/image_pool.h"
#include "engine/loop.h"
#include "engine/requests/registry.h"
#include "engine/requests/rid_source.h"
#include "engine/requests/sessions.h"
#include "engine/sampling/params.h"
#include "engine/startup/cache_parts.h"
#include "engine/text_io/tokenizer_pool.h"
#include "engine/watch/watchdog.h"
#include "engine/weights/weight_control.h"

namespace espalier {

class EngineImpl final : public Engine {
 public:
  // `config` is effective.
  static Result<std::unique_ptr<Engine>> start(const EngineConfig& config, Parts parts);
  ~EngineImpl() override;

  Result<std::string> submit(GenerateRequest request, EventSink sink) override;
  void abort(std::string_view rid, AbortScope scope) override;
  Result<GrammarReport> compile_grammar(const SamplingParams& params, size_t drawn_states) override;
  void join_branches(JoinRequest request, JoinDone done) override;
  bool can_join_branches() const override;
  Result<std::string> open_session(const SessionOptions& options) override;
  Status close_session(std::string_view id) override;
  Result<std::vector<TokenId>> session_prompt(const SessionParams& params,
                                              std::vector<TokenId> ids) override;
  Result<AdapterInfo> load_adapter(const std::string& name,
                                   const std::filesystem::path& path) override;
  Status unload_adapter(const std::string& name) override;
  std::vector<LoadedAdapter> adapters() const override { return adapters_.list(); }
  WeightControl* weights() override { return weights_.get(); }
  Status flush_cache() override;
  Result<std::vector<StorageReport>> storage(const StorageRequest& request) override;
  Status pause_generation(PauseMode mode) override;
  Status continue_generation() override;
  void drain(Duration timeout) override;

  Result<CacheEvents> read_cache(uint64_t from, size_t num_events_max) const override;
  void read_cache(const CacheNodesQuery& query, CacheNodesDone done) override;
  void profile(ProfileCall call) override { loop_->push(ProfileMessage{std::move(call)}); }
  EngineStats stats() const override;
  const ModelInfo& model_info() const override { return parts_.info; }
  const EngineConfig& config() const override { return config_; }
  const Tokenizer* tokenizer() const override { return parts_.tokenizer.get(); }
  int32_t context_length() const override { return loop_->max_sequence_tokens(); }

 private:
  EngineImpl(const EngineConfig& config, Parts parts, CacheParts cache);
  Result<std::unique_ptr<LiveRequest>> prepare(GenerateRequest& request, EventSink sink);
  Status load_stated_adapters();
  void tokenise(RequestId id, std::string text, bool add_special_tokens);

  const EngineConfig config_;
  Parts parts_;
  SamplingContext sampling_context_;
  std::deque<std::string> mark_texts_;         // what token_bytes_ points to beside the tokenizer's
  std::vector<std::string_view> token_bytes_;  // of the grammars' vocabulary
  int64_t bytes_per_token_max_ = 64;           // of texts that are tokenised
  RidSource rids_;
  std::atomic<uint64_t> num_seeds_{0};
  // The tiers' threads use the executor (of parts_), and the cache reports to the tiers.
  CacheParts cache_parts_;
  RequestRegistry registry_;
  AdapterRegistry adapters_;  // the loop's requests hold leases
  SteadyClock clock_;
  std::unique_ptr<SessionTable> sessions_;
  // Taken down in this order: no tokens after the loop is gone, no loop after its parts are. The
  // loop's grammars are of the compiler's vocabulary, which they share.
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<WeightControl> weights_;     // pushes to loop_
  std::unique_ptr<Watchdog> watchdog_;         // of loop_; null without a limit
  std::unique_ptr<TokenizerPool> tokenizers_;  // null without a tokenizer
  std::unique_ptr<GrammarCompiler> grammars_;  // the same
  std::unique_ptr<ImagePool> images_;          // null where the model or the device takes none
};

}  // namespace espalier
