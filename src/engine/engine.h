// The engine: what the server is built on and what a program can link. Text or ids in, events out.
//
//   ESP_ASSIGN_OR_RETURN(auto engine, Engine::create(config));
//   ESP_ASSIGN_OR_RETURN(auto answer, engine->generate({.text = "Once", .sampling = {...}}));
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cache/prefix_cache.h"
#include "engine/config.h"
#include "engine/disaggregation/stats.h"
#include "engine/requests/adapters.h"
#include "engine/requests/join.h"
#include "engine/requests/request.h"
#include "engine/requests/score.h"
#include "engine/tiers/kv_tiers.h"
#include "engine/tiers/storage_control.h"
#include "engine/watch/step_profile.h"
#include "models/expert_counts.h"
#include "models/image_encoder.h"
#include "models/model.h"
#include "models/model_weights.h"
#include "seams/cache_event.h"
#include "seams/cache_nodes.h"
#include "seams/draft_counts.h"
#include "tensor/work_pool.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier {

class Executor;
class WeightControl;

// Makes an engine's tiers; tests put stores of their own here.
using MakeTiers = std::function<Result<std::unique_ptr<KvTiers>>(
    const EngineConfig& config, const ModelInfo& info, const PageNameScope& name_scope,
    Executor& executor, const Clock& clock)>;

// A snapshot of what the engine is doing, in groups. Counters only grow.
struct EngineStats {
  struct Requests {
    int32_t num_running = 0, num_waiting = 0;   // samples
    int64_t num_total = 0;                      // accepted, each with its n samples
    int64_t num_finished = 0, num_aborted = 0;  // samples; finished: by error, too
    int64_t num_failed = 0;                     // of those finished: by error
    int64_t num_not_finite = 0;                 // of those failed: the model gave NaN or infinity
    int64_t num_retractions = 0;
  };
  struct Tokens {
    int64_t prompt = 0;
    int64_t cached = 0;                           // of the prompts: hit rate = cached / prompt
    int64_t cached_host = 0, cached_storage = 0;  // of those cached: loaded from that tier
    int64_t generated = 0;
    double generated_per_second = 0;  // over the last few seconds
  };
  struct Steps {
    int64_t num_steps = 0, num_entries = 0;  // average batch = entries / steps
    double forward_seconds = 0;
    double host_seconds = 0;  // of scheduling, waits excluded
    int64_t num_masks = 0;    // of constrained entries
    double mask_seconds = 0;  // of the scheduler's thread
    // That took longer than soft_watchdog_timeout and watchdog_timeout.
    int64_t num_slow = 0, num_very_slow = 0;
  };
  struct Speculation {
    int64_t forced_tokens = 0, forwards_saved = 0;  // jump-forward: see RequestStats
    int64_t drafted_tokens = 0, accepted_tokens = 0;
    int64_t num_verified = 0;             // entries with draft tokens
    std::vector<DraftCounts> by_drafter;  // the same by Drafter, of Engine::stats() alone

    // Tokens of an entry that verified draft tokens, its own too; 0 where there was none.
    double accept_length() const {
      return num_verified == 0
                 ? 0.0
                 : 1 + static_cast<double>(accepted_tokens) / static_cast<double>(num_verified);
    }
  };
  struct Grammars {
    int64_t num_requested = 0, num_cache_hits = 0;  // requests with a grammar
    int64_t num_cancelled = 0, num_compiled = 0;
    double compile_seconds = 0;
    int32_t num_waiting = 0;               // being compiled
    int64_t num_kept = 0, kept_bytes = 0;  // compiled, and the memory that they hold
  };
  struct Images {
    int64_t num_total = 0;    // pictures that requests brought
    int64_t num_encoded = 0;  // the rows of the others were kept
    double encode_seconds = 0;
    int64_t row_bytes = 0;  // of encoders' outputs, in use and kept
  };
  struct Sessions {
    int32_t num_open = 0;
    int64_t bytes = 0;  // of memory, that these hold
  };
  struct CacheEvents {
    int64_t num_total = 0, num_overwritten = 0;
  };
  struct Memory {
    int32_t kv_tokens = 0;  // that the pool holds
    int32_t kv_tokens_running = 0, kv_tokens_cached = 0;
    int64_t weight_bytes = 0, kv_bytes = 0;
    int64_t scratch_bytes = 0, graph_bytes = 0;  // of a GPU; graphs: reserved for
  };

