// Where the keys and values of a waiting sequence may come from instead of being computed: a tier
// of memory below the device, a remote store, or a prefill worker. The scheduler admits the
// sequence, gives it pages, and keeps it in state kLoading until the loader has filled them.
//
// All calls come from inside the scheduler's calls, on its thread, and return at once; the transfer
// runs meanwhile. The loader outlives the scheduler.
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
  std::span<const PageId> pages;    // the sequence's page table; in start() it covers `tokens`
};

struct LoadResult {
  SequenceId id = 0;
  // Leading tokens whose pages are resident, in whole pages, the cached ones included. The contents
  // of the pages behind them are undefined, and their tokens are computed.
  int32_t num_tokens = 0;
  int32_t num_from_host = 0, num_from_storage = 0;  // of them, loaded, by where they came from
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

  // The sequence needs its load no more: the next poll() returns its result, with whatever is
  // there.
  virtual void cancel(SequenceId id) = 0;

  // Appends the results of loads that have ended since the last call.
  virtual void poll(std::vector<LoadResult>& ended) = 0;
};

}  // namespace espalier
