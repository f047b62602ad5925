#include "engine/tiers/start_tiers.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "kernels/cpu/isa.h"
#include "tiers/disk_page_store.h"
#include "tiers/host_page_store.h"
#include "tiers/redis_session.h"
#include "tiers/remote_page_store.h"
#include "tiers/s3_session.h"

namespace espalier {
namespace {

constexpr double kGigabyte = 1e9;

int64_t bytes_of_gb(double gb) { return static_cast<int64_t>(gb * kGigabyte); }

std::string scope_text(const EngineConfig& config, const PageNameScope& names,
                       const PageCopier& copier) {
  return fmt::format("model {}\nlayout {}\ncomputed by {}\n", names.model_fingerprint,
                     names.kv_layout, computing_name(config, copier));
}

Result<std::filesystem::path> storage_path(const TierSettings& settings) {
  if (!settings.hicache_storage_path.empty()) return settings.hicache_storage_path;
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::filesystem::path(cache) / "espalier" / "kv";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home != '\0')
    return std::filesystem::path(home) / ".cache" / "espalier" / "kv";
  return fail(invalid_argument(
      "hicache_storage_backend is file, and the environment has neither HOME nor XDG_CACHE_HOME: "
      "give hicache_storage_path (--hicache-storage-path)"));
}

Result<std::unique_ptr<PageStore>> open_redis(const RedisServer& server, const std::string& scope,
                                              int64_t page_bytes) {
  return RemotePageStore::open({.kind = "redis",
                                .scope = scope,
                                .page_bytes = page_bytes,
                                .num_connections = server.num_connections,
                                .connect_timeout = server.connect_timeout,
                                .lookup_timeout = server.lookup_timeout,
                                .transfer_timeout = server.transfer_timeout},
                               [&]() -> Result<std::unique_ptr<RemoteSession>> {
                                 return RedisSession::create(server, digest_of_scope(scope));
                               });
}

Result<std::unique_ptr<PageStore>> open_s3(const S3Server& stated, const std::string& scope,
                                           int64_t page_bytes) {
  // A session's connections move pages at the same time, and so do the sessions.
  constexpr int32_t kSessions = 2;
  ESP_ASSIGN_OR_RETURN(const S3Server server, stated.resolved());
  return RemotePageStore::open({.kind = "s3",
                                .scope = scope,
                                .page_bytes = page_bytes,
                                .num_connections = kSessions,
                                .connect_timeout = server.connect_timeout,
                                .lookup_timeout = server.lookup_timeout,
                                .transfer_timeout = server.transfer_timeout},
                               [&]() -> Result<std::unique_ptr<RemoteSession>> {
                                 return S3Session::create(
                                     server, digest_of_scope(scope),
                                     static_cast<size_t>(page_bytes + kSlotHeaderBytes),
                                     static_cast<size_t>(server.num_connections / kSessions));
                               });
}

OpenStorage storage_opener(std::string scope, int64_t page_bytes) {
  return [scope = std::move(scope), page_bytes](
             const TierSettings& settings,
             std::string_view backend) -> Result<std::unique_ptr<PageStore>> {
    if (backend == "redis") return open_redis(settings.redis, scope, page_bytes);
    if (backend == "s3") return open_s3(settings.s3, scope, page_bytes);
    ESP_ASSIGN_OR_RETURN(auto folder, storage_path(settings));
    return DiskPageStore::open({.folder = std::move(folder),
                                .scope = scope,
                                .page_bytes = page_bytes,
                                .size_bytes = bytes_of_gb(settings.hicache_disk_size_gb)});
  };
}

// "file", "redis" or "s3" of "file", "redis", "s3", "file,redis" and "file,s3".
bool has_backend(const TierSettings& settings, std::string_view backend) {
  const std::string_view stated = settings.hicache_storage_backend;
  if (stated != "file,redis" && stated != "file,s3") return stated == backend;
  return backend == "file" || stated.substr(5) == backend;
}

Status check_storage(const TierSettings& tiers) {
  if (tiers.hicache_storage_backend != "none" && !has_backend(tiers, "file") &&
      !has_backend(tiers, "redis") && !has_backend(tiers, "s3"))
    return invalid_argument(
        "hicache_storage_backend is '{}', but must be none, file, redis, s3, file,redis or file,s3",
        tiers.hicache_storage_backend);
  if (!has_backend(tiers, "s3")) return {};
  const auto s3 = tiers.s3.resolved();
  return s3 ? Status()
            : s3.error().with_context(
                  "hicache_storage_backend s3 (--hicache-storage-backend-extra-config)");
}

Result<std::unique_ptr<HostPageStore>> open_host(const EngineConfig& config, const ModelInfo& info,
                                                 int64_t page_bytes) {
  int64_t size = bytes_of_gb(config.tiers.hicache_size_gb);
  if (size == 0 && config.tiers.hicache_ratio > 0) {
    ESP_ASSIGN_OR_RETURN(const KvType type, resolve_kv_type(config, info));
    size = static_cast<int64_t>(config.tiers.hicache_ratio *
                                static_cast<double>(kv_bytes(config, info, type)));
  }
  if (size == 0) return nullptr;
  return HostPageStore::create({.size_bytes = size, .page_bytes = page_bytes});
}

}  // namespace

