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
// How many waiting sequences (each with all that share its prefix) a step may pass over. Their turn
// comes when what they wait for is cached, a few steps later.
constexpr int kSetAsideMax = 64;
// So often a sequence is preempted at most.
constexpr int32_t kPreemptionsMax = 3;
}  // namespace

bool Scheduler::Impl::next(ForwardBatch& batch) {
  ESP_CHECK(launched_step - committed_step <= 1, "two batches are uncommitted");
  page_tables.begin(batch);
  batch.slot_inits.clear();
  batch.entries.clear();
  batch.token_ids.clear();
  batch.positions.clear();
  batch.draft_samples.clear();
  batch.step = launched_step + 1;
  fill(batch);
  // Nothing in flight and nothing that fits: prompts in pieces hold the whole pool. Fewer will fit.
  while (batch.entries.empty() && launched_step == committed_step && running.size() > 1) {
    retract(least_loss());
    fill(batch);
  }
  page_tables.end(batch);
  if (config.find_shared_prefixes) find_shared_prefixes(batch);
  if (batch.entries.empty()) {
    ESP_CHECK(launched_step > committed_step || sequences.empty(), "nothing can run");
    return false;
  }
  ++launched_step;
  ++stats.steps;
  stats.entries += static_cast<int64_t>(batch.entries.size());
  return true;
}

