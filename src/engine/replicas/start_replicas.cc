#include "engine/replicas/start_replicas.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/replicas/replicas.h"
#include "engine/startup/device.h"

namespace espalier {
namespace {

// 0 is chosen by each replica.
template <typename Int>
void divide(Int& total, int32_t parts) {
  if (total > 0) total = std::max<Int>(1, total / static_cast<Int>(parts));
}

}  // namespace

EngineConfig config_of_replica(const EngineConfig& user, const ReplicaPart& part) {
  EngineConfig c = user;
  c.compute.dp_size = 1;
  const int32_t parts = part.num_replicas;
  divide(c.compute.num_threads, parts);
  divide(c.schedule.max_running_requests, parts);
  divide(c.schedule.max_queued_requests, parts);
  divide(c.cache.max_session_bytes, parts);
  divide(c.images.image_cache_bytes, parts);
  divide(c.grammar.grammar_cache_bytes, parts);
  divide(c.lora.max_lora_bytes, parts);
  c.tiers.hicache_size_gb /= parts;
  // Valid: start_replicas() has parsed it.
  if (const auto device = parse_device(c.compute.device); device && device->index) {
    c.compute.device = device->kind;
    c.compute.base_gpu_id = *device->index;
  }
  c.compute.base_gpu_id += part.index * c.compute.tp_size * c.compute.pp_size;
  if (part.index > 0) c.model.load_progress = [](int64_t, int64_t) {};  // the first one's is shown
  return c;
}

SystemInfo share_of_host(const SystemInfo& host, const ReplicaPart& part) {
  SystemInfo share = host;
  share.available_bytes /= part.num_replicas;
  share.num_cpus = std::max(1, host.num_cpus / part.num_replicas);
  share.mask_threads = std::max(1, host.mask_threads / part.num_replicas);
  return share;
}

Result<std::unique_ptr<Engine>> start_replicas(const EngineConfig& config,
                                               const StartReplica& start) {
  ESP_ASSIGN_OR_RETURN(const LoadBalance method,
                       parse_load_balance(config.compute.load_balance_method));
  ESP_ASSIGN_OR_RETURN(const DeviceName device, parse_device(config.compute.device));
  EngineConfig all = config;
  if (device.kind == "auto") {
    // Chosen once: a replica whose GPU is missing must not fall back to the CPU beside others.
    ESP_ASSIGN_OR_RETURN(const EngineDevice first,
                         choose_device(config.compute.device, config.compute.base_gpu_id));
    all.compute.device = first.cuda ? "cuda" : "cpu";
  }
  // All replicas have the same dummy weights.
  while (all.sampling.random_seed == 0) all.sampling.random_seed = std::random_device{}();
  const int32_t count = config.compute.dp_size;
  const SystemInfo host = read_system_info();
  std::vector<std::optional<Result<std::unique_ptr<Engine>>>> started(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      const ReplicaPart part{.index = i, .num_replicas = count, .host = host};
      started[static_cast<size_t>(i)] = start(config_of_replica(all, part), part);
    });
  for (std::thread& thread : threads) thread.join();
  std::vector<std::unique_ptr<Engine>> engines;
  for (auto& each : started) {
    if (!*each) return fail(each->error());
    engines.push_back(std::move(**each));
  }
  log_info("replicas ready dp_size={} load_balance_method={}", count,
           config.compute.load_balance_method);
  return std::make_unique<Replicas>(std::move(engines), method);
}

}  // namespace espalier
