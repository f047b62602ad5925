#include "engine/scheduler/committer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace espalier {

namespace {
// Service of an output token, in units of a prompt token's: a step's output token costs more.
constexpr int64_t kServiceOfOutput = 2;
}  // namespace

std::span<Sequence* const> Committer::commit(const ForwardBatch& batch, const StepResult& result) {
  ESP_CHECK(result.step == batch.step, "step {} is committed with the result of {}", batch.step,
            result.step);
  ESP_CHECK(result.entries.size() == batch.entries.size());
  now_ = parts_.clock.now();
  departing_.clear();
  const size_t num_entries = batch.entries.size();
  const auto sequence_of = [&](size_t i) { return &parts_.running.at(batch.entries[i].slot); };
  for (size_t i = 0; i < num_entries; ++i) {
    if (i + kStepsAhead < num_entries) {
      sequence_of(i + kStepsAhead)->prefetch_step();
      parts_.observer.on_token_soon(batch.entries[i + kStepsAhead].sequence);
    }
    if (i + kEndsAhead < num_entries) sequence_of(i + kEndsAhead)->prefetch_ends();
    commit_entry(batch, batch.entries[i], result.entries[i]);
  }
  parts_.running.compact();
  return departing_;
}

void Committer::commit_entry(const ForwardBatch& batch, const BatchEntry& entry,
                             const EntryResult& result) {
  Sequence& sequence = parts_.running.at(entry.slot);
  const bool is_last = sequence.last_step == batch.step;
  if (is_last) sequence.awaiting_commit = false;
  const bool wanted = sequence.state == SequenceState::kRunning ||
                      (!sequence.finish_reported && !sequence.abort_reason);
  if (!result.status.ok()) {
    sequence.entry_failed = true;
    if (wanted) finish(sequence, {.type = FinishReason::Type::kError, .status = result.status});
  } else if (!sequence.entry_failed) {
    sequence.num_computed = entry.prefix_len + entry.last_known() + 1;
    if (wanted) take_result(sequence, batch, entry, result);
    if (wanted && entry.chain_length > 0) take_chain(sequence, result);
    parts_.budget.advance(sequence);  // after share(), so that what it passes stays cached
  }
  if (sequence.state != SequenceState::kRunning && is_last) departing_.push_back(&sequence);
}

void Committer::take_result(Sequence& sequence, const ForwardBatch& batch, const BatchEntry& entry,
                            const EntryResult& result) {
  take_input_logprobs(sequence, entry, result);
  if (entry.hidden_begin >= 0)
    parts_.observer.on_hidden_states(sequence.spec.id, std::vector<float>(result.hidden_states));
  if (entry.prefix_len < sequence.prefill_end) {
    if (sequence.state == SequenceState::kRunning) share(sequence);
    if (sequence.num_computed >= sequence.prefill_end) parts_.inflight.remove(sequence);
    if (sequence.spec.handoff == Handoff::kGive) give(sequence, entry, result);
  }
  if (entry.num_draft_tokens > 0) {
    take_draft_samples(sequence, batch, entry, result);
  } else if (sequence.spec.max_new_tokens == 0) {
    if (sequence.num_computed == sequence.prefill_end) take_prefill_only(sequence, entry, result);
  } else if (entry.sample) {
    take_sample(sequence, result);
  }
  // Its continuation may arrive before the entry in flight is committed.
  if (sequence.finish_reported && in_flight(sequence)) share(sequence);
}

void Committer::take_sample(Sequence& sequence, const EntryResult& result) {
  const bool stale = parts_.steps.committed() <= sequence.stale_step;
  if (stale && sequence.spec.sampling->computes_forced_logprobs())
    parts_.observer.on_forced_logprobs(sequence.spec.id, {TokenLogprobs(result.logprobs)});
  if (stale) return;
  if (take_token(sequence, result.token, TokenOrigin::kSampled, TokenLogprobs(result.logprobs)))
    take_forced(sequence);
}

// The chain follows the tokens that the executor accepted. What a grammar has forced behind them
// may be the chain's beginning, or another text, and what was sampled may have been stale.
void Committer::take_chain(const Sequence& sequence, const EntryResult& result) {
  if (sequence.finish_reported) return;
  const int32_t begin = result.chain_begin < 0 ? result.length + 1 : result.chain_begin;
  std::span<const TokenId> chain = result.chain;
  const auto num_known = static_cast<size_t>(std::max(sequence.num_tokens() - begin, 0));
  const bool follows =
      begin <= sequence.num_tokens() && num_known <= chain.size() &&
      std::equal(sequence.tokens.begin() + begin, sequence.tokens.end(), chain.begin());
  parts_.proposer.take_chain(sequence.spec.id,
                             follows ? chain.subspan(num_known) : std::span<const TokenId>());
}