// Answers must not depend on tiers, nor on the server that computed a prompt.
std::string computing_name(const EngineConfig& config, const PageCopier& copier) {
  const auto isa = kernels::resolve_cpu_isa({});
  std::string processor = copier.device_name();
  if (processor.empty() && isa) processor = kernels::cpu_isa_name(*isa);
  std::string name = fmt::format("{} {} tp_size={} ep_size={}", config.compute.device, processor,
                                 config.compute.tp_size, config.compute.ep_size);
  if (config.compute.pp_size > 1) name += fmt::format(" pp_size={}", config.compute.pp_size);
  return name;
}

Status check_tier_settings(const EngineConfig& c) {
  ESP_RETURN_IF_ERROR(check_storage(c.tiers));
  if (const auto policy = parse_prefetch_policy(c.tiers.hicache_storage_prefetch_policy); !policy)
    return policy.error();
  if (const auto policy = parse_tier_write_policy(c.tiers.hicache_write_policy); !policy)
    return policy.error();
  if (!(c.tiers.hicache_size_gb >= 0) || !(c.tiers.hicache_ratio >= 0) ||
      !(c.tiers.hicache_disk_size_gb > 0))
    return invalid_argument(
        "hicache_size is {} GB, hicache_ratio {} and hicache_disk_size {} GB, but the first two "
        "must not be negative and the last must be above 0",
        c.tiers.hicache_size_gb, c.tiers.hicache_ratio, c.tiers.hicache_disk_size_gb);
  if (!c.tiers.enable_hierarchical_cache) return {};
  if (c.cache.disable_radix_cache)
    return invalid_argument(
        "enable_hierarchical_cache and disable_radix_cache contradict each other: tiers keep what "
        "the radix cache gives up; leave one of them out");
  const bool has_host = c.tiers.hicache_size_gb > 0 || c.tiers.hicache_ratio > 0;
  if (c.tiers.hicache_storage_backend == "none" && !has_host)
    return invalid_argument(
        "enable_hierarchical_cache needs a tier: set hicache_storage_backend to file "
        "(--hicache-storage-backend file), or give the host's memory a size (--hicache-size)");
  if (c.tiers.hicache_storage_prefetch_policy == "best_effort" && !has_host)
    return invalid_argument(
        "hicache_storage_prefetch_policy best_effort loads what was prefetched to the host's "
        "memory: give that a size (--hicache-size)");
  return {};
}

Result<std::unique_ptr<KvTiers>> start_tiers(const EngineConfig& config, const ModelInfo& info,
                                             const PageNameScope& name_scope, Executor& executor,
                                             const Clock& clock) {
  if (!config.tiers.enable_hierarchical_cache) return nullptr;
  PageCopier* const copier = executor.page_copier();
  if (copier == nullptr || config.cache.max_window_tokens > 0)
    return fail(error(
        StatusCode::kUnimplemented,
        "enable_hierarchical_cache: the pages of this model cannot be kept elsewhere; it takes "
        "layers with pages of one kind (with a sliding window: --disable-hybrid-swa-memory)"));
  KvTiers::Parts parts{.copier = copier, .clock = &clock};
  ESP_ASSIGN_OR_RETURN(auto host, open_host(config, info, copier->page_bytes()));
  if (host != nullptr && copier->uses_pinned_memory())
    parts.pinner = std::make_unique<HostPinner>(*copier, host->arena(), host->part_bytes());
  parts.host = std::move(host);
  const std::string scope = scope_text(config, name_scope, *copier);
  parts.open_storage = storage_opener(scope, copier->page_bytes());
  if (has_backend(config.tiers, "file")) {
    ESP_ASSIGN_OR_RETURN(parts.storage, parts.open_storage(config.tiers, "file"));
  }
  for (const std::string_view remote : {"redis", "s3"}) {
    if (!has_backend(config.tiers, remote)) continue;
    ESP_ASSIGN_OR_RETURN(parts.remote, parts.open_storage(config.tiers, remote));
  }
  ESP_ASSIGN_OR_RETURN(const TierWritePolicy policy,
                       parse_tier_write_policy(config.tiers.hicache_write_policy));
  ESP_ASSIGN_OR_RETURN(const PrefetchPolicy prefetch,
                       parse_prefetch_policy(config.tiers.hicache_storage_prefetch_policy));
  return std::make_unique<KvTiers>(
      KvTiersConfig{.policy = policy,
                    .prefetch = prefetch,
                    .page_size = config.cache.page_size,
                    .num_device_pages = config.cache.max_total_tokens / config.cache.page_size,
                    .name_scope = name_scope,
                    .storage_scope = scope},
      std::move(parts));
}

}  // namespace espalier
