#include "engine/nodes/node_part.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/log.h"
#include "engine/startup/device.h"
#include "engine/startup/model_fingerprint.h"
#include "models/load_part.h"
#include "nodes/bytes.h"
#include "speech/transcriber.h"

namespace espalier {
namespace {

Duration seconds_of(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

// HOST:PORT, or [ADDRESS]:PORT for IPv6.
Result<std::pair<std::string, int>> parse_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  const char* const end = text.data() + text.size();
  const bool has_port = colon != std::string::npos && colon > 0;
  if (!has_port || std::from_chars(text.data() + colon + 1, end, port).ptr != end || port < 1 ||
      port > 65535)
    return fail(invalid_argument(
        "dist_init_addr is '{}', but must be HOST:PORT, the leader's address and a free port there",
        text));
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return std::pair(std::move(host), port);
}

// What is not divided among nodes, by the flag to leave out.
Status check_features(const EngineConfig& c) {
  const auto refuse = [](std::string_view flag) {
    return error(StatusCode::kUnimplemented,
                 "{} does not go over several nodes: leave it or --nnodes out", flag);
  };
  if (c.compute.dp_size > 1) return refuse("--dp-size");
  if (c.compute.pp_size > 1) return refuse("--pp-size");
  if (c.compute.enable_dp_attention) return refuse("--enable-dp-attention");
  if (c.lora.enable_lora || !c.lora.lora_paths.empty()) return refuse("--enable-lora");
  if (c.tiers.enable_hierarchical_cache) return refuse("--enable-hierarchical-cache");
  if (c.disaggregation.disaggregation_mode != "null") return refuse("--disaggregation-mode");
  if (c.speculation.has_draft_head())
    return refuse("--speculative-algorithm " + c.speculation.speculative_algorithm);
  if (c.compute.enable_return_hidden_states) return refuse("--enable-return-hidden-states");
  if (c.compute.enable_eplb) return refuse("--enable-eplb");
  if (c.compute.init_expert_location != "trivial") return refuse("--init-expert-location");
  return {};
}

std::string text_of(auto value) { return fmt::format("{}", value); }

// What decides the weights of a node, its pages and its steps.
Result<nodes::Agreement> agreement_of(const EngineConfig& c, const NodeSettings& settings) {
  ESP_ASSIGN_OR_RETURN(std::string fingerprint, model_fingerprint(c));
  return nodes::Agreement{
      {"the version", settings.version},
      {"the model (fingerprint of weights, --dtype and what else changes them)",
       std::move(fingerprint)},
      {"--tp-size", text_of(c.compute.tp_size)},
      {"--ep-size", text_of(c.compute.ep_size)},
      {"--ep-num-redundant-experts", text_of(c.compute.ep_num_redundant_experts)},
      {"--page-size", text_of(c.cache.page_size)},
      {"--kv-cache-dtype", c.cache.kv_cache_dtype},
      {"--max-total-tokens", text_of(c.cache.max_total_tokens)},
      {"--context-length", text_of(c.model.context_length)},
      {"--is-embedding", text_of(c.model.is_embedding)},
      {"--speculative-algorithm", c.speculation.speculative_algorithm},
      {"--speculative-num-draft-tokens", text_of(c.speculation.speculative_num_draft_tokens)},
      {"--enable-deterministic-inference", text_of(c.compute.enable_deterministic_inference)},
      {"the device", c.compute.device},
      {"--swa-full-tokens-ratio", text_of(c.cache.swa_full_tokens_ratio)},
      {"--disable-hybrid-swa-memory", text_of(c.cache.disable_hybrid_swa_memory)},
      {"--expert-distribution-recorder-mode", c.compute.expert_distribution_recorder_mode}};
}

Result<std::unique_ptr<nodes::NodeGroup>> join_nodes(
    const EngineConfig& config, const NodeSettings& settings,
    std::function<void(const Status&)> on_failure) {
  ESP_ASSIGN_OR_RETURN(auto address, parse_address(settings.dist_init_addr));
  ESP_ASSIGN_OR_RETURN(nodes::Agreement agreement, agreement_of(config, settings));
  return nodes::NodeGroup::join({.node = settings.node_rank,
                                 .num_nodes = settings.nnodes,
                                 .host = std::move(address.first),
                                 .port = address.second,
                                 .token = settings.dist_token,
                                 .agreement = std::move(agreement),
                                 .join_timeout = seconds_of(settings.dist_timeout),
                                 .silence_max = seconds_of(settings.dist_heartbeat_timeout),
                                 .on_failure = std::move(on_failure)});
}

// What nodes with GPUs do not have besides.
Status check_gpu_features(const EngineConfig& c) {
  if (c.compute.expert_distribution_recorder_mode != "none")
    return error(StatusCode::kUnimplemented,
                 "nodes with GPUs do not count experts' tokens: leave "
                 "--expert-distribution-recorder-mode or --nnodes out");
  return {};
}

Status start_gpu_part(NodePart& part) {
  auto gpu = GpuNodePart::start(part.config, part.system, *part.group);
  if (!gpu) {
    part.group->set_failure(gpu.error());
    return part.group->status();
  }
  part.gpu = *std::move(gpu);
  const std::lock_guard lock(part.on_lost->mutex);
  part.on_lost->stop = [ranks = part.gpu.get()] { ranks->stop(); };
  return {};
}

}  // namespace

NodePart::~NodePart() {
  if (on_lost == nullptr) return;  // moved from
  const std::lock_guard lock(on_lost->mutex);
  on_lost->stop = nullptr;
}

Status check_node_settings(const EngineConfig& config, const NodeSettings& settings) {
  if (settings.nnodes < 1 || settings.nnodes > nodes::kNodesMax)
    return invalid_argument("nnodes is {}, but must be 1 to {}", settings.nnodes, nodes::kNodesMax);
  if (settings.node_rank < 0 || settings.node_rank >= settings.nnodes)
    return invalid_argument("node_rank is {}, but must be 0 to {}, for nnodes is {}",
                            settings.node_rank, settings.nnodes - 1, settings.nnodes);
  if (settings.single()) return {};
  if (is_transcriber(config.model.model_path))
    return error(StatusCode::kUnimplemented,
                 "--nnodes above 1 is not for a model of speech: leave it out");
  if (config.compute.tp_size % settings.nnodes != 0)
    return invalid_argument(
        "tp_size is {}, but counts the ranks of all nodes, so that nnodes, which is {}, must "
        "divide it",
        config.compute.tp_size, settings.nnodes);
  if (const auto address = parse_address(settings.dist_init_addr); !address) return address.error();
  return check_features(config);
}

Result<NodePart> start_node_part(const EngineConfig& config, const NodeSettings& settings,
                                 std::function<void(const Status&)> on_failure) {
  ESP_RETURN_IF_ERROR(check_node_settings(config, settings));
  NodePart part;
  part.config = config;
  ESP_ASSIGN_OR_RETURN(const EngineDevice device,
                       choose_device(config.compute.device, config.compute.base_gpu_id));
  if (device.cuda) ESP_RETURN_IF_ERROR(check_gpu_features(config));
  part.config.compute.device = device.cuda ? "cuda" : "cpu";
  part.system = device.system;
  ModelLoadOptions options = model_load_options(part.config);
  options.tp_size = config.compute.tp_size;
  ESP_ASSIGN_OR_RETURN(const ModelInfo stated, read_model_info(options));
  if (stated.images)
    return fail(error(StatusCode::kUnimplemented,
                      "{} reads pictures, which does not go over several nodes: leave --nnodes out",
                      stated.architecture));
  // Before a node waits for the others.
  ESP_ASSIGN_OR_RETURN(const EngineConfig effective, resolve(part.config, stated, part.system));
  ESP_ASSIGN_OR_RETURN(
      part.group,
      join_nodes(part.config, settings,
                 [hook = part.on_lost, on_failure = std::move(on_failure)](const Status& why) {
                   on_failure(why);  // first, for what stops devices may wait for them
                   const std::lock_guard lock(hook->mutex);
                   if (hook->stop) hook->stop();
                 }));
  if (device.cuda) {
    ESP_RETURN_IF_ERROR(start_gpu_part(part));
    return part;
  }
  part.collectives = std::make_unique<nodes::NodeCollectives>(
      *part.group, config.compute.tp_size / settings.nnodes);
  part.pool = std::make_unique<WorkPool>(effective.compute.num_threads, config.compute.first_cpu);
  options.pool = part.pool.get();
  if (config.compute.expert_distribution_recorder_mode != "none")
    part.expert_counts = std::make_unique<ExpertCounts>();
  options.expert_counts = part.expert_counts.get();
  auto model = load_model_part(options, *part.collectives);
  if (!model) {
    part.group->set_failure(model.error());
    return fail(model.error());
  }
  part.model = *std::move(model);
  return part;
}

std::string encode(const NodePlan& plan) {
  std::string out;
  nodes::append_text(out, plan.kv_cache_dtype);
  for (const int32_t value :
       {plan.max_total_tokens, plan.max_running_requests, plan.chunked_prefill_size,
        plan.max_prefill_tokens, plan.context_length})
    nodes::append_int(out, value);
  return out;
}

Result<NodePlan> decode_node_plan(std::string_view payload) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  nodes::ByteReader reader(payload);
  NodePlan plan{.kv_cache_dtype = reader.text()};
  plan.max_total_tokens = reader.number_in(0, kMax);
  plan.max_running_requests = reader.number_in(1, 1 << 20);
  plan.chunked_prefill_size = reader.number_in(1, kMax);
  plan.max_prefill_tokens = reader.number_in(1, kMax);
  plan.context_length = reader.number_in(1, kMax);
  if (!reader.complete())
    return fail(error(StatusCode::kDataLoss,
                      "a malformed plan was received: run the same version on all nodes"));
  return plan;
}

