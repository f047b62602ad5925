// What came of a step: tokens, ends, prefixes for others to reuse, pages and slots back.
#include <algorithm>

#include "base/check.h"
#include "engine/scheduler/scheduler_impl.h"

namespace espalier {

namespace {
// Of prompt tokens, whose service is 1: a step's output token costs more than a prompt's.
constexpr int64_t kServiceOfOutput = 2;
}  // namespace

void Scheduler::Impl::commit(const ForwardBatch& batch, const StepResult& result) {
  ESP_CHECK(batch.step == committed_step + 1 && result.step == batch.step,
            "step {} committed with the result of {}, after {}", batch.step, result.step,
            committed_step);
  ESP_CHECK(result.entries.size() == batch.entries.size());
  committed_step = batch.step;
  now = clock.now();
  const size_t num_entries = batch.entries.size();
  const auto sequence_of = [&](size_t i) {
    return slots[static_cast<size_t>(batch.entries[i].slot)];
  };
  for (size_t i = 0; i < num_entries; ++i) {
    if (i + kStepsAhead < num_entries) {
      sequence_of(i + kStepsAhead)->prefetch_step();
      observer.on_token_soon(batch.entries[i + kStepsAhead].sequence);
    }
    if (i + kEndsAhead < num_entries) sequence_of(i + kEndsAhead)->prefetch_ends();
    commit_entry(batch, batch.entries[i], result.entries[i]);
  }
  if (running_changed)
    std::erase_if(running, [](const Sequence* s) { return s->state != SequenceState::kRunning; });
  running_changed = false;
  for (Sequence* sequence : departing) leave(*sequence);
  departing.clear();
  if (config.inter_token_seconds_max > 0) observe_time(batch, result.forward_seconds);
  std::erase_if(detached, [&](const auto& pages) { return pages.first <= committed_step; });
}

void Scheduler::Impl::observe_time(const ForwardBatch& batch, double seconds) {
  int32_t num_prompt_tokens = 0;
  for (const BatchEntry& entry : batch.entries)
    if (entry.num_query_tokens > 1) num_prompt_tokens += entry.num_query_tokens;
  step_time.observe(num_prompt_tokens, seconds);
}

void Scheduler::Impl::commit_entry(const ForwardBatch& batch, const BatchEntry& entry,
                                   const EntryResult& result) {
  Sequence& sequence = *slots[static_cast<size_t>(entry.slot)];
  if (sequence.last_step == committed_step) sequence.held = false;
  const bool wanted = sequence.state == SequenceState::kRunning ||
                      (!sequence.finish_told && !sequence.abort_reason);
  if (!result.status.ok()) {
    sequence.entry_failed = true;
    if (wanted)
      tell_finish(sequence, {.type = FinishReason::Type::kError, .status = result.status});
  } else if (!sequence.entry_failed) {
    sequence.num_computed = entry.prefix_len + entry.last_known() + 1;
    if (wanted) {
      take_input_logprobs(sequence, entry, result);
      if (entry.prefix_len < sequence.prefill_end) share_prefix(sequence);
      if (entry.num_drafts > 0) {
        take_samples(sequence, batch, entry, result);
      } else if (entry.sample) {
        const bool stale = committed_step <= sequence.stale_step;
        if (stale && sequence.spec.sampling->return_logprob)
          observer.on_forced_logprobs(sequence.spec.id, {TokenLogprobs(result.logprobs)});
        if (!stale && take_token(sequence, result.token, TokenLogprobs(result.logprobs)))
          take_forced(sequence);
      } else if (sequence.spec.max_new_tokens == 0 &&
                 sequence.num_computed == sequence.prefill_end) {
        if (entry.pooled_end)
          observer.on_pooled(sequence.spec.id, std::vector<float>(result.pooled));
        tell_finish(sequence, {.type = FinishReason::Type::kLength});
      }
      // Its caller may come back with its answer before the entry in flight is committed.
      if (sequence.finish_told && in_flight(sequence)) share_computed(sequence);
    }
    cache.advance(sequence.pages, sequence.num_computed);  // shared first: then it stays cached
  }
  if (sequence.state != SequenceState::kRunning && sequence.last_step == committed_step)
    departing.push_back(&sequence);
}

// Goes on as long as what is drawn and forced is what was guessed: that is computed by now. What
// comes first that is not is the next entry's.
void Scheduler::Impl::take_samples(Sequence& sequence, const ForwardBatch& batch,
                                   const BatchEntry& entry, const EntryResult& result) {
  const int32_t begin = sequence.num_computed;
  const auto guesses = std::span(batch.token_ids)
                           .subspan(static_cast<size_t>(entry.query_begin + entry.last_known() + 1),
                                    static_cast<size_t>(entry.num_drafts));
  const auto places = std::span(batch.draft_samples)
                          .subspan(static_cast<size_t>(entry.draft_samples_begin),
                                   static_cast<size_t>(entry.num_draft_samples));
  int32_t held = 0;  // guesses, so far
  const auto hold = [&] {
    const std::span<const TokenId> tokens(sequence.tokens);
    const auto said = tokens.subspan(static_cast<size_t>(begin));
    held = static_cast<int32_t>(std::ranges::mismatch(said, guesses).in1 - said.begin());
    return begin + held == sequence.num_tokens();
  };
  for (TokenId token = result.token; token >= 0;) {
    if (!take_token(sequence, token, {})) break;
    take_forced(sequence);
    if (!hold() || sequence.finish_told) break;
    const auto place = std::ranges::lower_bound(places, held - 1);
    if (place == places.end() || *place != held - 1) break;
    token = result.draft_tokens[static_cast<size_t>(place - places.begin())];
    if (token < 0) break;
    ++sequence.stats.forwards_saved;
    ++stats.forwards_saved;
  }
  hold();
  sequence.stats.drafted_tokens += entry.num_drafts;
  sequence.stats.accepted_drafts += held;
  stats.drafted_tokens += entry.num_drafts;
  stats.accepted_drafts += held;
  // The last token's entry draws what follows it, though its keys and values are there.
  sequence.num_computed = std::min(begin + held, sequence.num_tokens() - 1);
  sequence.num_launched = sequence.num_computed;
  sequence.num_samples_launched = sequence.num_outputs();
}

void Scheduler::Impl::take_input_logprobs(Sequence& sequence, const BatchEntry& entry,
                                          const EntryResult& result) {
  if (entry.input_logprob_begin < 0) return;
  ESP_CHECK(result.input_logprobs.size() == entry.input_logprob_targets.size());
  const int32_t first = entry.prefix_len + entry.input_logprob_begin + 1;
  const auto forced_begin =
      result.input_logprobs.begin() +
      std::clamp<std::ptrdiff_t>(sequence.prompt_len - first, 0, std::ssize(result.input_logprobs));
  if (forced_begin != result.input_logprobs.begin())
    observer.on_input_logprobs(
        sequence.spec.id, first,
        std::vector<TokenLogprobs>(result.input_logprobs.begin(), forced_begin));
  if (forced_begin != result.input_logprobs.end())
    observer.on_forced_logprobs(
        sequence.spec.id, std::vector<TokenLogprobs>(forced_begin, result.input_logprobs.end()));
}

void Scheduler::Impl::share_prefix(Sequence& sequence) {
  if (sequence.state == SequenceState::kRunning) share_computed(sequence);
  if (sequence.num_computed >= sequence.prefill_end) promised.remove(sequence);
}

void Scheduler::Impl::share_computed(Sequence& sequence) {
  const WorkTimer timer(tree_clock());
  const std::span<const TokenId> computed = sequence.first_tokens(sequence.num_computed);
  DetachedPages replaced;
  cache.share(sequence.pages, computed, replaced);
  waiting.on_stored(sequence.spec.cache_namespace, computed);
  if (replaced.empty()) return;
  sequence.table_version = ++last_table_version;
  if (in_flight(sequence)) detached.emplace_back(sequence.last_step, std::move(replaced));
}

bool Scheduler::Impl::take_token(Sequence& sequence, TokenId token, TokenLogprobs&& logprobs) {
  waiting.charge(sequence, kServiceOfOutput);
  return append_token(sequence, token, std::move(logprobs));
}

bool Scheduler::Impl::append_token(Sequence& sequence, TokenId token, TokenLogprobs&& logprobs) {
  sequence.tokens.push_back(token);
  ++stats.generated_tokens;
  if (++sequence.stats.completion_tokens == 1) sequence.stats.first_token = now;
  std::optional<FinishReason> reason =
      observer.on_token(sequence.spec.id, token, std::move(logprobs), sequence.stats);
  const std::vector<TokenId>& stop_ids = sequence.spec.stop_ids;
  if (sequence.num_outputs() >= sequence.spec.max_new_tokens)
    reason = FinishReason{.type = FinishReason::Type::kLength};
  else if (!reason && std::binary_search(stop_ids.begin(), stop_ids.end(), token))
    reason = FinishReason{.type = FinishReason::Type::kStop, .matched = token};
  if (!reason) return true;
  tell_finish(sequence, std::move(*reason));
  return false;
}

// Where log-probabilities are wanted the last token is sampled, so that its entry gives those of
// the forced ones before it.
void Scheduler::Impl::ask_for_forced(const Sequence& sequence) {
  forced.clear();
  observer.on_forced(sequence.spec.id, forced);
  if (forced.empty() || !sequence.spec.sampling->return_logprob) return;
  const int32_t room = sequence.spec.max_new_tokens - sequence.num_outputs() - 1;
  if (std::ssize(forced) > room) forced.resize(static_cast<size_t>(std::max(room, 0)));
  const std::vector<TokenId>& stops = sequence.spec.stop_ids;
  const auto is_stop = [&](TokenId id) {
    return std::binary_search(stops.begin(), stops.end(), id);
  };
  forced.erase(std::find_if(forced.begin(), forced.end(), is_stop), forced.end());
}

// Before the forced tokens are taken. The entry in flight, if any, gives the first of them.
void Scheduler::Impl::want_forced_logprobs(Sequence& sequence, int32_t num_in_flight) {
  if (!sequence.spec.sampling->return_logprob) return;
  if (sequence.next_logprob >= sequence.logprob_end)
    sequence.next_logprob = sequence.num_tokens() + num_in_flight;
  sequence.logprob_end = sequence.num_tokens() + static_cast<int32_t>(forced.size());
}

// Jump forward: what must follow is output already, and its keys and values are computed together
// in the next entry. The entry in flight, whose sample comes too late, has computed the token
// before.
void Scheduler::Impl::take_forced(Sequence& sequence) {
  ask_for_forced(sequence);
  if (forced.empty()) return;
  const bool has_entry = in_flight(sequence);
  const auto saved = static_cast<int32_t>(forced.size()) - (has_entry ? 1 : 0);
  sequence.stats.forwards_saved += saved;
  stats.forwards_saved += saved;
  if (has_entry) sequence.stale_step = sequence.last_step;
  want_forced_logprobs(sequence, has_entry ? 1 : 0);
  for (const TokenId token : forced) {
    ++sequence.stats.forced_tokens;
    ++stats.forced_tokens;
    if (!take_token(sequence, token, {})) break;
  }
  sequence.num_samples_launched = sequence.num_outputs();
  // The executor has counted what it sampled, not what came.
  if (sequence.spec.sampling->has_penalties()) sequence.needs_slot_init = true;
}

// What a grammar begins with is output before anything has run, and is computed with the prompt. A
// sequence may end with it.
bool Scheduler::Impl::take_first_forced(Sequence& sequence) {
  if (!sequence.spec.has_grammar || sequence.spec.max_new_tokens == 0) return true;
  ask_for_forced(sequence);
  if (!forced.empty()) want_forced_logprobs(sequence, 0);
  now = clock.now();
  for (const TokenId token : forced) {
    ++sequence.stats.forced_tokens;
    ++stats.forced_tokens;
    ++sequence.stats.forwards_saved;
    ++stats.forwards_saved;
    if (!append_token(sequence, token, {})) return false;
  }
  return true;
}

void Scheduler::Impl::tell_finish(Sequence& sequence, FinishReason reason) {
  sequence.finish_told = true;
  sequence.stats.finished = now;
  if (sequence.state == SequenceState::kRunning) {
    ++num_leaving;
    running_changed = true;
    promised.remove(sequence);
  }
  if (sequence.state != SequenceState::kWaiting) sequence.state = SequenceState::kEnding;
  observer.on_finish(sequence.spec.id, std::move(reason), sequence.stats);
}

void Scheduler::Impl::leave(Sequence& sequence) {
  if (sequence.abort_reason && !sequence.finish_told)
    tell_finish(sequence, std::move(*sequence.abort_reason));
  --num_leaving;
  if (sequence.state == SequenceState::kEnding && !sequence.abort_reason && !sequence.entry_failed)
    linger(sequence);
  give_back(sequence);
  if (sequence.state == SequenceState::kRetracting) {
    requeue(sequence);
  } else {
    waiting.left(sequence);
    sequences.erase(sequence.spec.id);
  }
}

// What an entry that is thrown away has computed is kept too, where its token is known.
void Scheduler::Impl::give_back(Sequence& sequence) {
  const WorkTimer timer(tree_clock());
  const int32_t count = std::min(sequence.num_computed, sequence.num_tokens());
  if (sequence.entry_failed) {
    sequence.pages.reset();
  } else {
    cache.finish(std::move(sequence.pages), sequence.first_tokens(count));
    waiting.on_stored(sequence.spec.cache_namespace, sequence.first_tokens(count));
  }
  slots[static_cast<size_t>(sequence.slot)] = nullptr;
  free_slots.push_back(sequence.slot);
  sequence.slot = -1;
  admission_retry_step = 0;
}

void Scheduler::Impl::requeue(Sequence& sequence) {
  sequence.state = SequenceState::kWaiting;
  sequence.num_computed = sequence.num_launched = 0;
  sequence.match_version = sequence.bound_version = Sequence::kNeverMatched;
  if (std::exchange(sequence.preempted, false)) {
    waiting.push_preempted(sequence);
  } else {
    waiting.push_retracted(sequence);
  }
}

}  // namespace espalier
