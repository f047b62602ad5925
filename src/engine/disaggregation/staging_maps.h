// The staging memories of prefill servers that a decode server has mapped: mapping takes
// milliseconds, so it is done once for each, and undone when a transfer from there has failed or
// others have come. Thread-safe.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "cache/page_copier.h"
#include "seams/staged_pages.h"

namespace espalier {

class StagingMaps {
 public:
  static constexpr size_t kMapsMax = 8;

  explicit StagingMaps(PageCopier& copier) : copier_(copier) {}  // borrowed

  // Null where it cannot be mapped from here, which is logged once for each server.
  std::shared_ptr<MappedStaging> map(const StagingHandle& handle);
  // Its process has perhaps ended: the next map() maps anew.
  void forget(const StagingHandle& handle);

 private:
  struct Map {
    decltype(StagingHandle::nonce) nonce;
    // Shared with the transfers that read from it; null: it cannot be mapped.
    std::shared_ptr<MappedStaging> memory;
  };
  PageCopier& copier_;
  std::mutex mutex_;
  std::list<Map> maps_;  // the last used first
};

}  // namespace espalier
