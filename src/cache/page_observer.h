// Follows the pages of the prefix cache: what a tier of memory below the device needs to keep
// copies of them.
//
// All calls come from inside the cache's calls, on the scheduler's thread, and must not call the
// cache back. Pages of namespaces that begin with a zero byte are not reported: such keys have a
// meaning in this process alone (an adapter's number), while names are used by others.
#pragma once

#include <span>
#include <string_view>

#include "seams/kv_view.h"
#include "seams/page_name.h"

namespace espalier {

class PageObserver {
 public:
  virtual ~PageObserver() = default;

  // The cache has taken pages that can be reused, in the order of their tokens. They are computed.
  virtual void on_stored(std::span<const PageName> names, std::span<const PageId> pages) = 0;

  // A sequence begins with these cached pages, in the order of their tokens. Some may not have been
  // reported as stored.
  virtual void on_reused(std::span<const PageId> pages) = 0;

  // The cache gives up these pages, the last tokens first; their contents are there until the call
  // returns. `demote` is false where a user has dropped all that is cached.
  virtual void on_evicted(std::span<const PageId> pages, bool demote) = 0;
};

constexpr bool is_process_local(std::string_view cache_namespace) {
  return cache_namespace.starts_with('\0');
}

}  // namespace espalier