  Requests requests;
  Tokens tokens;
  Steps steps;
  Speculation speculation;
  Grammars grammars;
  Images images;
  Sessions sessions;
  CacheEvents cache_events;
  ExpertTotals experts;  // of Engine::stats() alone; empty where they are not counted
  Memory memory;
  KvTiersStats tiers;  // without stores where there are no tiers
  DisaggregationStats disaggregation;

  double cache_hit_rate() const {
    return tokens.prompt == 0
               ? 0.0
               : static_cast<double>(tokens.cached) / static_cast<double>(tokens.prompt);
  }
};

// The whole answer of one sample, gathered from its events.
struct GenerateResult {
  std::string rid;
  std::string text;
  std::vector<TokenId> output_ids;
  std::vector<float> embedding;      // of a request with `embed`
  std::vector<float> hidden_states;  // as TokenEvent's, of all tokens but the last
  FinishReason finish;
  std::vector<TokenLogprobs> input_logprobs, output_logprobs;
  std::optional<TokenLogprobs> next_logprobs;  // as TokenEvent's, as is:
  std::vector<int32_t> entries_by_accepted;
  std::optional<BeamScore> beam;
  RequestStats stats;
};

// A text's vector: its embedding, or the scores of its classes.
struct EncodeResult {
  std::string rid;
  std::vector<float> embedding;  // [ModelInfo::pooled->size], or `dimensions`
  RequestStats stats;
};

// What a grammar has been compiled to.
struct GrammarReport {
  double seconds = 0;  // that this call waited for it
  size_t num_rules = 0, num_states = 0, num_edges = 0, num_byte_classes = 0;
  std::string forced;  // what every text of it begins with
  // Where a picture was requested:
  std::vector<std::string> rule_names;
  std::string svg;  // of its automata (grammar/drawing.h)
};

// Thread-safe. Destroying it aborts what runs and joins its threads.
class Engine {
 public:
  // Loads, sizes the pool, starts the threads. make_cache: measurements bring a prefix cache of
  // their own, which restricts what is reused.
  static Result<std::unique_ptr<Engine>> create(const EngineConfig& config,
                                                MakePrefixCache make_cache = make_prefix_cache);

  // The parts given by the caller: tests put a null executor or a scripted tokenizer here.
  // `info` describes what the executor runs. `tokenizer` may be null (skip_tokenizer_init).
  struct Parts {
    std::unique_ptr<Tokenizer> tokenizer;
    std::unique_ptr<Executor> executor;
    ModelInfo info;
    // Of a model that reads pictures; without, requests with pictures are refused. The pool
    // computes for the encoder; null: it has its own.
    std::unique_ptr<WorkPool> image_work;
    std::unique_ptr<ImageEncoder> image_encoder;
    GenerationDefaults defaults;
    MakePrefixCache make_cache = make_prefix_cache;
    MakeTiers make_tiers;                         // null: what the configuration names
    std::unique_ptr<ExpertCounts> expert_counts;  // null: the model does not count
    std::unique_ptr<ModelWeights> weights;  // of the executor's model; null: they stay as they are
  };
  static Result<std::unique_ptr<Engine>> create(const EngineConfig& config, Parts parts);
  virtual ~Engine();

  // Validates and enqueues. The sink gets the events; after a failure here it gets none. With n > 1
  // each sample has its own events (TokenEvent::index) and its own terminal one. Returns the rid.
  // Tokenising happens on the tokenizer threads; what fails there ends in a terminal kError event,
  // and so does a prompt that is too long.
  virtual Result<std::string> submit(GenerateRequest request, EventSink sink) = 0;

  // Ends requests; their samples end with kAbort once the step in flight is done. Unknown ids are
  // no error. kExact is for a client that left (its "a" must not end another's "ab").
  enum class AbortScope { kExact, kPrefix, kAll };
  virtual void abort(std::string_view rid, AbortScope scope) = 0;

  // Waits for every sample. The first failure wins; samples in order of index.
  Result<std::vector<GenerateResult>> generate_all(GenerateRequest request);
  Result<GenerateResult> generate(GenerateRequest request);  // the first sample