void Committer::take_prefill_only(Sequence& sequence, const BatchEntry& entry,
                                  const EntryResult& result) {
  if (entry.pooled_end)
    parts_.observer.on_pooled(sequence.spec.id, std::vector<float>(result.pooled));
  if (entry.sample)
    parts_.observer.on_next_logprobs(sequence.spec.id, TokenLogprobs(result.logprobs));
  if (sequence.spec.is_search_step) {
    parts_.queue.charge(sequence, kServiceOfOutput);
    ++counts_.generated_tokens;
  }
  finish(sequence, {.type = FinishReason::Type::kLength});
}

// Draft tokens are accepted as long as what is sampled and forced equals them: their keys and
// values are computed by now. The first token that differs is computed by the next entry.
void Committer::take_draft_samples(Sequence& sequence, const ForwardBatch& batch,
                                   const BatchEntry& entry, const EntryResult& result) {
  const int32_t begin = sequence.num_computed;
  const auto draft = std::span(batch.token_ids)
                         .subspan(static_cast<size_t>(entry.query_begin + entry.last_known() + 1),
                                  static_cast<size_t>(entry.num_draft_tokens));
  const auto samples = std::span(batch.draft_samples)
                           .subspan(static_cast<size_t>(entry.draft_samples_begin),
                                    static_cast<size_t>(entry.num_draft_samples));
  int32_t num_accepted = 0;
  const auto all_accepted = [&] {
    const auto output =
        std::span<const TokenId>(sequence.tokens).subspan(static_cast<size_t>(begin));
    num_accepted = static_cast<int32_t>(std::ranges::mismatch(output, draft).in1 - output.begin());
    return begin + num_accepted == sequence.num_tokens();
  };
  // Counted before each token is reported, for the last one reports the end with these counts.
  int32_t num_counted = 0;
  const auto count = [&](int32_t num_now) {
    count_accepted(sequence, std::exchange(num_counted, num_now), num_now);
  };
  count_verify_step(sequence, entry.num_draft_tokens);
  TokenLogprobs logprobs(result.logprobs);
  for (TokenId token = result.token; token >= 0;) {
    const bool drafted =
        num_accepted < entry.num_draft_tokens && draft[static_cast<size_t>(num_accepted)] == token;
    if (drafted) count(num_accepted + 1);
    const TokenOrigin origin = drafted ? TokenOrigin::kDrafted : TokenOrigin::kSampled;
    if (!take_token(sequence, token, origin, std::move(logprobs))) break;
    take_forced(sequence);
    if (!all_accepted() || sequence.finish_reported) break;
    const auto sample = std::ranges::lower_bound(samples, num_accepted - 1);
    if (sample == samples.end() || *sample != num_accepted - 1) break;
    const auto at = static_cast<size_t>(sample - samples.begin());
    token = result.draft_tokens[at];
    if (token < 0) break;
    if (sequence.spec.sampling->return_logprob) logprobs = result.draft_logprobs[at];
    ++sequence.stats.forwards_saved;
    ++counts_.forwards_saved;
  }
  all_accepted();
  count(num_accepted);
  // The entry of the last token samples what follows it, though its keys and values are computed.
  sequence.num_computed = std::min(begin + num_accepted, sequence.num_tokens() - 1);
  sequence.num_launched = sequence.num_computed;
  sequence.num_samples_launched = sequence.num_outputs();
}

void Committer::take_input_logprobs(Sequence& sequence, const BatchEntry& entry,
                                    const EntryResult& result) {
  if (entry.input_logprob_begin < 0) return;
  ESP_CHECK(result.input_logprobs.size() == entry.input_logprob_targets.size());
  report_input_logprobs(sequence, entry.prefix_len + entry.input_logprob_begin + 1,
                        result.input_logprobs);
}

// Those of positions behind the prompt are of forced tokens.
void Committer::report_input_logprobs(Sequence& sequence, int32_t first,
                                      std::span<const TokenLogprobs> logprobs) {
  const auto forced_begin =
      logprobs.begin() +
      std::clamp<std::ptrdiff_t>(sequence.prompt_len - first, 0, std::ssize(logprobs));
  if (forced_begin != logprobs.begin())
    parts_.observer.on_input_logprobs(sequence.spec.id, first,
                                      std::vector<TokenLogprobs>(logprobs.begin(), forced_begin));
  if (forced_begin != logprobs.end())
    parts_.observer.on_forced_logprobs(sequence.spec.id,
                                       std::vector<TokenLogprobs>(forced_begin, logprobs.end()));
}

