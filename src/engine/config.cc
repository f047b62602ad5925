#include "engine/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "cache/eviction.h"
#include "engine/disaggregation/disaggregation.h"
#include "engine/replicas/replica_choice.h"
#include "engine/sampling/params.h"
#include "engine/scheduler/scheduler.h"
#include "engine/speculation/head_drafter.h"
#include "engine/startup/device.h"
#include "engine/tiers/start_tiers.h"
#include "kernels/attention/op.h"

namespace espalier {
namespace {

constexpr int32_t kDefaultMaxRunning = 256;
constexpr int32_t kDefaultMaxQueued = 4096;

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

Status check_not_negative(std::string_view field, int64_t value) {
  if (value >= 0) return {};
  return invalid_argument("{} is {}, but must be at least 0 (0: chosen)", field, value);
}

// What does not go with stages of a pipeline.
Status check_stages(const EngineConfig& c) {
  if (c.compute.pp_size < 1)
    return invalid_argument("pp_size is {}, but must be at least 1", c.compute.pp_size);
  ESP_RETURN_IF_ERROR(check_not_negative("pp_micro_batch_tokens", c.compute.pp_micro_batch_tokens));
  if (c.compute.pp_size == 1) return {};
  const auto refuse = [](std::string_view what, std::string_view flag) {
    return error(StatusCode::kUnimplemented,
                 "{} not divided into stages of a pipeline: leave {} or --pp-size out", what, flag);
  };
  if (c.speculation.has_draft_head() && !c.speculation.has_draft_model())
    return refuse("draft heads are",
                  "--speculative-algorithm " + c.speculation.speculative_algorithm);
  if (c.lora.enable_lora) return refuse("adapters are", "--enable-lora");
  if (c.compute.expert_distribution_recorder_mode != "none")
    return refuse("counts of experts' tokens are", "--expert-distribution-recorder-mode");
  return {};
}

// What does not go with data-parallel attention.
Status check_attention_ranks(const EngineConfig& c) {
  if (!c.compute.enable_dp_attention) return {};
  if (c.compute.tp_size == 1)
    return invalid_argument(
        "enable_dp_attention is set, but tp_size is 1, and there are no ranks to have requests of "
        "their own: set --tp-size above 1, or leave --enable-dp-attention out");
  if (c.compute.dp_size != 1)
    return invalid_argument(
        "dp_size is {} with enable_dp_attention, which makes a part of each of the {} ranks of "
        "tp_size: set --dp-size to {}, or leave it out",
        c.compute.dp_size, c.compute.tp_size, c.compute.tp_size);
  const auto refuse = [](std::string_view what, std::string_view flag) {
    return error(StatusCode::kUnimplemented,
                 "{} where ranks have requests of their own: leave {} or --enable-dp-attention out",
                 what, flag);
  };
  if (c.compute.pp_size > 1) return refuse("there are no stages", "--pp-size");
  if (c.speculation.has_draft_head() || c.speculation.speculative_algorithm == "RADIX")
    return refuse("draft tokens come from NGRAM alone",
                  "--speculative-algorithm " + c.speculation.speculative_algorithm);
  if (c.lora.enable_lora) return refuse("adapters are not divided", "--enable-lora");
  if (!c.control.control_vectors.empty())
    return refuse("there are no control vectors", "--control-vector");
  if (c.tiers.enable_hierarchical_cache)
    return refuse("pages have no tiers below the device", "--enable-hierarchical-cache");
  if (c.disaggregation.disaggregation_mode != "null")
    return refuse("pages are not sent to other servers", "--disaggregation-mode");
  if (c.cache.num_cache_events > 0) return refuse("a cache has no events", "--kv-events-config");
  return {};
}

// Redundant experts, and experts that move.
Status check_experts(const ComputeSettings& c) {
  if (c.ep_num_redundant_experts < 0)
    return invalid_argument("ep_num_redundant_experts is {}, but must be at least 0",
                            c.ep_num_redundant_experts);
  if (c.eplb_rebalance_num_iterations < 1)
    return invalid_argument("eplb_rebalance_num_iterations is {}, but must be at least 1",
                            c.eplb_rebalance_num_iterations);
  ESP_RETURN_IF_ERROR(
      check_not_negative("eplb_rebalance_layers_per_chunk", c.eplb_rebalance_layers_per_chunk));
  const double threshold = c.eplb_min_rebalancing_utilization_threshold;
  if (!(threshold >= 0 && threshold <= 1))
    return invalid_argument(
        "eplb_min_rebalancing_utilization_threshold is {}, but must be in [0, 1]", threshold);
  if (!c.enable_eplb) return {};
  if (c.ep_size == 1)
    return invalid_argument(
        "enable_eplb is set, but ep_size is 1, so that all ranks have all experts: set --ep-size "
        "above 1, or leave --enable-eplb out");
  if (c.pp_size > 1)
    return error(StatusCode::kUnimplemented,
                 "experts do not move in stages of a pipeline: leave --enable-eplb or --pp-size "
                 "out");
  return {};
}

Status check_fields(const EngineConfig& c) {
  ESP_RETURN_IF_ERROR(check_not_negative("context_length", c.model.context_length));
  if (c.model.context_length == 1)
    return invalid_argument(
        "context_length is 1, but a prompt and its output need at least a token each");
  ESP_RETURN_IF_ERROR(check_not_negative("max_total_tokens", c.cache.max_total_tokens));
  ESP_RETURN_IF_ERROR(check_not_negative("max_running_requests", c.schedule.max_running_requests));
  ESP_RETURN_IF_ERROR(check_not_negative("max_queued_requests", c.schedule.max_queued_requests));
  ESP_RETURN_IF_ERROR(check_not_negative("max_prefill_tokens", c.schedule.max_prefill_tokens));
  ESP_RETURN_IF_ERROR(check_not_negative("num_threads", c.compute.num_threads));
  if (c.compute.tp_size < 1)
    return invalid_argument("tp_size is {}, but must be at least 1", c.compute.tp_size);
  if (c.compute.ep_size < 1 || c.compute.tp_size % c.compute.ep_size != 0)
    return invalid_argument("ep_size is {}, but must divide tp_size, which is {}",
                            c.compute.ep_size, c.compute.tp_size);
  ESP_RETURN_IF_ERROR(check_experts(c.compute));
  ESP_RETURN_IF_ERROR(check_stages(c));
  if (c.compute.dp_size < 1)
    return invalid_argument("dp_size is {}, but must be at least 1", c.compute.dp_size);
  ESP_RETURN_IF_ERROR(check_attention_ranks(c));
  if (const auto method = parse_load_balance(c.compute.load_balance_method); !method)
    return method.error();
  ESP_RETURN_IF_ERROR(check_not_negative("tokenizer_threads", c.model.tokenizer_threads));
  if (c.schedule.chunked_prefill_size < -1)
    return invalid_argument("chunked_prefill_size is {}, but must be -1 (no limit) or at least 0",
                            c.schedule.chunked_prefill_size);
  if (c.cache.page_size < 1)
    return invalid_argument("page_size is {}, but must be at least 1", c.cache.page_size);
  if (!(c.cache.mem_fraction_static >= 0 && c.cache.mem_fraction_static <= 1))
    return invalid_argument("mem_fraction_static is {}, but must be in (0, 1] (0: chosen)",
                            c.cache.mem_fraction_static);
  if (!(c.schedule.schedule_conservativeness > 0))
    return invalid_argument("schedule_conservativeness is {}, but must be above 0",
                            c.schedule.schedule_conservativeness);
  ESP_RETURN_IF_ERROR(check_not_negative("num_cache_events", c.cache.num_cache_events));
  if (!(c.cache.swa_full_tokens_ratio > 0 && c.cache.swa_full_tokens_ratio <= 1))
    return invalid_argument("swa_full_tokens_ratio is {}, but must be in (0, 1]",
                            c.cache.swa_full_tokens_ratio);
  ESP_RETURN_IF_ERROR(
      check_not_negative("schedule_bypass_bound", c.schedule.schedule_bypass_bound));
  if (c.schedule.priority_scheduling_preemption_threshold < 1)
    return invalid_argument(
        "priority_scheduling_preemption_threshold is {}, but must be at least 1 "
        "(disable_priority_preemption turns preemption off)",
        c.schedule.priority_scheduling_preemption_threshold);
  if (!(c.schedule.max_inter_token_latency_ms >= 0))
    return invalid_argument("max_inter_token_latency_ms is {}, but must not be negative",
                            c.schedule.max_inter_token_latency_ms);
  if (c.schedule.mixed_step_ratio > 0 && !(c.schedule.mixed_step_ratio > 1))
    return invalid_argument(
        "mixed_step_ratio is {}, but must be above 1, or 0 for no bound: at 1 a step has no time "
        "for prompts",
        c.schedule.mixed_step_ratio);
  if (const auto share = parse_fair_share(c.schedule.fair_share); !share) return share.error();
  if (const auto policy = parse_eviction_policy(c.cache.radix_eviction_policy); !policy)
    return policy.error();
  ESP_RETURN_IF_ERROR(check_tier_settings(c));
  ESP_RETURN_IF_ERROR(check_disaggregation(c));
  if (c.sampling.sampling_defaults != "model" && c.sampling.sampling_defaults != "openai")
    return invalid_argument("sampling_defaults is '{}', but must be model or openai",
                            c.sampling.sampling_defaults);
  if (const auto mode = parse_logprobs_mode(c.sampling.logprobs_mode); !mode) return mode.error();
  if (const auto device = parse_device(c.compute.device); !device) return device.error();
  if (c.model.skip_tokenizer_init && !c.model.tokenizer_path.empty())
    return invalid_argument(
        "skip_tokenizer_init and tokenizer_path ({}) contradict each other: leave one of them out",
        c.model.tokenizer_path.string());
  return {};
}

// Bytes that the pool may take.
Result<int64_t> kv_budget(const EngineConfig& user, const ModelInfo& info,
                          const SystemInfo& system) {
  const double fraction =
      user.cache.mem_fraction_static > 0 ? user.cache.mem_fraction_static : system.mem_fraction;
  const auto usable = static_cast<int64_t>(fraction * static_cast<double>(system.available_bytes));
  if (usable > info.weight_bytes) return usable - info.weight_bytes;
  return fail(error(
      StatusCode::kResourceExhausted,
      "no memory is left for the KV cache: mem_fraction_static {} of the {:.2f} GiB that were free "
      "is {:.2f} GiB, and the weights take {:.2f} GiB; raise it, free memory, or take a smaller "
      "model or dtype",
      fraction, gib(system.available_bytes), gib(usable), gib(info.weight_bytes)));
}

// The window's pages, where they are fewer than the others': none where a
// window is as long as the context.
void resolve_window(EngineConfig& c, const ModelInfo& info) {
  c.cache.max_window_tokens = c.cache.window_tokens_read = 0;
  if (info.sliding_window == 0 || c.cache.disable_hybrid_swa_memory) return;
  // Attention takes keys in whole blocks, so it touches up to a block less one before the window.
  const int32_t read = info.sliding_window + kernels::kAttentionBlock - 1;
  if (read >= c.model.context_length) return;
  const WindowPages asked(1, 0, read, c.cache.page_size);
  const int32_t num_ranks = c.compute.attention_ranks();
  const int32_t num_pages = c.cache.max_total_tokens / c.cache.page_size / num_ranks;  // of a rank
  const int32_t num_window =
      std::max(static_cast<int32_t>(std::ceil(c.cache.swa_full_tokens_ratio * num_pages)),
               asked.max_resident(num_pages));
  if (num_window >= num_pages) return;
  c.cache.max_window_tokens = num_window * c.cache.page_size * num_ranks;
  c.cache.window_tokens_read = read;
}

// Bytes of a token in all layers, those with a window counted by their share of the pages.
int64_t bytes_per_token_of(const EngineConfig& c, const ModelInfo& info, KvType type) {
  const bool shares = info.sliding_window > 0 && !c.cache.disable_hybrid_swa_memory &&
                      info.sliding_window + kernels::kAttentionBlock - 1 < c.model.context_length;
  if (!shares) return std::max<int64_t>(1, info.kv_bytes_per_token(type));
  const int32_t num_window = info.num_window_layers();
  const double layers =
      info.num_kv_layers() - num_window + c.cache.swa_full_tokens_ratio * num_window;
  return std::max<int64_t>(
      1, static_cast<int64_t>(
             std::ceil(layers * static_cast<double>(info.kv_bytes_per_layer_token(type)))));
}

// The smaller of what memory allows and what max_running_requests of full context could use.
Result<int32_t> resolve_total_tokens(const EngineConfig& user, const EngineConfig& effective,
                                     const ModelInfo& info, const SystemInfo& system) {
  ESP_ASSIGN_OR_RETURN(const KvType type, resolve_kv_type(user, info));
  const int64_t bytes_per_token = bytes_per_token_of(effective, info, type);
  ESP_ASSIGN_OR_RETURN(const int64_t budget, kv_budget(user, info, system));
  // The budget is one GPU's: each has pages of its own where ranks have requests of their own.
  const int64_t num_pools =
      effective.compute.device == "cuda" ? effective.compute.attention_ranks() : 1;
  const int64_t fits =
      std::min<int64_t>(budget / bytes_per_token * num_pools, std::numeric_limits<int32_t>::max());
  if (user.cache.max_total_tokens > fits)
    return fail(
        error(StatusCode::kResourceExhausted,
              "max_total_tokens is {}, which takes {:.2f} GiB, but only {} tokens fit in the "
              "{:.2f} GiB left: lower it, or raise mem_fraction_static",
              user.cache.max_total_tokens, gib(user.cache.max_total_tokens * bytes_per_token), fits,
              gib(budget)));
  const int64_t useful =
      int64_t{effective.schedule.max_running_requests} * effective.model.context_length;
  const int64_t tokens =
      user.cache.max_total_tokens > 0 ? user.cache.max_total_tokens : std::min(fits, useful);
  const int64_t whole_pages = tokens / user.cache.page_size * user.cache.page_size;
  if (whole_pages == 0 && user.cache.max_total_tokens == 0 && fits < user.cache.page_size)
    return fail(error(
        StatusCode::kResourceExhausted,
        "no memory is left for the KV cache: one page of {} tokens takes {:.6f} GiB, and {:.6f} "
        "GiB of what mem_fraction_static allows are left; raise it, or free memory",
        user.cache.page_size, gib(user.cache.page_size * bytes_per_token), gib(budget)));
  if (whole_pages == 0)
    return fail(invalid_argument(
        "page_size is {}, but the KV cache holds only {} tokens: lower page_size or raise "
        "max_total_tokens",
        user.cache.page_size, tokens));
  return static_cast<int32_t>(whole_pages);
}

// Each rank has as many pages and slots as the others.
Status divide_among_ranks(EngineConfig& c) {
  const int32_t num_ranks = c.compute.attention_ranks();
  const int32_t pages = c.cache.max_total_tokens / c.cache.page_size / num_ranks * num_ranks;
  if (pages == 0)
    return invalid_argument(
        "max_total_tokens is {}, but each of {} ranks with enable_dp_attention needs a page of {} "
        "tokens of its own: raise it",
        c.cache.max_total_tokens, num_ranks, c.cache.page_size);
  c.cache.max_total_tokens = pages * c.cache.page_size;
  c.schedule.max_running_requests =
      std::max(1, c.schedule.max_running_requests / num_ranks) * num_ranks;
  return {};
}

Status check_draft_head(const EngineConfig& c) {
  const SpeculationSettings& settings = c.speculation;
  if (!settings.has_draft_head()) {
    if (settings.speculative_draft_model_path.empty()) return {};
    return invalid_argument(
        "speculative_draft_model_path is set, and speculative_algorithm {} has no draft model: set "
        "speculative_algorithm to EAGLE3, NEXTN or STANDALONE",
        settings.speculative_algorithm);
  }
  if (settings.has_draft_model() && settings.speculative_draft_model_path.empty())
    return invalid_argument(
        "speculative_algorithm is STANDALONE, whose draft tokens come from another model: set "
        "speculative_draft_model_path to the folder of a small one of the same vocabulary");
  if (settings.speculative_num_steps < 1 || settings.speculative_num_steps > HeadText::kChainMax)
    return invalid_argument("speculative_num_steps is {}, but must be 1 to {}",
                            settings.speculative_num_steps, HeadText::kChainMax);
  if (c.tiers.enable_hierarchical_cache || c.disaggregation.disaggregation_mode != "null")
    return error(
        StatusCode::kUnimplemented,
        "speculative_algorithm {} keeps keys of its draft head or model on the device alone: "
        "leave enable_hierarchical_cache and disaggregation_mode out, or set COMBINED",
        settings.speculative_algorithm);
  return {};
}

Status check_speculation(const EngineConfig& c) {
  ESP_RETURN_IF_ERROR(check_draft_head(c));
  constexpr std::string_view kAlgorithms[] = {"none",   "NGRAM", "RADIX",     "COMBINED",
                                              "EAGLE3", "NEXTN", "STANDALONE"};
  if (std::ranges::find(kAlgorithms, c.speculation.speculative_algorithm) == std::end(kAlgorithms))
    return invalid_argument(
        "speculative_algorithm is '{}', but must be auto, none, NGRAM, RADIX, COMBINED, EAGLE3, "
        "NEXTN or STANDALONE",
        c.speculation.speculative_algorithm);
  if (c.speculation.speculative_algorithm == "RADIX" && c.cache.disable_radix_cache)
    return invalid_argument(
        "speculative_algorithm is RADIX, which reads the radix cache: leave disable_radix_cache "
        "out, or set NGRAM");
  if (c.speculation.speculative_num_draft_tokens < 1 ||
      c.speculation.speculative_num_draft_tokens > 16)
    return invalid_argument("speculative_num_draft_tokens is {}, but must be 1 to 16",
                            c.speculation.speculative_num_draft_tokens);
  if (c.speculation.speculative_ngram_capacity < 32 ||
      c.speculation.speculative_ngram_capacity > 1 << 26)
    return invalid_argument("speculative_ngram_capacity is {}, but must be 32 to {} tokens",
                            c.speculation.speculative_ngram_capacity, 1 << 26);
  return Status();
}

void resolve_prefill(const EngineConfig& user, const SystemInfo& system, EngineConfig& c) {
  c.schedule.chunked_prefill_size = user.schedule.chunked_prefill_size == -1
                                        ? c.model.context_length
                                    : user.schedule.chunked_prefill_size == 0
                                        ? std::min(system.prefill_chunk, c.model.context_length)
                                        : user.schedule.chunked_prefill_size;
  if (user.schedule.max_prefill_tokens == 0)
    c.schedule.max_prefill_tokens = c.schedule.chunked_prefill_size;
  // A rank with requests of its own computes at least a token of a prompt in each step.
  const int32_t least = c.compute.attention_ranks();
  c.schedule.chunked_prefill_size = std::max(c.schedule.chunked_prefill_size, least);
  c.schedule.max_prefill_tokens = std::max(c.schedule.max_prefill_tokens, least);
}

// Where a picture's rows see each other they are computed in one step.
Status check_pictures_fit(const EngineConfig& c, const ModelInfo& info) {
  const int32_t num_ranks = c.compute.attention_ranks();
  if (!info.images || !info.images->bidirectional ||
      c.schedule.chunked_prefill_size / num_ranks >= info.images->num_rows)
    return {};
  return invalid_argument(
      "chunked_prefill_size is {}, but a picture of {} takes {} tokens of one step: set it to at "
      "least {}",
      c.schedule.chunked_prefill_size, info.architecture, info.images->num_rows,
      num_ranks * info.images->num_rows);
}

Status check_images(const EngineConfig& c) {
  if (c.images.image_threads < 0 || c.images.max_images_per_request < 1)
    return invalid_argument(
        "image_threads is {} and max_images_per_request {}, but the second must be at least 1, and "
        "the first too, or 0 to have it chosen",
        c.images.image_threads, c.images.max_images_per_request);
  if (c.images.image_cache_bytes < 0 || c.images.max_image_bytes < 1 ||
      c.images.max_image_pixels < 1)
    return invalid_argument(
        "image_cache_bytes is {}, max_image_bytes {} and max_image_pixels {}, but the first must "
        "not be negative and the others must be at least 1",
        c.images.image_cache_bytes, c.images.max_image_bytes, c.images.max_image_pixels);
  if (!(c.images.max_video_seconds > 0))
    return invalid_argument("max_video_seconds is {}, but must be above 0",
                            c.images.max_video_seconds);
  return {};
}

Status check_grammar(const GrammarSettings& grammar) {
  if (grammar.grammar_backend != "espalier" && grammar.grammar_backend != "none")
    return invalid_argument("grammar_backend is '{}', but must be espalier or none",
                            grammar.grammar_backend);
  if (grammar.grammar_threads < 1 || !(grammar.grammar_compile_seconds > 0))
    return invalid_argument(
        "grammar_threads is {} and grammar_compile_seconds {}, but both must be above 0",
        grammar.grammar_threads, grammar.grammar_compile_seconds);
  if (grammar.grammar_mask_threads < 0)
    return invalid_argument(
        "grammar_mask_threads is {}, but must be at least 1, or 0 to have it chosen",
        grammar.grammar_mask_threads);
  if (grammar.grammar_cache_bytes < 0)
    return invalid_argument(
        "grammar_cache_bytes is {}, but must be at least 1, or 0 to have it chosen",
        grammar.grammar_cache_bytes);
  return {};
}

Status check_lora(const LoraSettings& lora) {
  if (lora.max_loras_per_batch < 1 || lora.max_lora_rank < 0 || lora.max_loaded_loras < 0)
    return invalid_argument(
        "max_loras_per_batch is {}, max_lora_rank {} and max_loaded_loras {}, but the first must "
        "be at least 1 and the others at least 0",
        lora.max_loras_per_batch, lora.max_lora_rank, lora.max_loaded_loras);
  if (lora.max_lora_bytes < 0)
    return invalid_argument("max_lora_bytes is {}, but must be at least 1, or 0 to have it chosen",
                            lora.max_lora_bytes);
  return {};
}

Status check_weight_backup(const EngineConfig& c) {
  if (!c.compute.enable_weights_cpu_backup || c.compute.dp_size == 1) return {};
  return invalid_argument(
      "enable_weights_cpu_backup is set, but replicas release no memory: leave "
      "--enable-weights-cpu-backup or --dp-size out");
}

Status check_hidden_states(const EngineConfig& c) {
  if (!c.compute.enable_return_hidden_states || c.disaggregation.disaggregation_mode == "null")
    return {};
  return error(StatusCode::kUnimplemented,
               "hidden states of a prompt are not sent to the server that continues it: leave "
               "--enable-return-hidden-states or --disaggregation-mode out");
}

}  // namespace

Result<KvType> resolve_kv_type(const EngineConfig& config, const ModelInfo& info) {
  if (config.cache.kv_cache_dtype == "float32") return KvType::kFloat32;
  if (config.cache.kv_cache_dtype == "bfloat16") return KvType::kBFloat16;
  if (config.cache.kv_cache_dtype == "fp8_e4m3") return KvType::kFloat8E4M3;
  if (config.cache.kv_cache_dtype != "auto")
    return fail(
        invalid_argument("kv_cache_dtype is '{}', but must be auto, float32, bfloat16 or fp8_e4m3",
                         config.cache.kv_cache_dtype));
  const int64_t parameters =
      info.num_loaded_parameters > 0 ? info.num_loaded_parameters : info.num_parameters;
  const bool float32 = parameters > 0 && info.weight_bytes >= 4 * parameters;
  return float32 ? KvType::kFloat32 : KvType::kBFloat16;
}

KvPoolConfig kv_pool_config(const EngineConfig& config, const ModelInfo& info, KvType type) {
  KvPoolConfig pool{.num_layers = info.num_kv_layers(),
                    .num_kv_heads = info.num_kv_heads,
                    .head_dim = info.head_dim,
                    .type = type,
                    .num_pages = config.cache.max_total_tokens / config.cache.page_size,
                    .page_size = config.cache.page_size,
                    .num_planes = info.kv_planes,
                    .window_layers = config.cache.max_window_tokens > 0 ? info.window_layers
                                                                        : std::vector<bool>(),
                    .num_window_pages = config.cache.max_window_tokens / config.cache.page_size};
  if (!info.draft_kv) return pool;
  pool.layer_shapes.assign(static_cast<size_t>(info.num_kv_layers()), pool.shape_of(0));
  pool.num_layers += info.draft_kv->num_layers;
  pool.layer_shapes.resize(static_cast<size_t>(pool.num_layers),
                           {info.draft_kv->num_kv_heads, info.draft_kv->head_dim, type});
  if (!pool.window_layers.empty())
    pool.window_layers.resize(static_cast<size_t>(pool.num_layers), false);
  return pool;
}

int64_t kv_bytes(const EngineConfig& config, const ModelInfo& info, KvType type) {
  const int64_t num_window = config.cache.max_window_tokens > 0 ? info.num_window_layers() : 0;
  return info.draft_kv_bytes_per_token(type) * config.cache.max_total_tokens +
         info.kv_bytes_per_layer_token(type) *
             ((info.num_kv_layers() - num_window) * config.cache.max_total_tokens +
              num_window * config.cache.max_window_tokens);
}

Result<EngineConfig> resolve(const EngineConfig& user, const ModelInfo& info,
                             const SystemInfo& system) {
  ESP_RETURN_IF_ERROR(check_fields(user));
  ESP_ASSIGN_OR_RETURN(const SchedulePolicy policy,
                       parse_schedule_policy(user.schedule.schedule_policy));
  EngineConfig c = user;
  c.schedule.schedule_policy = std::string(schedule_policy_name(policy));
  if (user.model.context_length > info.context_length)
    return fail(invalid_argument(
        "context_length is {}, but the model was made for {} tokens: lower it, or leave it out",
        user.model.context_length, info.context_length));
  // No device has chosen.
  if (c.speculation.speculative_algorithm == "auto") c.speculation.speculative_algorithm = "none";
  ESP_RETURN_IF_ERROR(check_speculation(c));
  ESP_RETURN_IF_ERROR(check_grammar(c.grammar));
  if (c.cache.max_session_bytes < 0)
    return fail(
        invalid_argument("max_session_bytes is {}, but must be at least 1, or 0 to have it chosen",
                         c.cache.max_session_bytes));
  ESP_RETURN_IF_ERROR(check_images(c));
  c.lora.enable_lora = c.lora.enable_lora || !c.lora.lora_paths.empty();
  ESP_RETURN_IF_ERROR(check_lora(c.lora));
  ESP_ASSIGN_OR_RETURN(const auto vectors,
                       parse_named_paths("control-vector", c.control.control_vectors));
  static_cast<void>(vectors);
  ESP_RETURN_IF_ERROR(check_hidden_states(c));
  ESP_RETURN_IF_ERROR(check_weight_backup(c));
  if (c.compute.enable_eplb) c.compute.expert_distribution_recorder_mode = "stat";
  if (c.model.context_length == 0) c.model.context_length = info.context_length;
  if (c.schedule.max_running_requests == 0) c.schedule.max_running_requests = kDefaultMaxRunning;
  if (c.schedule.max_queued_requests == 0) c.schedule.max_queued_requests = kDefaultMaxQueued;
  if (c.cache.mem_fraction_static == 0) c.cache.mem_fraction_static = system.mem_fraction;
  ESP_ASSIGN_OR_RETURN(c.cache.max_total_tokens, resolve_total_tokens(user, c, info, system));
  ESP_RETURN_IF_ERROR(divide_among_ranks(c));
  resolve_window(c, info);
  c.schedule.max_running_requests =
      std::min(c.schedule.max_running_requests, c.cache.max_total_tokens);
  resolve_prefill(user, system, c);
  c.schedule.mixed_step_ratio_most = c.schedule.mixed_step_ratio;
  if (c.schedule.mixed_step_ratio < 0) {
    c.schedule.mixed_step_ratio = system.mixed_step_ratio;
    c.schedule.mixed_step_ratio_most = system.mixed_step_ratio_most;
  }
  ESP_RETURN_IF_ERROR(check_pictures_fit(c, info));
  const int32_t cpus = std::max(1, system.num_cpus);
  c.compute.num_threads = c.compute.num_threads == 0 ? cpus : std::min(c.compute.num_threads, cpus);
  if (c.grammar.grammar_mask_threads == 0) c.grammar.grammar_mask_threads = system.mask_threads;
  if (c.grammar.grammar_cache_bytes == 0)
    c.grammar.grammar_cache_bytes =
        std::clamp(system.available_bytes / 16, int64_t{64} << 20, int64_t{2} << 30);
  if (c.cache.max_session_bytes == 0)
    c.cache.max_session_bytes =
        std::clamp(system.available_bytes / 32, int64_t{64} << 20, int64_t{1} << 30);
  if (c.images.image_threads == 0) c.images.image_threads = system.image_threads;
  if (c.images.image_cache_bytes == 0)
    c.images.image_cache_bytes =
        std::clamp(system.available_bytes / 16, int64_t{256} << 20, int64_t{4} << 30);
  if (c.lora.max_lora_bytes == 0)
    c.lora.max_lora_bytes = std::max(system.available_bytes / 4, int64_t{64} << 20);
  if (c.model.tokenizer_threads == 0) c.model.tokenizer_threads = std::clamp(cpus / 2, 1, 8);
  if (c.model.tokenizer_path.empty() && !c.model.skip_tokenizer_init)
    c.model.tokenizer_path = c.model.model_path;
  while (c.sampling.random_seed == 0) c.sampling.random_seed = std::random_device{}();
  return c;
}

namespace {
std::filesystem::path draft_path(const EngineConfig& config) {
  const SpeculationSettings& settings = config.speculation;
  if (!settings.has_draft_head() || settings.has_draft_model()) return {};
  if (!settings.speculative_draft_model_path.empty()) return settings.speculative_draft_model_path;
  const std::filesystem::path& model = config.model.model_path;
  return settings.speculative_algorithm == "NEXTN" ? model : model / "draft";
}

ExpertLocations expert_locations(const ComputeSettings& c) {
  ExpertLocations out{.num_redundant = c.ep_num_redundant_experts};
  if (c.init_expert_location != "trivial") out.init = c.init_expert_location;
  if (c.enable_eplb) {
    out.rebalance = {.num_iterations = c.eplb_rebalance_num_iterations,
                     .utilization_max = c.eplb_min_rebalancing_utilization_threshold,
                     .layers_per_chunk = c.eplb_rebalance_layers_per_chunk};
  }
  return out;
}
}  // namespace

ModelLoadOptions model_load_options(const EngineConfig& config) {
  return {.path = config.model.model_path,
          .format = config.model.load_format,
          .seed = config.sampling.random_seed,
          .dtype = config.model.dtype,
          .context_length = config.model.context_length,
          .is_embedding = config.model.is_embedding,
          .config_overrides = config.model.json_model_override_args,
          .nccl = config.compute.disable_custom_all_reduce,
          .ep_size = config.compute.ep_size,
          .enable_dp_attention = config.compute.enable_dp_attention,
          .experts = expert_locations(config.compute),
          .draft_path = draft_path(config),
          .draft_model_path = config.speculation.has_draft_model()
                                  ? config.speculation.speculative_draft_model_path
                                  : std::filesystem::path(),
          .enable_lora = config.lora.enable_lora,
          .control_vectors = parse_named_paths("control-vector", config.control.control_vectors)
                                 .value_or(std::vector<NamedPath>()),  // resolve() has checked it
          .return_hidden_states = config.compute.enable_return_hidden_states,
          .max_lora_rank = config.lora.max_lora_rank,
          .progress = config.model.load_progress};
}

}  // namespace espalier
