#include "engine/startup/cuda_settings.h"

#include <algorithm>

#include "base/fatal_exit.h"

namespace espalier {
namespace {

// Each has a row of logits and a row of the sampler's scratch: 512 take half a gigabyte with a
// vocabulary of 128,256. Where they do not suffice for all requests the first of a step have them.
constexpr int32_t kDraftSamplesMax = 512;

// Of a large host the threads that draw where a GPU does not; they are parked until then.
constexpr int32_t kHostThreadsMax = 8;

int32_t max_draft_samples(const EngineConfig& c) {
  if (c.speculation.speculative_algorithm == "none") return 0;
  return static_cast<int32_t>(std::min<int64_t>(
      kDraftSamplesMax,
      int64_t{c.schedule.max_running_requests} * c.speculation.speculative_num_draft_tokens));
}

}  // namespace

CudaExecutorConfig cuda_executor_config(const EngineConfig& sizes, const SystemInfo& system,
                                        int64_t encoder_bytes) {
  const int32_t chunk =
      std::min(sizes.schedule.chunked_prefill_size, sizes.schedule.max_prefill_tokens);
  return {.max_slots = sizes.schedule.max_running_requests,
          .max_draft_samples = max_draft_samples(sizes),
          .chain_max = sizes.speculation.speculative_num_steps,
          .max_tokens = chunk + sizes.schedule.max_running_requests,
          .context_length = sizes.model.context_length,
          .page_size = sizes.cache.page_size,
          .graphs = !sizes.compute.disable_cuda_graph,
          .cascade = !sizes.compute.disable_cascade_attention,
          .deterministic = sizes.compute.enable_deterministic_inference,
          .adapter_bytes = sizes.lora.enable_lora ? sizes.lora.max_lora_bytes : 0,
          .num_host_threads = std::clamp(system.mask_threads, 1, kHostThreadsMax),
          .first_cpu = sizes.compute.first_cpu,
          .encoder_bytes = encoder_bytes,
          // Requests in flight get their errors first.
          .on_device_lost = end_process_soon};
}

}  // namespace espalier