void Committer::give(Sequence& sequence, const BatchEntry& entry, const EntryResult& result) {
  PrefillProgress progress{.pages = sequence.kv.pages.table(),
                           .num_computed = sequence.num_computed,
                           .num_tokens = sequence.prefill_end,
                           .has_token = entry.sample,
                           .token = result.token,
                           .token_logprobs = &result.logprobs,
                           .cached_tokens = sequence.stats.cached_tokens};
  if (entry.input_logprob_begin >= 0) {
    progress.first_logprob = entry.prefix_len + entry.input_logprob_begin + 1;
    progress.logprobs = result.input_logprobs;
  }
  parts_.observer.on_prefilled(sequence.spec.id, progress);
}

void Committer::share(Sequence& sequence) {
  parts_.budget.share(sequence);
  parts_.queue.on_stored(sequence.spec.cache_namespace,
                         sequence.first_tokens(sequence.num_computed));
}

bool Committer::take_token(Sequence& sequence, TokenId token, TokenOrigin origin,
                           TokenLogprobs&& logprobs) {
  parts_.queue.charge(sequence, kServiceOfOutput);
  return append_token(sequence, token, origin, std::move(logprobs));
}

// False: the sequence has finished with this token.
bool Committer::append_token(Sequence& sequence, TokenId token, TokenOrigin origin,
                             TokenLogprobs&& logprobs) {
  sequence.tokens.push_back(token);
  ++counts_.generated_tokens;
  if (++sequence.stats.completion_tokens == 1) sequence.stats.first_token = now_;
  std::optional<FinishReason> reason = parts_.observer.on_token(
      sequence.spec.id, token, origin, std::move(logprobs), sequence.stats);
  const std::vector<TokenId>& stop_ids = sequence.spec.stop_ids;
  if (sequence.num_outputs() >= sequence.spec.max_new_tokens)
    reason = FinishReason{.type = FinishReason::Type::kLength};
  else if (!reason && std::binary_search(stop_ids.begin(), stop_ids.end(), token))
    reason = FinishReason{.type = FinishReason::Type::kStop, .matched = token};
  if (!reason) return true;
  finish(sequence, std::move(*reason));
  return false;
}

// With computed log-probabilities the sequence's last token is sampled, so that its entry gives the
// log-probabilities of the forced tokens before it.
void Committer::propose_forced(const Sequence& sequence) {
  forced_.clear();
  if (!sequence.spec.takes_proposals) return;
  parts_.proposer.propose_forced(sequence.spec.id, forced_);
  if (forced_.empty() || !sequence.spec.sampling->computes_forced_logprobs()) return;
  const int32_t room = sequence.spec.max_new_tokens - sequence.num_outputs() - 1;
  if (std::ssize(forced_) > room) forced_.resize(static_cast<size_t>(std::max(room, 0)));
  const std::vector<TokenId>& stops = sequence.spec.stop_ids;
  const auto is_stop = [&](TokenId id) {
    return std::binary_search(stops.begin(), stops.end(), id);
  };
  forced_.erase(std::find_if(forced_.begin(), forced_.end(), is_stop), forced_.end());
}

// Before the forced tokens are appended. The entry in flight, if any, gives the first of them.
void Committer::request_forced_logprobs(Sequence& sequence, int32_t num_in_flight) {
  if (!sequence.spec.sampling->computes_forced_logprobs()) return;
  LogprobRange& due = sequence.logprobs;
  if (due.empty()) due.next = sequence.num_tokens() + num_in_flight;
  due.end = sequence.num_tokens() + static_cast<int32_t>(forced_.size());
}

void Committer::count_saved(Sequence& sequence, int32_t num_forwards_saved) {
  sequence.stats.forwards_saved += num_forwards_saved;
  counts_.forwards_saved += num_forwards_saved;
}

void Committer::count_verify_step(Sequence& sequence, int32_t num_draft_tokens) {
  ++sequence.stats.verify_steps;
  ++counts_.verify_steps;
  sequence.stats.drafted_tokens += num_draft_tokens;
  counts_.drafted_tokens += num_draft_tokens;
  sequence.drafting.accepted_lengths.add();
  DraftCounts& totals = draft_totals_[static_cast<size_t>(sequence.drafting.drafter)];
  ++totals.verify_steps;
  totals.drafted_tokens += num_draft_tokens;
  totals.accepted_lengths.add();
}

