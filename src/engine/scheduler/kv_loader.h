// Where the keys and values of a waiting sequence may come from instead of being computed: a tier
// of memory below the device, a remote store, or a prefill worker. The scheduler admits the
// sequence, gives it pages, and keeps it in state kLoading until the loader has filled them.
//
// All calls come from inside the scheduler's calls, on its thread, and return at once; the transfer
// runs meanwhile. The loader outlives the scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "seams/forward_batch.h"
#include "seams/sampling.h"

namespace espalier {

// Log-probabilities of positions from `first` on: of the prompt, and of tokens that a grammar
// forced.
struct LogprobsFrom {
  int32_t first = 0;
  std::vector<TokenLogprobs> logprobs;
};

// What a prefill server computed besides the keys and values of all of a sequence's tokens.
struct RemotePrefill {
  std::vector<LogprobsFrom> input_logprobs;  // in order, all that the sequence wants
  TokenId token = 0;                         // sampled behind the tokens
  TokenLogprobs logprobs;
  int32_t cached_tokens = 0;  // of the prompt, on the prefill server
};

// What an entry of a sequence with Handoff::kGive has computed. Spans are valid during the call.
struct PrefillProgress {
  std::span<const PageId> pages;  // the sequence's page table
  int32_t num_computed = 0;       // leading tokens whose keys and values lie in the pages
  int32_t num_tokens = 0;         // that are computed before the first one is sampled
  int32_t first_logprob = 0;      // `logprobs` are of the positions from here on
  std::span<const TokenLogprobs> logprobs;
  bool has_token = false;  // the first token has been sampled: all that follows
  TokenId token = 0;
  const TokenLogprobs* token_logprobs = nullptr;
  int32_t cached_tokens = 0;
};

struct LoadRequest {
  SequenceId id = 0;
  std::string_view cache_namespace;
  // That may be loaded, from the sequence's first on: with Handoff::kTake all that there are.
  std::span<const TokenId> tokens;
  int32_t num_cached = 0;         // of these, already in the sequence's pages
  std::span<const PageId> pages;  // the sequence's page table; in start() it covers `tokens`
};

struct LoadResult {
  SequenceId id = 0;
  // Leading tokens whose pages are resident, in whole pages, the cached ones included. The contents
  // of the pages behind them are undefined, and their tokens are computed.
  int32_t num_tokens = 0;
  int32_t num_from_host = 0, num_from_storage = 0;  // of them, loaded, by where they came from
  Status status;                                    // a failure ends the sequence
  std::unique_ptr<RemotePrefill> prefill;  // of Handoff::kTake: then all tokens are resident
};

class KvLoader {
 public:
  virtual ~KvLoader() = default;

  // The sequence begins to wait for its turn, so what it may load can be found out and brought
  // nearer; `pages` is empty. num_available() or forget() ends that.
  virtual void prefetch(const LoadRequest& request) = 0;
  // The sequence is gone before it was admitted.
  virtual void forget(SequenceId id) = 0;

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