void Scheduler::Impl::fill(ForwardBatch& batch) {
  chunk_left = config.chunked_prefill_size > 0 ? config.chunked_prefill_size
                                               : std::numeric_limits<int32_t>::max();
  draft_samples_left = config.draft_samples_max;
  make_room_for_decode();
  add_decode_entries(batch);
  if (config.inter_token_seconds_max > 0 && !batch.entries.empty())
    chunk_left = std::min(chunk_left, step_time.tokens_within(config.inter_token_seconds_max));
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

// The same of the window's map, with what the window passes.
int32_t Scheduler::Impl::window_pages_coming_back() const {
  int32_t count = 0;
  for (const auto& [step, pages] : detached) count += static_cast<int32_t>(pages.pages().size());
  for (const Sequence* s : slots) {
    if (s == nullptr) continue;
    count += s->state == SequenceState::kRunning
                 ? cache.num_window_pages_passed(s->pages, s->num_launched)
                 : s->pages.num_window_pages();
  }
  return count;
}

// Of the window's map, beyond what it has.
int32_t Scheduler::Impl::window_pages_still_needed(const Sequence& s) const {
  return std::max(0, cache.num_window_pages_most(s.num_pages_max) - s.pages.num_window_pages());
}

void Scheduler::Impl::make_room_for_decode() {
  const auto count_needed = [&] {
    int32_t pages = 0;
    for (size_t i = 0; i < running.size(); ++i) {
      if (i + kStepsAhead < running.size()) running[i + kStepsAhead]->prefetch_step();
      const Sequence& s = *running[i];
      if (s.wants_decode_entry())
        pages +=
            std::max(cache.num_pages_for(s.num_launched + s.num_due()) - s.pages.num_pages(), 0);
    }
    return pages;
  };
  int32_t num_needed = count_needed();
  const auto short_of_pages = [&] {
    const PrefixCacheSizes sizes = cache.sizes();
    return (sizes.available() < num_needed &&
            sizes.available() + pages_coming_back() < num_needed) ||
           (sizes.window_available < num_needed &&
            sizes.window_available + window_pages_coming_back() < num_needed);
  };
  while (running.size() > 1 && short_of_pages()) {
    retract(least_loss());
    num_needed = count_needed();
  }
}

void Scheduler::Impl::add_decode_entries(ForwardBatch& batch) {
  bool any = false;
  for (size_t i = 0; i < running.size(); ++i) {
    if (i + kStepsAhead < running.size()) running[i + kStepsAhead]->prefetch_step();
    if (i + kEndsAhead < running.size()) {
      running[i + kEndsAhead]->prefetch_ends();
      page_tables.prefetch_end(batch, running[i + kEndsAhead]->slot);
    }
    Sequence* const sequence = running[i];
    if (!sequence->wants_decode_entry() || waits_to_draft(*sequence)) continue;
    // Forced tokens beyond one count as a prompt's do. Without a page it stands still for this
    // step: some are coming back.
    const auto most =
        static_cast<int32_t>(std::min<int64_t>(room_for(*sequence), sequence->num_due()));
    const int32_t count = 1 + std::clamp(most - 1, 0, chunk_left);
    if (!grow(*sequence, sequence->num_launched + count)) continue;
    chunk_left -= count - 1;
    draft(*sequence, count);
    add_entry(batch, *sequence, count);
    any = true;
  }
  if (any) ratio.decay();
}

void Scheduler::Impl::find_shared_prefixes(ForwardBatch& batch) {
  shared_prefixes.begin();
  for (size_t i = 0; i < batch.entries.size(); ++i)
    if (batch.entries[i].num_query_tokens == 1)
      shared_prefixes.add(cache, slots[static_cast<size_t>(batch.entries[i].slot)]->pages,
                          static_cast<int32_t>(i));
  shared_prefixes.fill(batch);
}

void Scheduler::Impl::add_chunks(ForwardBatch& batch) {
  for (Sequence* sequence : running)
    if (sequence->prefilling()) add_chunk(batch, *sequence);
}

// Tokens that its pages, and those that there are, can take.
int64_t Scheduler::Impl::room_for(const Sequence& sequence) const {
  return (int64_t{sequence.pages.num_pages()} + cache.sizes().available_now()) * cache.page_size() -
         sequence.num_launched;
}

// As much of the prompt as the step and the memory allow.
void Scheduler::Impl::add_chunk(ForwardBatch& batch, Sequence& sequence) {
  const auto count = static_cast<int32_t>(std::min<int64_t>(
      room_for(sequence), std::min(chunk_left, sequence.prefill_end - sequence.num_launched)));
  if (count <= 0) return;
  ESP_CHECK(grow(sequence, sequence.num_launched + count));
  chunk_left -= count;
  draft(sequence, count);
  add_entry(batch, sequence, count);
}

// Guesses behind an entry of so many tokens, within what others leave: nobody waits for their sake.
void Scheduler::Impl::draft(Sequence& sequence, int32_t num_query_tokens) {
  drafts.tokens.clear();
  drafts.samples.clear();
  const SequenceSpec& spec = sequence.spec;
  const int32_t begin = sequence.num_launched + num_query_tokens;
  if (draft_samples_left == 0 || !spec.has_grammar || begin != sequence.num_tokens() ||
      spec.sampling->has_penalties() || spec.sampling->return_logprob)
    return;
  const int64_t spare = int64_t{cache.sizes().available_now()} - std::ssize(running);
  const int64_t most = std::min<int64_t>(
      {chunk_left, spec.max_new_tokens - sequence.num_outputs() - 1, spare * cache.page_size()});
  if (most <= 0) return;
  drafts.tokens_max = static_cast<int32_t>(most);
  drafts.samples_max = draft_samples_left;
  observer.on_draft(spec.id, drafts);
  const auto count = static_cast<int32_t>(drafts.tokens.size());
  ESP_CHECK(count <= most && std::ssize(drafts.samples) <= draft_samples_left);
  if (count > 0 && !grow(sequence, begin + count)) {
    drafts.tokens.clear();
    drafts.samples.clear();
    return;
  }
  chunk_left -= count;
  draft_samples_left -= static_cast<int32_t>(drafts.samples.size());
}

// Its entry would be of one token that is being drawn, and nothing could be guessed behind it.
bool Scheduler::Impl::waits_to_draft(Sequence& sequence) {
  if (draft_samples_left == 0 || !sequence.spec.has_grammar || !in_flight(sequence) ||
      sequence.num_launched != sequence.num_tokens() || sequence.stale_step >= sequence.last_step ||
      sequence.spec.sampling->has_penalties() || sequence.spec.sampling->return_logprob)
    return false;
  sequence.held = observer.drafts_behind_next(sequence.spec.id);
  return sequence.held;
}

// Pages for so many tokens. What it evicts for them is the tree's work.
bool Scheduler::Impl::grow(Sequence& sequence, int32_t num_tokens) {
  const int32_t missing = cache.num_pages_for(num_tokens) - sequence.pages.num_pages();
  const bool evicts = config.time_tree_work && missing > cache.sizes().free;
  const WorkTimer timer(evicts ? tree_clock() : nullptr);
  return cache.grow(sequence.pages, num_tokens);
}

void Scheduler::Impl::add_entry(ForwardBatch& batch, Sequence& sequence, int32_t num_query_tokens) {
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
  BatchEntry& entry = batch.entries.emplace_back();
  entry.slot = sequence.slot;
  entry.num_drafts = static_cast<int32_t>(drafts.tokens.size());
  entry.num_query_tokens = num_query_tokens + entry.num_drafts;
  entry.prefix_len = begin;
  entry.query_begin = batch.num_tokens();
  entry.num_pages = cache.num_pages_for(end + entry.num_drafts);
  entry.page_begin = page_tables.place(
      batch, sequence.slot, sequence.table_version,
      sequence.pages.table().first(static_cast<size_t>(entry.num_pages)),
      cache.has_window() ? sequence.pages.window_table().first(static_cast<size_t>(entry.num_pages))
                         : std::span<const PageId>(),
      sequence.num_pages_max);
  entry.table_version = sequence.table_version;
  entry.sample = end >= sequence.num_tokens() && sequence.spec.max_new_tokens > 0;
  entry.sequence = sequence.spec.id;
  entry.has_mask = entry.sample && sequence.spec.has_grammar;
  entry.output_index = sequence.num_samples_launched;
  for (int32_t i = begin; i < end; ++i) {
    batch.token_ids.push_back(i < sequence.num_tokens() ? sequence.tokens[static_cast<size_t>(i)]
                                                        : kTokenFromSlot);
    batch.positions.push_back(i);
  }

  add_drafts(batch, entry);

  sequence.num_launched = end;
  sequence.last_step = batch.step;
  if (entry.sample) ++sequence.num_samples_launched;
  if (entry.has_mask && end == sequence.num_tokens())
    sequence.held = entry.num_drafts > 0 || observer.forces_behind_any(sequence.spec.id);
  add_input_logprob_targets(entry, sequence);
  if (sequence.spec.pooled == PooledTokens::kNone) return;
  entry.pooled_end = end == sequence.prefill_end;
  if (sequence.spec.pooled == PooledTokens::kAll)
    entry.pooled_begin = 0;
  else if (entry.pooled_end)
    entry.pooled_begin = num_query_tokens - 1;
}

void Scheduler::Impl::add_drafts(ForwardBatch& batch, BatchEntry& entry) const {
  if (entry.num_drafts == 0) return;
  entry.draft_samples_begin = static_cast<int32_t>(batch.draft_samples.size());
  entry.num_draft_samples = static_cast<int32_t>(drafts.samples.size());
  batch.draft_samples.insert(batch.draft_samples.end(), drafts.samples.begin(),
                             drafts.samples.end());
  batch.token_ids.insert(batch.token_ids.end(), drafts.tokens.begin(), drafts.tokens.end());
  for (int32_t i = 0; i < entry.num_drafts; ++i)
    batch.positions.push_back(batch.positions.back() + 1);
}

// The token at position p is judged by the logits of position p - 1.
void Scheduler::Impl::add_input_logprob_targets(BatchEntry& entry, Sequence& sequence) const {
  const int32_t end = std::min(sequence.num_launched + 1, sequence.logprob_end);
  if (sequence.next_logprob >= end) return;
  entry.input_logprob_begin = sequence.next_logprob - 1 - entry.prefix_len;
  entry.input_logprob_targets.assign(sequence.tokens.begin() + sequence.next_logprob,
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
  if (waiting.empty() || chunk_left <= 0) return;
  if (free_slots.empty() && !may_preempt()) return;
  if (batch.step < admission_retry_step && !empty) return;
  const WorkTimer timer(tree_clock());
  let_go(batch.step);
  int32_t num_reserved = 0, num_set_aside = 0;
  for (const Sequence* s : running) num_reserved += pages_still_needed(*s);
  while (chunk_left > 0 && num_set_aside < kSetAsideMax) {
    Sequence* const sequence = waiting.next();
    if (sequence == nullptr || (free_slots.empty() && !may_preempt())) break;
    if (const int32_t num_shared = prefix_to_wait_for(*sequence); num_shared > 0) {
      waiting.set_aside(*sequence, num_shared);
      ++num_set_aside;
      continue;
    }
    if (free_slots.empty() || !try_admit(*sequence, num_reserved)) {
      // Whoever comes after it must not take what it waits for.
      if (!make_way(*sequence))
        admission_retry_step = batch.step + (num_lingering > 0 ? 1 : kAdmissionRetrySteps);
      break;
    }
    add_chunk(batch, *sequence);
    num_reserved += pages_still_needed(*sequence);  // beyond what the chunk has taken
  }
  waiting.end_round();
}

// How many tokens it shares with what others are computing now, when that saves it so much that it
// waits; whoever shares as many waits too. 0: it does not. Those that go first do not wait.
int32_t Scheduler::Impl::prefix_to_wait_for(Sequence& sequence) {
  if (promised.empty() || sequence.was_retracted() || waiting.is_overdue(sequence)) return 0;
  const int32_t soon = promised.match(sequence, sequence.match_limit());
  if (soon == 0) return 0;
  const int32_t cached = current_match(sequence, cache);
  const int32_t saved = soon - cached;
  if (saved <= 0) return 0;
  if (saved >= config.deferral_min_tokens) return cached + config.deferral_min_tokens;
  return 2 * saved >= sequence.num_tokens() - cached ? std::numeric_limits<int32_t>::max() : 0;
}

// With nothing else to wait for, it is admitted whatever the estimate says: alone it fits.
bool Scheduler::Impl::try_admit(Sequence& sequence, int32_t num_reserved_pages) {
  const bool alone = running.empty() && num_leaving == 0;
  const int32_t num_evictable = cache.sizes().evictable;
  sequence.pages =
      cache.begin(sequence.spec.cache_namespace, sequence.first_tokens(sequence.match_limit()),
                  sequence.spec.priority);
  const int32_t num_cached = sequence.pages.num_pages() * cache.page_size();
  sequence.num_computed = sequence.num_launched = num_cached;
  sequence.prefill_end = sequence.num_tokens();
  sequence.num_samples_launched = sequence.num_outputs();
  const int32_t num_needed = pages_still_needed(sequence);
  const int32_t most = sequence.prompt_len + sequence.spec.max_new_tokens;
  sequence.num_pages_max = cache.num_pages_for(most);
  const PrefixCacheSizes sizes = cache.sizes();
  // What lingers is not for it, but for what of that it has come for.
  const int32_t num_matched = num_evictable - sizes.evictable;
  const int32_t num_kept = waiting.is_overdue(sequence)
                               ? 0
                               : std::clamp(num_lingering - num_matched, 0, sizes.evictable);
  if (!alone && (num_needed + num_reserved_pages + num_kept > sizes.available() ||
                 !window_has_room(sequence))) {
    sequence.pages.reset();
    return false;
  }
  take_lingering(num_matched);
  sequence.keeps_its_place = !sequence.was_retracted() && waiting.is_overdue(sequence);
  waiting.remove(sequence);
  running.push_back(&sequence);
  sequence.state = SequenceState::kRunning;
  sequence.slot = free_slots.back();
  free_slots.pop_back();
  slots[static_cast<size_t>(sequence.slot)] = &sequence;
  sequence.needs_slot_init = true;
  sequence.tokens.reserve(static_cast<size_t>(most));
  sequence.pages.reserve(sequence.num_pages_max);
  sequence.table_version = ++last_table_version;
  if (cache.reuses()) promised.add(sequence);
  if (sequence.stats.num_retractions == 0) {
    // Tokens that its grammar has forced by now may be cached behind the prompt.
    const int32_t num_prompt_cached = std::min(num_cached, sequence.prompt_len);
    waiting.charge(sequence, sequence.prompt_len - num_prompt_cached);
    sequence.stats.scheduled = clock.now();
    sequence.stats.cached_tokens = num_prompt_cached;
    stats.prompt_tokens += sequence.prompt_len;
    stats.cached_tokens += num_prompt_cached;
  }
  return true;
}

// It has ended, and holds its pages still.
void Scheduler::Impl::linger(const Sequence& sequence) {
  if (config.linger_steps == 0 || !orders_by_prefix() || !cache.reuses()) return;
  const int32_t num_pages = cache.num_pages_held_alone(sequence.pages);
  lingering.push_back({launched_step + static_cast<uint64_t>(config.linger_steps), num_pages});
  num_lingering += num_pages;
}

void Scheduler::Impl::let_go(uint64_t step) {
  for (; !lingering.empty() && lingering.front().until_step < step; lingering.pop_front())
    num_lingering -= lingering.front().num_pages;
}

void Scheduler::Impl::take_lingering(int32_t count) {
  for (auto it = lingering.rbegin(); it != lingering.rend() && count > 0; ++it) {
    const int32_t taken = std::min(count, it->num_pages);
    it->num_pages -= taken;
    num_lingering -= taken;
    count -= taken;
  }
}

// For the windows of all that run and this one's, whose pages it has begun with.
bool Scheduler::Impl::window_has_room(const Sequence& sequence) const {
  if (!cache.has_window()) return true;
  int64_t num_needed = window_pages_still_needed(sequence);
  for (const Sequence* s : running) num_needed += window_pages_still_needed(*s);
  return num_needed <= cache.sizes().window_available;
}

// The fewest output tokens, and of those the last admitted: so the one that is furthest always
// advances, and every sequence ends.
Sequence& Scheduler::Impl::least_loss() const {
  return **std::min_element(
      running.rbegin(), running.rend(),
      [](const Sequence* a, const Sequence* b) { return a->num_outputs() < b->num_outputs(); });
}

void Scheduler::Impl::leave_running(Sequence& victim) {
  std::erase(running, &victim);
  promised.remove(victim);
  victim.state = SequenceState::kRetracting;
  ++num_leaving;
  ++stats.num_retractions;
  ++victim.stats.num_retractions;
}

void Scheduler::Impl::retract(Sequence& victim) {
  leave_running(victim);
  int64_t used = 0, allowed = 0;
  for (const Sequence* s : running) {
    used += s->num_outputs() + kRetractionHeadroom;
    allowed += s->spec.max_new_tokens;
  }
  ratio.raise(used, allowed);
  if (!in_flight(victim)) leave(victim);
}

void Scheduler::Impl::preempt(Sequence& victim) {
  victim.preempted = true;
  ++victim.num_preemptions;
  ++stats.num_preemptions;
  leave_running(victim);
  if (!in_flight(victim)) leave(victim);
}

// Lowest priority first, and of those the last admitted.
std::vector<Sequence*> Scheduler::Impl::preemptible_by(const Sequence& sequence) const {
  std::vector<Sequence*> victims;
  const int64_t most = int64_t{sequence.spec.priority} - config.priority_preemption_threshold;
  for (Sequence* s : running)
    if (s->spec.priority <= most && !s->keeps_its_place && s->num_preemptions < kPreemptionsMax)
      victims.push_back(s);
  std::reverse(victims.begin(), victims.end());
  std::stable_sort(victims.begin(), victims.end(), [](const Sequence* a, const Sequence* b) {
    return a->spec.priority < b->spec.priority;
  });
  return victims;
}

// Preempts as few as it takes to admit `sequence` once their last step is committed, or nobody.
// True when there will be room.
bool Scheduler::Impl::make_way(Sequence& sequence) {
  if (!may_preempt()) return false;
  const int32_t to_come =
      std::min(sequence.spec.max_new_tokens - sequence.num_outputs(), config.new_token_clip);
  int32_t num_missing =
      cache.num_pages_for(sequence.num_tokens() +
                          static_cast<int32_t>(std::ceil(ratio.value() * to_come))) -
      current_match(sequence, cache) / cache.page_size() - cache.sizes().available() -
      pages_coming_back();
  for (const Sequence* s : running) num_missing += pages_still_needed(*s);
  int32_t num_window_missing = 0;
  if (cache.has_window()) {
    const int32_t num_pages =
        cache.num_pages_for(sequence.prompt_len + sequence.spec.max_new_tokens);
    num_window_missing = cache.num_window_pages_most(num_pages) - cache.sizes().window_available -
                         window_pages_coming_back();
    for (const Sequence* s : running) num_window_missing += window_pages_still_needed(*s);
  }
  bool slot_missing = free_slots.empty() && num_leaving == 0;
  const std::vector<Sequence*> victims = preemptible_by(sequence);
  size_t num_victims = 0;
  const auto missing = [&] { return num_missing > 0 || num_window_missing > 0 || slot_missing; };
  while (missing() && num_victims < victims.size()) {
    const Sequence& victim = *victims[num_victims++];
    num_missing -= cache.num_pages_held_alone(victim.pages) + pages_still_needed(victim);
    num_window_missing -= victim.pages.num_window_pages() + window_pages_still_needed(victim);
    slot_missing = false;
  }
  if (missing()) return false;
  for (size_t i = 0; i < num_victims; ++i) preempt(*victims[i]);
  return true;
}

}  // namespace espalier