// Of the entry that was counted last.
void Committer::count_accepted(Sequence& sequence, int32_t num_before, int32_t num_now) {
  if (num_now == num_before) return;
  sequence.stats.accepted_draft_tokens += num_now - num_before;
  counts_.accepted_draft_tokens += num_now - num_before;
  sequence.drafting.accepted_lengths.move(num_before, num_now);
  DraftCounts& totals = draft_totals_[static_cast<size_t>(sequence.drafting.drafter)];
  totals.accepted_tokens += num_now - num_before;
  totals.accepted_lengths.move(num_before, num_now);
}

void Committer::take_forced(Sequence& sequence) {
  propose_forced(sequence);
  if (forced_.empty()) return;
  const bool has_entry = in_flight(sequence);
  count_saved(sequence, static_cast<int32_t>(forced_.size()) - (has_entry ? 1 : 0));
  if (has_entry) sequence.stale_step = sequence.last_step;
  request_forced_logprobs(sequence, has_entry ? 1 : 0);
  for (const TokenId token : forced_) {
    ++sequence.stats.forced_tokens;
    ++counts_.forced_tokens;
    if (!take_token(sequence, token, TokenOrigin::kForced, {})) break;
  }
  sequence.num_samples_launched = sequence.num_outputs();
  // The executor has noted what it sampled, not the tokens that were forced.
  if (sequence.spec.sampling->reads_history()) sequence.kv.needs_slot_init = true;
}

bool Committer::take_first_forced(Sequence& sequence) {
  if (!sequence.spec.has_grammar || sequence.spec.max_new_tokens == 0) return true;
  propose_forced(sequence);
  if (!forced_.empty()) request_forced_logprobs(sequence, 0);
  now_ = parts_.clock.now();
  for (const TokenId token : forced_) {
    ++sequence.stats.forced_tokens;
    ++counts_.forced_tokens;
    count_saved(sequence, 1);
    if (!append_token(sequence, token, TokenOrigin::kForced, {})) return false;
  }
  return true;
}

void Committer::take_loaded(Sequence& sequence, int32_t num_tokens) {
  sequence.num_computed = sequence.num_launched = num_tokens;
  share(sequence);
}

void Committer::take_prefill(Sequence& sequence, RemotePrefill& prefill) {
  LogprobRange& due = sequence.logprobs;
  int32_t next = due.next;
  const bool follow = std::ranges::all_of(prefill.input_logprobs, [&](const LogprobsFrom& part) {
    return part.first == std::exchange(next, next + static_cast<int32_t>(part.logprobs.size()));
  });
  if (!follow || next != std::max(due.next, due.end))
    return finish(sequence, {.type = FinishReason::Type::kError,
                             .status = error(StatusCode::kUnavailable,
                                             "the prefill server sent log-probabilities of other "
                                             "tokens: send the same request to both servers")});
  now_ = parts_.clock.now();
  for (const LogprobsFrom& part : prefill.input_logprobs)
    report_input_logprobs(sequence, part.first, part.logprobs);
  due.next = next;
  take_loaded(sequence, sequence.num_tokens());
  parts_.inflight.remove(sequence);
  sequence.stats.cached_tokens = std::clamp(prefill.cached_tokens, 0, sequence.prompt_len);
  sequence.num_samples_launched = sequence.num_outputs() + 1;
  if (take_token(sequence, prefill.token, TokenOrigin::kSampled, std::move(prefill.logprobs)))
    take_forced(sequence);
}

void Committer::finish(Sequence& sequence, FinishReason reason) {
  ESP_CHECK(!sequence.finish_reported, "sequence {} finished twice", sequence.spec.id);
  sequence.finish_reported = true;
  sequence.stats.finished = parts_.clock.now();
  parts_.inflight.remove(sequence);
  if (sequence.state != SequenceState::kFinished)
    parts_.running.leave(sequence, SequenceState::kFinished);
  if (sequence.stats.verify_steps > 0)
    parts_.observer.on_verified(sequence.spec.id, sequence.drafting.accepted_lengths.entries);
  parts_.observer.on_finish(sequence.spec.id, std::move(reason), sequence.stats);
}

void Committer::release(Sequence& sequence) {
  const bool stores = !sequence.entry_failed;
  const int32_t count = std::min(sequence.num_computed, sequence.num_tokens());
  parts_.budget.release(sequence);
  if (stores) parts_.queue.on_stored(sequence.spec.cache_namespace, sequence.first_tokens(count));
  parts_.running.return_slot(sequence);
}

}  // namespace espalier
