// Settings of one engine, as a user states them and as they take effect.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "cache/kv_pool.h"
#include "cache/prefix_cache.h"
#include "engine/startup/system_info.h"
#include "models/model.h"
#include "seams/kv_view.h"
#include "tiers/redis_server.h"
#include "tiers/s3_server.h"

namespace espalier {

// The settings in groups. Fields have the names of their flags. 0 (or empty) means: chosen from the
// model and the system. resolve() makes the effective ones, which server_info shows.
struct ModelSettings {
  std::filesystem::path model_path;
  std::filesystem::path tokenizer_path;  // empty: model_path
  std::string dtype = "auto";
  LoadFormat load_format = LoadFormat::kAuto;
  bool skip_tokenizer_init = false;      // ids in, ids out
  bool is_embedding = false;             // vectors of texts instead of what follows them
  std::string json_model_override_args;  // a JSON object merged into config.json
  int32_t context_length = 0;            // tokens that prompt and output share; 0: the model's
  int32_t tokenizer_threads = 0;         // that turn text into tokens
  ReportLoaded load_progress;            // receives the progress of loading; null: the log has it
};

struct ComputeSettings {
  // auto (a GPU where one can be used, else the CPU), cpu, cuda, or cuda:N for the GPU N.
  std::string device = "auto";
  int32_t base_gpu_id = 0;  // the GPU of auto and cuda, by its index
  int32_t num_threads = 0;  // compute threads of the CPU: at most one for each processor
  // Ranks that divide the model among themselves (tensor parallelism), on the CPU: each has a part
  // of the heads, of the features and of the threads.
  int32_t tp_size = 1;
  bool disable_custom_all_reduce = false;  // ranks on GPUs exchange by NCCL
  // Stages of a pipeline: each has some of the layers, and tp_size ranks of its own. And the tokens
  // of their micro-batches, as far as a step has so many; 0: chosen.
  int32_t pp_size = 1;
  int32_t pp_micro_batch_tokens = 0;
  // Groups of these ranks: each has whole experts, which the ranks of a group divide.
  int32_t ep_size = 1;
  // Data-parallel attention: each of these ranks has all of attention, for requests of its own, and
  // keys and values of these alone; MLPs and experts stay divided.
  bool enable_dp_attention = false;
  int32_t attention_ranks() const { return enable_dp_attention ? tp_size : 1; }
  // Slots of experts in each layer beyond one for each: busy experts lie in several groups.
  int32_t ep_num_redundant_experts = 0;
  // "trivial", or a JSON file with 'physical_to_logical_map' or 'logical_count'.
  std::string init_expert_location = "trivial";
  // Experts change places while the engine runs, by the tokens that they got in so many steps.
  bool enable_eplb = false;
  int32_t eplb_rebalance_num_iterations = 1000;
  int32_t eplb_rebalance_layers_per_chunk = 0;            // that move between two steps; 0: all
  double eplb_min_rebalancing_utilization_threshold = 1;  // mean of groups by the busiest one
  // "stat": the tokens of each expert are counted; else "none".
  std::string expert_distribution_recorder_mode = "none";
  // Replicas of the engine, each with tp_size ranks of its own, behind one front (replicas/), and
  // how requests are divided among them: auto, round_robin, shortest_queue or cache_aware.
  int32_t dp_size = 1;
  std::string load_balance_method = "auto";
  int32_t first_cpu = 0;  // of the usable ones, for compute threads: replicas have their own
  bool disable_cuda_graph = false;         // launch every kernel of a decode step by itself
  bool disable_cascade_attention = false;  // on a GPU, read for each request what several share
  // Answers are the same bits whatever runs beside them, however prompts are cut and whatever is
  // cached, on a GPU too (on the CPU they always are).
  bool enable_deterministic_inference = false;
  bool disable_overlap_schedule = false;
  // Requests may ask for hidden states (GenerateRequest::return_hidden_states).
  bool enable_return_hidden_states = false;
  // On a GPU: the host keeps pinned memory for a copy of the weights, from which released memory
  // (WeightControl) is filled again. Else they are read from their files again.
  bool enable_weights_cpu_backup = false;
};

struct CacheSettings {
  double mem_fraction_static = 0;       // of the memory that is free at start, for weights and KV
  std::string kv_cache_dtype = "auto";  // auto (float32 for float32 weights, else bfloat16), ...
  int32_t max_total_tokens = 0;         // KV pool, tokens
  int32_t page_size = 1;                // tokens
  std::string radix_eviction_policy = "lru";  // lru, lfu, fifo, mru, slru or priority
  bool disable_radix_cache = false;
  // How many of the last cache events are kept for subscribers; 0: no events are made.
  int32_t num_cache_events = 0;
  // Layers that see a sliding window keep their keys and values in pages of their own, so many for
  // each of the others'. disable_hybrid_swa_memory: one map of pages for all layers.
  double swa_full_tokens_ratio = 0.8;
  bool disable_hybrid_swa_memory = false;
  // Made by resolve(): tokens of the window's pages (0: one map), and how far before its own a
  // token reads there.
  int32_t max_window_tokens = 0;
  int32_t window_tokens_read = 0;
  // Bytes of memory that open sessions hold; 0: a thirty-second of what is available, from 64 MiB
  // to 1 GiB.
  int64_t max_session_bytes = 0;
};

// Tiers below the device for cached prefixes (engine/tiers): the host's memory, of a size in GB
// or in multiples of the device's KV memory (both 0: none), and storage: none, file, a folder
// of hicache_disk_size_gb (empty path: espalier/kv in the user's cache folder), a remote store
// (redis or s3), or the folder before one of them.
struct TierSettings {
  bool enable_hierarchical_cache = false;
  double hicache_size_gb = 0;
  double hicache_ratio = 0;
  std::string hicache_write_policy = "write_through";  // write_through_selective, write_back
  std::string hicache_storage_backend = "none";        // file, redis, s3, file,redis or file,s3
  std::string hicache_storage_prefetch_policy = "timeout";  // best_effort, wait_complete
  RedisServer redis;
  S3Server s3;
  std::filesystem::path hicache_storage_path;
  double hicache_disk_size_gb = 16;
};

// Prefill and decode on different servers (engine/disaggregation): what this one does (prefill,
// decode, or null: both), and where a prefill server listens for decode servers (empty: 127.0.0.1).
// Both have the same token. A prompt waits `timeout` seconds for the other server.
struct DisaggregationSettings {
  std::string disaggregation_mode = "null";
  // auto: through staging memory where both servers can, else over TCP; tcp.
  std::string disaggregation_transfer_backend = "auto";
  std::string disaggregation_host;
  int32_t disaggregation_bootstrap_port = 8998;
  std::string disaggregation_token;
  double disaggregation_timeout = 300;
  int64_t disaggregation_staging_bytes = 0;  // of a prefill server; 0: chosen
};

struct ScheduleSettings {
  int32_t max_running_requests = 0;  // samples at once
  // Unfinished samples may be max_running_requests and this many more; beyond that a request ends
  // in kResourceExhausted.
  int32_t max_queued_requests = 0;
  int32_t chunked_prefill_size = 0;  // tokens of prefill in one step; -1: no limit
  int32_t max_prefill_tokens = 0;    // the same, the smaller of the two counts
  // lpm, dfs-weight, fcfs, lof, random or priority. Requests with a priority are refused unless
  // this or fair_share is "priority".
  std::string schedule_policy = "lpm";
  double schedule_conservativeness = 1.0;
  std::string fair_share = "none";       // none, tenant (extra_key) or priority
  int32_t schedule_bypass_bound = 1024;  // later requests admitted before a waiting one, at most
  // With schedule_policy "priority": a waiting request replaces a running one with a priority so
  // much lower.
  int32_t priority_scheduling_preemption_threshold = 10;
  bool disable_priority_preemption = false;
  // Prompts are cut so that steps with running requests take about so long at most; 0: no bound.
  double max_inter_token_latency_ms = 0;
  // The same, so that they take so many times as long as without prompts at most; 0: no bound;
  // below 0: no bound on GPUs, and on CPUs from 2 to 8 by how many wait for their prompts.
  double mixed_step_ratio = -1;
  double mixed_step_ratio_most = 0;  // chosen
};

struct SamplingSettings {
  uint64_t random_seed = 0;  // of requests without their own (0: drawn), and of dummy weights
  std::string sampling_defaults =
      "model";  // "model": generation_config.json overlays; "openai": not
  // Of which logits output log-probabilities are: processed (after penalties, bias, mask and
  // temperature), original (without the temperature) or raw.
  std::string logprobs_mode = "processed";
  // A shared library with logit processors (espalier/logit_processor.h); empty: none.
  std::filesystem::path logit_processor_library;
};

struct GrammarSettings {
  std::string grammar_backend = "espalier";  // or none: requests with a grammar are refused
  bool constrained_json_disable_any_whitespace = false;  // compact where a request does not say
  bool disable_jump_forward = false;                     // sample also what a grammar forces
  bool disable_draft_tokens = false;                     // no draft tokens under a grammar
  int32_t grammar_threads = 2;                           // that compile grammars
  int32_t grammar_mask_threads = 0;    // that fill the masks of a step, the scheduler's among them
  double grammar_compile_seconds = 5;  // at most, for one
  // Bytes of the compiled grammars that are kept; 0: a sixteenth of the memory that is available,
  // from 64 MiB to 2 GiB.
  int64_t grammar_cache_bytes = 0;
};

struct SpeculationSettings {
  // none; or draft tokens: NGRAM from a request's own text and recent answers of its namespace,
  // RADIX from what other requests said behind the same prefix, COMBINED from whichever of these
  // was right of late, EAGLE3 from a draft head, NEXTN from the layer for multi-token prediction in
  // the model's checkpoint, STANDALONE from a draft model of the same vocabulary; auto: EAGLE3 on
  // the CPU where the model's folder has a head, else none. Changes no answer.
  std::string speculative_algorithm = "none";
  // Of EAGLE3, NEXTN and STANDALONE: the folder of the draft head (empty: `draft` in the model's,
  // or the model's) or of the draft model, and how many tokens it proposes in a row at most.
  std::filesystem::path speculative_draft_model_path;
  int32_t speculative_num_steps = 5;
  int32_t speculative_num_draft_tokens = 8;      // of one request in one step, at most
  int32_t speculative_ngram_capacity = 1 << 18;  // tokens of recent answers that are kept
  // False: what draft tokens cost is assumed to be little, so that tests verify some on any device.
  bool measures_cost = true;

