// What runs next. Source: Algorithm 1 of the SGLang paper, with its budget grown as it admits, the
// output to come estimated, prompts cut into chunks, and retraction when the estimate was too bold.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "engine/scheduler/scheduler_impl.h"

namespace espalier {

namespace {
// An admission that failed for want of memory is tried again after a release, or after so many
// steps, for the ratio has decayed meanwhile.
constexpr uint64_t kAdmissionRetrySteps = 8;
// Output tokens that each running sequence is given for certain when the ratio is raised.
constexpr int64_t kRetractionHeadroom = 20;
}  // namespace

bool Scheduler::Impl::next(ForwardBatch& batch) {
  ESP_CHECK(launched_step - committed_step <= 1, "two batches are uncommitted");
  page_tables.begin(batch);
  batch.slot_inits.clear();
  batch.lanes.clear();
  batch.token_ids.clear();
  batch.positions.clear();
  batch.step = launched_step + 1;
  fill(batch);
  // Nothing in flight and nothing that fits: prompts in pieces hold the whole pool. Fewer will fit.
  while (batch.lanes.empty() && launched_step == committed_step && running.size() > 1) {
    retract(least_loss());
    fill(batch);
  }
  page_tables.end(batch);
  if (batch.lanes.empty()) {
    ESP_CHECK(launched_step > committed_step || sequences.empty(), "nothing can run");
    return false;
  }
  ++launched_step;
  ++stats.steps;
  stats.lanes += static_cast<int64_t>(batch.lanes.size());
  return true;
}

void Scheduler::Impl::fill(ForwardBatch& batch) {
  chunk_left = config.chunked_prefill_size > 0 ? config.chunked_prefill_size
                                               : std::numeric_limits<int32_t>::max();
  make_room_for_decode();
  add_decode_lanes(batch);
  add_chunks(batch);
  if (running.empty() && num_leaving == 0) ratio.reset();
  admit(batch);
}

// Pages that come back without any eviction or retraction once what is in flight is committed.
int32_t Scheduler::Impl::pages_coming_back() const {
  int32_t count = 0;
  for (const auto& [step, pages] : detached) count += static_cast<int32_t>(pages.pages().size());
  if (num_leaving > 0)
    for (const Sequence* s : slots)
      if (s != nullptr && s->state != SequenceState::kRunning)
        count += cache.num_pages_held_alone(s->pages);
  return count;
}

void Scheduler::Impl::make_room_for_decode() {
  const auto count_needed = [&] {
    int32_t pages = 0;
    for (const Sequence* s : running)
      if (s->wants_decode_lane())
        pages +=
            std::max(cache.num_pages_for(s->num_launched + s->num_due()) - s->pages.num_pages(), 0);
    return pages;
  };
  int32_t num_needed = count_needed();
  const auto short_of_pages = [&] {
    const int32_t available = cache.sizes().available();
    return available < num_needed && available + pages_coming_back() < num_needed;
  };
  while (running.size() > 1 && short_of_pages()) {
    retract(least_loss());
    num_needed = count_needed();
  }
}

void Scheduler::Impl::add_decode_lanes(ForwardBatch& batch) {
  bool any = false;
  for (Sequence* sequence : running) {
    if (!sequence->wants_decode_lane()) continue;
    // Forced tokens beyond one count as a prompt's do. Without a page it stands still for this
    // step: some are coming back.
    const int32_t count = 1 + std::min(sequence->num_due() - 1, chunk_left);
    if (!cache.grow(sequence->pages, sequence->num_launched + count)) continue;
    chunk_left -= count - 1;
    add_lane(batch, *sequence, count);
    any = true;
  }
  if (any) ratio.decay();
}

void Scheduler::Impl::add_chunks(ForwardBatch& batch) {
  for (Sequence* sequence : running)
    if (sequence->prefilling()) add_chunk(batch, *sequence);
}

// As much of the prompt as the step and the memory allow.
void Scheduler::Impl::add_chunk(ForwardBatch& batch, Sequence& sequence) {
  const int64_t room =
      (int64_t{sequence.pages.num_pages()} + cache.sizes().available()) * cache.page_size() -
      sequence.num_launched;
  const auto count = static_cast<int32_t>(
      std::min<int64_t>(room, std::min(chunk_left, sequence.prefill_end - sequence.num_launched)));
  if (count <= 0) return;
  ESP_CHECK(cache.grow(sequence.pages, sequence.num_launched + count));
  chunk_left -= count;
  add_lane(batch, sequence, count);
}

void Scheduler::Impl::add_lane(ForwardBatch& batch, Sequence& sequence, int32_t num_query_tokens) {
  if (sequence.needs_slot_init) {
    SlotInit init{.slot = sequence.slot, .sampling = sequence.spec.sampling};
    if (init.sampling->has_penalties()) {
      const auto output = sequence.tokens.begin() + sequence.prompt_len;
      init.prompt_ids.assign(sequence.tokens.begin(), output);
      init.output_ids.assign(output, sequence.tokens.end());
    }
    batch.slot_inits.push_back(std::move(init));
    sequence.needs_slot_init = false;
  }
  const int32_t begin = sequence.num_launched, end = begin + num_query_tokens;
  const bool was_prefilling = sequence.prefilling();
  Lane& lane = batch.lanes.emplace_back();
  lane.slot = sequence.slot;
  lane.num_query_tokens = num_query_tokens;
  lane.prefix_len = begin;
  lane.query_begin = batch.num_tokens();
  lane.num_pages = cache.num_pages_for(end);
  lane.page_begin = page_tables.place(
      batch, sequence.slot, sequence.table_version,
      sequence.pages.table().first(static_cast<size_t>(lane.num_pages)), sequence.num_pages_max);
  lane.table_version = sequence.table_version;
  lane.sample = end >= sequence.num_tokens() && sequence.spec.max_new_tokens > 0;
  lane.sequence = sequence.spec.id;
  lane.has_mask = lane.sample && sequence.spec.has_grammar;
  lane.output_index = sequence.num_samples_launched;
  for (int32_t i = begin; i < end; ++i) {
    batch.token_ids.push_back(i < sequence.num_tokens() ? sequence.tokens[static_cast<size_t>(i)]
                                                        : kTokenFromSlot);
    batch.positions.push_back(i);
  }

  sequence.num_launched = end;
  sequence.last_step = batch.step;
  if (lane.sample) ++sequence.num_samples_launched;
  if (was_prefilling) add_input_logprob_targets(lane, sequence);
}

// The token at prompt position p is judged by the logits of position p - 1.
void Scheduler::Impl::add_input_logprob_targets(Lane& lane, Sequence& sequence) const {
  const int32_t end = std::min(sequence.num_launched + 1, sequence.prompt_len);
  if (sequence.next_logprob >= end) return;
  lane.input_logprob_begin = sequence.next_logprob - 1 - lane.prefix_len;
  lane.input_logprob_targets.assign(sequence.tokens.begin() + sequence.next_logprob,
                                    sequence.tokens.begin() + end);
  sequence.next_logprob = end;
}

// Beyond its pages: the rest of its prompt, and its estimated share of the output still to come.
int32_t Scheduler::Impl::pages_still_needed(const Sequence& s) const {
  const int32_t to_come =
      std::min(s.spec.max_new_tokens - s.num_samples_launched, config.new_token_clip);
  const int32_t known = std::max(s.num_launched, s.num_tokens());
  const auto estimate = static_cast<int32_t>(std::ceil(ratio.value() * to_come));
  return std::max(cache.num_pages_for(known + estimate) - s.pages.num_pages(), 0);
}

void Scheduler::Impl::admit(ForwardBatch& batch) {
  const bool empty = running.empty() && num_leaving == 0;
  if (waiting.empty() || free_slots.empty() || chunk_left <= 0) return;
  if (batch.step < admission_retry_step && !empty) return;
  waiting.order(cache, num_admitted, order);
  int32_t num_reserved = 0;
  for (const Sequence* s : running) num_reserved += pages_still_needed(*s);
  for (Sequence* sequence : order) {
    if (free_slots.empty() || chunk_left <= 0) return;
    if (should_wait_for_prefix(*sequence)) continue;
    if (!try_admit(*sequence, num_reserved)) {
      // Whoever comes after it must not take what it waits for.
      admission_retry_step = batch.step + kAdmissionRetrySteps;
      return;
    }
    add_chunk(batch, *sequence);
    num_reserved += pages_still_needed(*sequence);  // beyond what the chunk has taken
  }
}

// True when what others are computing now saves it much. Those that go first do not wait.
bool Scheduler::Impl::should_wait_for_prefix(Sequence& sequence) {
  if (promised.empty() || sequence.was_retracted() || num_admitted >= sequence.overdue_at)
    return false;
  const int32_t soon = promised.match(sequence, sequence.match_limit());
  if (soon == 0) return false;
  const int32_t cached = current_match(sequence, cache);
  const int32_t saved = soon - cached;
  return saved > 0 &&
         (saved >= config.deferral_min_tokens || 2 * saved >= sequence.num_tokens() - cached);
}

// With nothing else to wait for, it is admitted whatever the estimate says: alone it fits.
bool Scheduler::Impl::try_admit(Sequence& sequence, int32_t num_reserved_pages) {
  const bool alone = running.empty() && num_leaving == 0;
  sequence.pages =
      cache.begin(sequence.spec.cache_namespace, sequence.first_tokens(sequence.match_limit()),
                  sequence.spec.priority);
  const int32_t num_cached = sequence.pages.num_pages() * cache.page_size();
  sequence.num_computed = sequence.num_launched = num_cached;
  sequence.prefill_end = sequence.num_tokens();
  sequence.num_samples_launched = sequence.num_outputs();
  const int32_t num_needed = pages_still_needed(sequence);
  if (!alone && num_needed + num_reserved_pages > cache.sizes().available()) {
    sequence.pages.reset();
    return false;
  }
  waiting.remove(sequence);
  running.push_back(&sequence);
  sequence.state = SequenceState::kRunning;
  sequence.slot = free_slots.back();
  free_slots.pop_back();
  slots[static_cast<size_t>(sequence.slot)] = &sequence;
  sequence.needs_slot_init = true;
  const int32_t most = sequence.prompt_len + sequence.spec.max_new_tokens;
  sequence.tokens.reserve(static_cast<size_t>(most));
  sequence.num_pages_max = cache.num_pages_for(most);
  sequence.pages.reserve(sequence.num_pages_max);
  sequence.table_version = ++last_table_version;
  if (cache.reuses()) promised.add(sequence);
  if (!sequence.was_retracted()) {
    ++num_admitted;
    sequence.stats.scheduled = clock.now();
    sequence.stats.cached_tokens = num_cached;
    stats.prompt_tokens += sequence.prompt_len;
    stats.cached_tokens += num_cached;
  }
  return true;
}

// The fewest output tokens, and of those the last admitted: so the one that is furthest always
// advances, and every sequence ends.
Sequence& Scheduler::Impl::least_loss() const {
  return **std::min_element(
      running.rbegin(), running.rend(),
      [](const Sequence* a, const Sequence* b) { return a->num_outputs() < b->num_outputs(); });
}

void Scheduler::Impl::retract(Sequence& victim) {
  std::erase(running, &victim);
  promised.remove(victim);
  victim.state = SequenceState::kRetracting;
  ++num_leaving;
  ++stats.num_retractions;
  ++victim.stats.num_retractions;
  int64_t used = 0, allowed = 0;
  for (const Sequence* s : running) {
    used += s->num_outputs() + kRetractionHeadroom;
    allowed += s->spec.max_new_tokens;
  }
  ratio.raise(used, allowed);
  if (!in_flight(victim)) leave(victim);
}

}  // namespace espalier
