// Metrics under vLLM's names, for what reads those: the Gateway API Inference Extension's picker,
// dashboards, autoscalers. Internal to the room.
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <string>
#include <vector>

namespace espalier::server {

struct VllmCacheShape {
  int32_t block_size = 0, num_blocks = 0;
};

// Appends, to the families of GET /metrics, those that mean the same to vLLM, with the values and
// labels that they have there (docs/vllm_metrics.md), and vllm:cache_config_info.
void append_vllm_names(std::vector<prometheus::MetricFamily>& families,
                       const std::string& model_name, const VllmCacheShape& cache);

}  // namespace espalier::server
