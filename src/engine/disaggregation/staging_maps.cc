#include "engine/disaggregation/staging_maps.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace espalier {

std::shared_ptr<MappedStaging> StagingMaps::map(const StagingHandle& handle) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(maps_, handle.nonce, &Map::nonce);
  if (found != maps_.end()) {
    maps_.splice(maps_.begin(), maps_, found);
    return maps_.front().memory;
  }
  auto memory = copier_.map_staging(handle);
  if (!memory)
    log_info("keys and values of a prefill server come over TCP: {}", memory.error().message());
  else
    log_info("staging memory of a prefill server is mapped kind={}", handle.kind);
  maps_.push_front({handle.nonce, memory ? std::shared_ptr(*std::move(memory)) : nullptr});
  if (maps_.size() > kMapsMax) maps_.pop_back();
  return maps_.front().memory;
}

void StagingMaps::forget(const StagingHandle& handle) {
  const std::lock_guard lock(mutex_);
  std::erase_if(maps_, [&](const Map& map) { return map.nonce == handle.nonce; });
}

}  // namespace espalier