  // Chains come from the executor: from a head, or from a draft model.
  bool has_draft_head() const {
    return speculative_algorithm == "EAGLE3" || speculative_algorithm == "NEXTN" ||
           has_draft_model();
  }
  bool has_draft_model() const { return speculative_algorithm == "STANDALONE"; }
};

// Of models that read pictures: threads that read and decode them (0: 4, beside a GPU up to 16),
// bytes of encoders' outputs that requests use or that are kept for later ones (0: a sixteenth of
// the memory that is available, from 256 MiB to 4 GiB), pictures of a request, bytes and pixels of
// one, and seconds of a video's file.
struct ImageSettings {
  int32_t image_threads = 0;  // 0: chosen
  int64_t image_cache_bytes = 0;
  int32_t max_images_per_request = 16;
  int64_t max_image_bytes = int64_t{32} << 20;
  int64_t max_image_pixels = 64'000'000;
  double max_video_seconds = 600;
};

// Sounds that a model of speech reads: bytes of a file, and seconds of what it decodes to.
struct AudioSettings {
  int64_t max_audio_bytes = int64_t{64} << 20;
  double max_audio_seconds = 3600;
};

// Vectors that requests may have added to hidden states (docs/insides.md): NAME=PATH.
struct ControlSettings {
  std::vector<std::string> control_vectors;
};

// LoRA adapters. lora_paths: NAME=PATH, or a path whose last part is the name; they
// are loaded at the start and imply enable_lora.
struct LoraSettings {
  bool enable_lora = false;
  std::vector<std::string> lora_paths;
  int32_t max_loras_per_batch = 8;  // adapters of running requests
  int32_t max_lora_rank = 0;        // of an adapter; 0: any
  int32_t max_loaded_loras = 0;     // adapters; 0: any number
  // Bytes of memory that adapters hold together; 0: a quarter of what is available, on a GPU, where
  // they are reserved at the start, a sixteenth; at least 64 MiB.
  int64_t max_lora_bytes = 0;
};

// Reports of steps that take long, in seconds; 0: none. Nothing is ended.
struct WatchSettings {
  double watchdog_timeout = 300;
  double soft_watchdog_timeout = 0;
};

struct EngineConfig {
  ModelSettings model;
  ComputeSettings compute;
  CacheSettings cache;
  TierSettings tiers;
  DisaggregationSettings disaggregation;
  ScheduleSettings schedule;
  SamplingSettings sampling;
  GrammarSettings grammar;
  SpeculationSettings speculation;
  ImageSettings images;
  AudioSettings audio;
  ControlSettings control;
  LoraSettings lora;
  WatchSettings watch;
  bool check_invariants = false;  // each time the engine falls idle: for tests
};

// Nothing left to choose. Fails for settings that contradict each other, the model or the system,
// and says what to change. Pure but for a random_seed of 0, which is drawn.
//   system: what was free before the weights were loaded.
Result<EngineConfig> resolve(const EngineConfig& user, const ModelInfo& info,
                             const SystemInfo& system);

// What load_model needs of it.
ModelLoadOptions model_load_options(const EngineConfig& config);

// What the KV cache of an effective configuration takes.
KvPoolConfig kv_pool_config(const EngineConfig& config, const ModelInfo& info, KvType type);
int64_t kv_bytes(const EngineConfig& config, const ModelInfo& info, KvType type);

// The element type of the KV cache. kInvalidArgument for a kv_cache_dtype that is not known.
Result<KvType> resolve_kv_type(const EngineConfig& config, const ModelInfo& info);

}  // namespace espalier
