// Where the keys and values of a waiting sequence may come from instead of being computed: a tier
// of memory below the device, a remote store, or a prefill worker. The scheduler admits the
// sequence, gives it pages, and keeps it in state kLoading until the loader has filled them.
//
// All calls come from inside Scheduler::next(), on the scheduler's thread, and return at once; the
// transfer runs meanwhile. The loader outlives the scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "seams/forward_batch.h"

namespace espalier {

struct LoadRequest {
  SequenceId id = 0;
  std::string_view cache_namespace;
  std::span<const TokenId> tokens;  // that may be loaded, from the sequence's first on
  int32_t num_cached = 0;           // of these, already in the sequence's pages
  std::span<const PageId> pages;    // the sequence's page table, in start()
};

struct LoadResult {
  SequenceId id = 0;
  bool ok = false;  // false: the pages' contents are undefined, and the tokens are computed instead
};

class KvLoader {
 public:
  virtual ~KvLoader() = default;

  // How many leading tokens of the request are available, the cached ones included; no more than
  // num_cached: nothing is loaded.
  virtual int32_t num_available(const LoadRequest& request) = 0;

  // Starts to load tokens [num_cached, tokens.size()) into their pages. No step uses these pages,
  // and they are not given back, before poll() has returned the result.
  virtual void start(const LoadRequest& request) = 0;

  // Appends the results of loads that have ended since the last call.
  virtual void poll(std::vector<LoadResult>& ended) = 0;
};

}  // namespace espalier
