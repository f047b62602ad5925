#include <algorithm>

#include "engine/replicas/replicas.h"

namespace espalier {
namespace {

template <typename Struct, typename Number>
void add_fields(Struct& to, const Struct& from, std::initializer_list<Number Struct::*> fields) {
  for (Number Struct::*const field : fields) to.*field += from.*field;
}

// Replicas share the disk tier's file and its pages; each counts its own reads.
void add(KvTiersStats& to, const KvTiersStats& from) {
  using T = KvTiersStats;
  using S = PageStoreStats;
  add_fields<T, int64_t>(
      to, from,
      {&T::loads, &T::loads_late, &T::loads_in_part, &T::host_tokens, &T::storage_tokens});
  using P = PrefetchStats;
  add_fields<P, int64_t>(to.prefetch, from.prefetch,
                         {&P::requests, &P::pages_started, &P::pages_fetched});
  to.load_seconds += from.load_seconds;
  to.pinned_bytes += from.pinned_bytes;
  for (const TierStats& tier : from.stores) {
    const auto same = std::ranges::find(to.stores, tier.kind, &TierStats::kind);
    if (same == to.stores.end()) {
      to.stores.push_back(tier);
      continue;
    }
    add_fields<S, int64_t>(same->store, tier.store,
                           {&S::found, &S::absent, &S::stored, &S::refused, &S::errors, &S::corrupt,
                            &S::evicted, &S::bytes_read, &S::bytes_written, &S::cut_offs});
    same->store.is_cut_off = same->store.is_cut_off || tier.store.is_cut_off;
    const bool is_shared = tier.kind == "disk";  // one file of all replicas
    const auto merge = [is_shared](int64_t& sum, int64_t more) {
      sum = is_shared ? std::max(sum, more) : sum + more;
    };
    merge(same->store.num_pages, tier.store.num_pages);
    merge(same->store.num_pages_max, tier.store.num_pages_max);
  }
}

// Each replica has counted all drafters, or none where it has drafted nothing yet.
void add(std::vector<DraftCounts>& to, const std::vector<DraftCounts>& from) {
  to.resize(std::max(to.size(), from.size()));
  for (size_t i = 0; i < from.size(); ++i) {
    using D = DraftCounts;
    add_fields<D, int64_t>(to[i], from[i],
                           {&D::drafted_tokens, &D::accepted_tokens, &D::verify_steps});
    auto& lengths = to[i].accepted_lengths.entries;
    for (size_t n = 0; n < lengths.size(); ++n) lengths[n] += from[i].accepted_lengths.entries[n];
  }
}

void add(EngineStats::Requests& to, const EngineStats::Requests& from) {
  using R = EngineStats::Requests;
  add_fields<R, int32_t>(to, from, {&R::num_running, &R::num_waiting});
  add_fields<R, int64_t>(to, from,
                         {&R::num_total, &R::num_finished, &R::num_aborted, &R::num_failed,
                          &R::num_not_finite, &R::num_retractions});
}

void add(EngineStats::Steps& to, const EngineStats::Steps& from) {
  using S = EngineStats::Steps;
  add_fields<S, int64_t>(
      to, from, {&S::num_steps, &S::num_entries, &S::num_masks, &S::num_slow, &S::num_very_slow});
  add_fields<S, double>(to, from, {&S::forward_seconds, &S::host_seconds, &S::mask_seconds});
}

void add(EngineStats::Speculation& to, const EngineStats::Speculation& from) {
  using S = EngineStats::Speculation;
  add_fields<S, int64_t>(to, from,
                         {&S::forced_tokens, &S::forwards_saved, &S::drafted_tokens,
                          &S::accepted_tokens, &S::num_verified});
  add(to.by_drafter, from.by_drafter);
}

void add(EngineStats::Grammars& to, const EngineStats::Grammars& from) {
  using G = EngineStats::Grammars;
  add_fields<G, int64_t>(to, from,
                         {&G::num_requested, &G::num_cache_hits, &G::num_cancelled,
                          &G::num_compiled, &G::num_kept, &G::kept_bytes});
  to.num_waiting += from.num_waiting;
  to.compile_seconds += from.compile_seconds;
}

void add(EngineStats::Memory& to, const EngineStats::Memory& from) {
  using M = EngineStats::Memory;
  add_fields<M, int32_t>(to, from, {&M::kv_tokens, &M::kv_tokens_running, &M::kv_tokens_cached});
  add_fields<M, int64_t>(to, from,
                         {&M::weight_bytes, &M::kv_bytes, &M::scratch_bytes, &M::graph_bytes});
}

void add(EngineStats& to, const EngineStats& from) {
  using T = EngineStats::Tokens;
  using I = EngineStats::Images;
  using C = EngineStats::CacheEvents;
  add(to.requests, from.requests);
  add_fields<T, int64_t>(
      to.tokens, from.tokens,
      {&T::prompt, &T::cached, &T::cached_host, &T::cached_storage, &T::generated});
  to.tokens.generated_per_second += from.tokens.generated_per_second;
  add(to.steps, from.steps);
  add(to.speculation, from.speculation);
  add(to.grammars, from.grammars);
  add_fields<I, int64_t>(to.images, from.images, {&I::num_total, &I::num_encoded, &I::row_bytes});
  to.images.encode_seconds += from.images.encode_seconds;
  to.sessions.num_open += from.sessions.num_open;
  to.sessions.bytes += from.sessions.bytes;
  add_fields<C, int64_t>(to.cache_events, from.cache_events, {&C::num_total, &C::num_overwritten});
  add_counts(to.experts, from.experts);
  add(to.memory, from.memory);
  add(to.tiers, from.tiers);
  using P = DisaggregationStats;
  add_fields<P, int64_t>(
      to.disaggregation, from.disaggregation,
      {&P::num_transfers, &P::num_failed, &P::num_bytes, &P::num_waiting, &P::waiting_bytes});
  to.disaggregation.seconds += from.disaggregation.seconds;
}

}  // namespace

EngineStats sum_of(const std::vector<EngineStats>& stats) {
  EngineStats sum;
  for (const EngineStats& each : stats) add(sum, each);
  return sum;
}

}  // namespace espalier
