#include <algorithm>

#include "engine/replicas/replicas.h"

namespace espalier {
namespace {

template <typename Struct, typename Number>
void add_fields(Struct& to, const Struct& from, std::initializer_list<Number Struct::*> fields) {
  for (Number Struct::*const field : fields) to.*field += from.*field;
}

// Replicas that keep pages in one folder count the same pages there; each counts its own reads.
void add(KvTiersStats& to, const KvTiersStats& from) {
  using T = KvTiersStats;
  using S = PageStoreStats;
  add_fields<T, int64_t>(
      to, from,
      {&T::loads, &T::loads_late, &T::loads_in_part, &T::host_tokens, &T::storage_tokens});
  to.load_seconds += from.load_seconds;
  for (const TierStats& tier : from.stores) {
    const auto same = std::ranges::find(to.stores, tier.kind, &TierStats::kind);
    if (same == to.stores.end()) {
      to.stores.push_back(tier);
      continue;
    }
    add_fields<S, int64_t>(
        same->store, tier.store,
        {&S::num_pages, &S::num_pages_max, &S::found, &S::absent, &S::stored, &S::refused,
         &S::errors, &S::corrupt, &S::evicted, &S::bytes_read, &S::bytes_written});
  }
}

void add(EngineStats& to, const EngineStats& from) {
  using S = EngineStats;
  add_fields<S, int32_t>(
      to, from,
      {&S::num_running, &S::num_waiting, &S::num_grammars_waiting, &S::num_sessions,
       &S::kv_tokens_total, &S::kv_tokens_running, &S::kv_tokens_cached});
  add_fields<S, int64_t>(to, from,
                         {&S::num_requests_total,
                          &S::num_finished_total,
                          &S::num_aborted_total,
                          &S::num_failed_total,
                          &S::num_not_finite_total,
                          &S::num_retractions_total,
                          &S::prompt_tokens_total,
                          &S::cached_tokens_total,
                          &S::cached_tokens_host_total,
                          &S::cached_tokens_storage_total,
                          &S::generation_tokens_total,
                          &S::num_steps_total,
                          &S::num_entries_total,
                          &S::forced_tokens_total,
                          &S::forwards_saved_total,
                          &S::drafted_tokens_total,
                          &S::accepted_draft_tokens_total,
                          &S::verify_steps_total,
                          &S::num_masks_total,
                          &S::num_grammars_total,
                          &S::num_grammar_cache_hits_total,
                          &S::num_grammars_cancelled_total,
                          &S::num_grammars_compiled_total,
                          &S::num_grammars_kept,
                          &S::grammar_cache_bytes,
                          &S::num_images_total,
                          &S::num_images_encoded_total,
                          &S::image_row_bytes,
                          &S::session_bytes,
                          &S::num_cache_events_total,
                          &S::num_cache_events_overwritten_total,
                          &S::weight_bytes,
                          &S::kv_bytes,
                          &S::scratch_bytes,
                          &S::graph_bytes});
  add_fields<S, double>(
      to, from,
      {&S::forward_seconds_total, &S::host_seconds_total, &S::mask_seconds_total,
       &S::grammar_compile_seconds_total, &S::image_encode_seconds_total, &S::gen_throughput});
  add(to.tiers, from.tiers);
}

}  // namespace

EngineStats sum_of(const std::vector<EngineStats>& stats) {
  EngineStats sum;
  for (const EngineStats& each : stats) add(sum, each);
  return sum;
}

}  // namespace espalier
