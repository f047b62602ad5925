#include "engine/tiers/storage_control.h"

#include <mutex>
#include <utility>

#include "engine/tiers/kv_tiers.h"
#include "engine/tiers/page_export.h"

namespace espalier {
namespace {

using Action = StorageRequest::Action;

// Where a kind of storage is attached. There is one remote store at a time, of any kind.
struct Place {
  std::string_view backend;
  AttachedPageStore& store;
  bool has_it;  // and no other kind
};

Status attach(KvTiers& tiers, const Place& place, TierSettings settings,
              const StorageRequest& request) {
  if (place.store.is_attached())
    return error(StatusCode::kFailedPrecondition, "{} is attached already: detach it first",
                 place.has_it ? place.backend : place.store.name());
  if (!tiers.open_storage())
    return error(StatusCode::kFailedPrecondition, "these tiers take no storage while they run");
  settings.redis = request.redis;
  settings.s3 = request.s3;
  ESP_ASSIGN_OR_RETURN(auto store, tiers.open_storage()(settings, place.backend));
  place.store.attach(std::move(store));
  return {};
}

Status change(KvTiers& tiers, const Place& place, const TierSettings& settings,
              const StorageRequest& request) {
  if (request.action == Action::kAttach) return attach(tiers, place, settings, request);
  if (!place.has_it) {
    if (request.backend.empty()) return {};
    return error(StatusCode::kFailedPrecondition, "{} is not attached", place.backend);
  }
  if (request.action == Action::kDetach) place.store.attach(nullptr);
  if (request.action == Action::kClear) {
    place.store.clear();
    place.store.flush();
  }
  return {};
}

}  // namespace

Result<std::vector<StorageReport>> control_storage(KvTiers* tiers, const TierSettings& settings,
                                                   const StorageRequest& request) {
  if (tiers == nullptr)
    return fail(error(StatusCode::kFailedPrecondition,
                      "there are no tiers: start with --enable-hierarchical-cache"));
  // What is attached is shown while a file is written, which may take minutes.
  std::unique_lock lock(tiers->storage_mutex(), std::defer_lock);
  if (request.action != Action::kShow) lock.lock();
  if (request.action == Action::kExport || request.action == Action::kImport) {
    auto report = request.action == Action::kExport ? export_pages(*tiers, request)
                                                    : import_pages(*tiers, request.file);
    if (!report) return fail(report.error());
    return std::vector<StorageReport>{*std::move(report)};
  }
  AttachedPageStore& file = tiers->storage();
  AttachedPageStore& remote = tiers->remote();
  const Place places[] = {{"file", file, file.is_attached()},
                          {"redis", remote, remote.name() == "redis"},
                          {"s3", remote, remote.name() == "s3"}};
  bool is_known = request.backend.empty() && request.action != Action::kAttach;
  std::vector<StorageReport> reports;
  for (const Place& place : places) {
    const bool is_meant = request.backend == place.backend ||
                          (request.backend.empty() && request.action != Action::kAttach);
    is_known = is_known || is_meant;
    if (is_meant && request.action != Action::kShow)
      ESP_RETURN_IF_ERROR(change(*tiers, place, settings, request));
    const bool has_it = &place.store == &file ? file.is_attached() : remote.name() == place.backend;
    if (has_it) reports.push_back({std::string(place.backend), place.store.problem()});
  }
  if (!is_known)
    return fail(
        invalid_argument("there is no storage '{}': give file, redis or s3", request.backend));
  return reports;
}

}  // namespace espalier