EngineConfig with_plan(EngineConfig config, const NodePlan& plan) {
  config.cache.kv_cache_dtype = plan.kv_cache_dtype;
  if (plan.max_total_tokens > 0) config.cache.max_total_tokens = plan.max_total_tokens;
  config.schedule.max_running_requests = plan.max_running_requests;
  config.schedule.chunked_prefill_size = plan.chunked_prefill_size;
  config.schedule.max_prefill_tokens = plan.max_prefill_tokens;
  config.model.context_length = plan.context_length;
  return config;
}

int32_t step_tokens_max(const EngineConfig& config) {
  const ScheduleSettings& s = config.schedule;
  return std::min(s.chunked_prefill_size, s.max_prefill_tokens) + s.max_running_requests;
}

nodes::StepLimits step_limits(const EngineConfig& config, const ModelInfo& info,
                              bool tokens_from_slots) {
  return {.max_slots = config.schedule.max_running_requests,
          .max_tokens = step_tokens_max(config),
          .vocab_size = info.vocab_size,
          .context_length = config.model.context_length,
          .page_size = config.cache.page_size,
          .num_pages = config.cache.max_total_tokens / config.cache.page_size,
          .num_window_pages = config.cache.max_window_tokens / config.cache.page_size,
          .tokens_from_slots = tokens_from_slots};
}

}  // namespace espalier