  // Compiles the grammar in `params` and waits for it; requests that bring it find it then. What is
  // wrong with it, or not supported, is said as a request's failure would say it.
  // drawn_states: above 0, draws its automata with at most so many states of each rule.
  virtual Result<GrammarReport> compile_grammar(const SamplingParams& params,
                                                size_t drawn_states = 0);

  // Puts branches that are cached behind each other (join.h). `done` is called once, on the
  // scheduler's thread, and must not block. kFailedPrecondition where one is not cached to its end:
  // run its prefix and it with max_new_tokens 0 first; kUnimplemented where this engine's cache
  // cannot (a GPU's, sliding windows, pages of several tokens, no radix cache), and
  // kResourceExhausted where it has no room.
  virtual void join_branches(JoinRequest request, JoinDone done);
  virtual bool can_join_branches() const { return false; }

  // Sessions: requests with GenerateRequest::session continue each other's tokens. Failures are
  // those of SessionTable (sessions.h).
  virtual Result<std::string> open_session(const SessionOptions& options);  // its id
  virtual Status close_session(std::string_view id);
  // The whole prompt of a request with these parameters that brings `ids`.
  virtual Result<std::vector<TokenId>> session_prompt(const SessionParams& params,
                                                      std::vector<TokenId> ids);

  // LoRA adapters: requests name them (GenerateRequest::lora). Failures are those of
  // AdapterRegistry (adapters.h); kFailedPrecondition without enable_lora. Both block: loading
  // reads files, unloading waits for the requests that use the adapter.
  virtual Result<AdapterInfo> load_adapter(const std::string& name,
                                           const std::filesystem::path& path);
  virtual Status unload_adapter(const std::string& name);
  virtual std::vector<LoadedAdapter> adapters() const { return {}; }

  // Replaces the weights while the engine serves; null where they cannot be.
  virtual WeightControl* weights() { return nullptr; }

  // Drops all that is cached on the device and in the host's memory; what storage has stays.
  // kFailedPrecondition while requests run or wait.
  virtual Status flush_cache() = 0;
  // Storage of the tiers, shown or changed while requests run. Blocks; failures are those of
  // storage_control.h.
  virtual Result<std::vector<StorageReport>> storage(const StorageRequest& request);
  // Stops generating until continue_generation(), once the step in flight is done; new requests are
  // taken in and wait. kAbort ends all that there are; kRetract sends what runs back to the queue,
  // so that its memory can be flushed; kInPlace leaves everything where it is.
  enum class PauseMode { kAbort, kRetract, kInPlace };
  virtual Status pause_generation(PauseMode mode);
  virtual Status continue_generation();
  // Refuses new requests with kUnavailable and waits until none is left or `timeout` has passed
  // (then the rest is aborted).
  virtual void drain(Duration timeout) = 0;

  // What the cache has come to hold and given up, from event number `from` on (0 is 1), at most so
  // many. kFailedPrecondition where num_cache_events is 0.
  virtual Result<CacheEvents> read_cache(uint64_t from, size_t num_events_max) const;

  // The nodes of the prefix cache's radix tree, a few at a time. `done` is called once, on the
  // scheduler's thread between two steps, and must not block. Callers keep one query under way, so
  // that a step waits for the work of one.
  virtual void read_cache(const CacheNodesQuery& query, CacheNodesDone done);

  // Starts or stops a profile (watch/step_profile.h). Returns at once.
  virtual void profile(ProfileCall call);

  virtual EngineStats stats() const = 0;  // of all replicas together
  // The engines behind a front, of which each has figures and a cache of its own; else this one.
  virtual std::vector<const Engine*> replicas() const { return {this}; }
  virtual const ModelInfo& model_info() const = 0;
  virtual const EngineConfig& config() const = 0;  // effective
  virtual const Tokenizer* tokenizer() const = 0;
  // Tokens that prompt and output share: the longest prompt has one less.
  virtual int32_t context_length() const = 0;

 protected:
  Engine() = default;
};

// The vector of the request's text; sets `embed`. kFailedPrecondition for a model that generates.
Result<EncodeResult> encode(Engine& engine, GenerateRequest request);

// See score.h: of each item one number for each label. All items run at once.
Result<std::vector<std::vector<float>>> score(Engine& engine, const ScoreRequest& request);

// The longest prompt, in tokens.
inline int32_t max_input_len(const Engine& engine) { return engine.context_length() - 1; }

}  // namespace espalier
