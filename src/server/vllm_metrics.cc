#include "server/vllm_metrics.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

namespace espalier::server {

namespace {

struct VllmName {
  std::string_view own, vllm;
};

constexpr std::array<VllmName, 18> kVllmNames = {{
    {"sglang:num_running_reqs", "vllm:num_requests_running"},
    {"sglang:num_queue_reqs", "vllm:num_requests_waiting"},
    {"sglang:token_usage", "vllm:kv_cache_usage_perc"},
    {"sglang:token_usage", "vllm:gpu_cache_usage_perc"},  // its name in earlier releases
    {"sglang:prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"sglang:generation_tokens_total", "vllm:generation_tokens_total"},
    {"sglang:prompt_tokens_total", "vllm:prefix_cache_queries_total"},
    {"sglang:cached_tokens_total", "vllm:prefix_cache_hits_total"},
    {"sglang:num_retracted_requests_total", "vllm:num_preemptions_total"},
    {"sglang:time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"sglang:inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
    {"sglang:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"},  // likewise
    {"sglang:e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"},
    {"sglang:queue_time_seconds", "vllm:request_queue_time_seconds"},
    {"sglang:prompt_tokens_histogram", "vllm:request_prompt_tokens"},
    {"sglang:generation_tokens_histogram", "vllm:request_generation_tokens"},
    {"espalier:drafted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"},
    {"espalier:accepted_drafts_total", "vllm:spec_decode_num_accepted_tokens_total"},
}};

}  // namespace

void append_vllm_names(std::vector<prometheus::MetricFamily>& families,
                       const std::string& model_name, const VllmCacheShape& cache) {
  std::vector<prometheus::MetricFamily> added;
  for (const VllmName& name : kVllmNames) {
    const auto own = std::ranges::find_if(
        families, [&](const prometheus::MetricFamily& f) { return f.name == name.own; });
    if (own == families.end()) continue;  // of a kind of request that has not come yet
    added.push_back(*own);
    added.back().name = name.vllm;
  }
  prometheus::ClientMetric shape;
  shape.label = {{"model_name", model_name},
                 {"block_size", std::to_string(cache.block_size)},
                 {"num_gpu_blocks", std::to_string(cache.num_blocks)}};
  shape.gauge.value = 1;
  added.push_back({"vllm:cache_config_info",
                   "The pool of KV pages, in the labels.",
                   prometheus::MetricType::Gauge,
                   {std::move(shape)}});
  std::ranges::move(added, std::back_inserter(families));
}

}  // namespace espalier::server
