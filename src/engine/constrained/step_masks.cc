#include "engine/constrained/step_masks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/constrained/token_healing.h"

namespace espalier {
namespace {

void allow(TokenId token, std::span<uint32_t> words) {
  words[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
}

bool narrows(const SampleState& sample) {
  return sample.has_grammar && sample.request->jump_forward && !sample.heals &&
         sample.request->sampling.spec.min_new_tokens == 0;
}

}  // namespace

StepMasks::StepMasks(const Tokenizer* tokenizer, const Samples& samples, int32_t vocab_size,
                     int32_t num_threads)
    : tokenizer_(tokenizer),
      samples_(samples),
      words_per_mask_(static_cast<size_t>(vocab_size + 31) / 32),
      scratch_(static_cast<size_t>(num_threads)),
      pool_(num_threads) {}

const TokensByBytes& StepMasks::tokens_by_bytes() {
  if (tokens_by_bytes_ == nullptr) tokens_by_bytes_ = std::make_unique<TokensByBytes>(*tokenizer_);
  return *tokens_by_bytes_;
}

JumpForward& StepMasks::jump_forward() {
  while (jumps_.size() < scratch_.size())
    jumps_.push_back(std::make_unique<JumpForward>(*tokenizer_, tokens_by_bytes()));
  return *jumps_[0];
}

MaskView StepMasks::fill(const ForwardBatch& batch) {
  size_t num_masks = 0;
  for (const BatchEntry& entry : batch.entries)
    if (entry.has_mask) num_masks += 1 + static_cast<size_t>(entry.num_draft_samples);
  words_.resize(num_masks * words_per_mask_);
  rows_.clear();
  std::span<uint32_t> left(words_);
  for (const BatchEntry& entry : batch.entries) {
    if (!entry.has_mask) continue;
    const size_t size = (1 + static_cast<size_t>(entry.num_draft_samples)) * words_per_mask_;
    rows_.push_back({&entry, left.first(size)});
    left = left.subspan(size);
  }
  pool_.run(rows_.size(), [&](size_t i, int32_t thread) {
    fill_row(batch, rows_[i], static_cast<size_t>(thread));
  });
  return {.words = words_, .words_per_mask = static_cast<int32_t>(words_per_mask_)};
}

void StepMasks::fill_row(const ForwardBatch& batch, const Row& row, size_t thread) {
  fill_mask(*row.entry, thread, row.words.first(words_per_mask_));
  if (row.entry->num_draft_samples > 0)
    fill_draft_masks(batch, *row.entry, thread, row.words.subspan(words_per_mask_));
}

// An entry whose sequence has ended meanwhile, or has been given forced tokens, is thrown away:
// whatever it samples will do, but where the first forced one's log-probability is wanted. The
// vocabulary may be smaller than the logits: no token lies beyond.
void StepMasks::fill_mask(const BatchEntry& entry, size_t thread, std::span<uint32_t> words) {
  const auto it = samples_.find(entry.sequence);
  const bool live = it != samples_.end() && !it->second->finished;
  if (live && it->second->num_logprobs_due > 0 &&
      entry.output_index == it->second->num_tokens - it->second->num_logprobs_due) {
    std::ranges::fill(words, 0);
    allow(it->second->event.ids.end()[-it->second->num_logprobs_due], words);
    return;
  }
  if (live && entry.output_index == it->second->num_tokens && !it->second->healing.empty()) {
    SampleState& sample = *it->second;
    fill_healing_mask(*tokens_by_bytes_, sample.healing,
                      sample.matcher ? &*sample.matcher : nullptr, words);
    return;
  }
  if (!live || !it->second->matcher || entry.output_index != it->second->num_tokens) {
    std::ranges::fill(words, ~0u);
    return;
  }
  SampleState& sample = *it->second;
  const bool chooses = narrows(sample);
  fill_grammar_mask(
      sample, chooses ? choices_of(sample, *jumps_[thread]) : std::span<const TokenId>(), 0, words);
}

// Behind each draft that a sample is drawn behind: what may come there, as if it had been said.
void StepMasks::fill_draft_masks(const ForwardBatch& batch, const BatchEntry& entry, size_t thread,
                                 std::span<uint32_t> words) {
  std::ranges::fill(words, ~0u);
  const auto it = samples_.find(entry.sequence);
  if (it == samples_.end() || it->second->finished) return;  // thrown away
  SampleState& sample = *it->second;
  grammar::Matcher& matcher = *sample.matcher;
  auto& [output, choices] = scratch_[thread];
  output = sample.recent;
  const auto draft = std::span(batch.token_ids)
                         .subspan(static_cast<size_t>(entry.query_begin + entry.last_known() + 1),
                                  static_cast<size_t>(entry.num_draft_tokens));
  const size_t steps = matcher.steps();
  size_t next = 0;
  for (int32_t k = 0; k < entry.num_draft_samples; ++k) {
    const auto end = static_cast<size_t>(
        batch.draft_samples[static_cast<size_t>(entry.draft_samples_begin + k)]);
    for (; next <= end; ++next) {
      ESP_CHECK(matcher.accept_token(draft[next]), "a draft token is not of the grammar");
      output.push_back(draft[next]);
    }
    choices.clear();
    if (narrows(sample)) jumps_[thread]->append_choices(matcher, output, choices);
    fill_grammar_mask(sample, choices, static_cast<int32_t>(next), words.first(words_per_mask_));
    words = words.subspan(words_per_mask_);
  }
  matcher.rollback(matcher.steps() - steps);
}

// Of what its matcher has read. Of an exhausted grammar choices may be missing, as states are.
void StepMasks::fill_grammar_mask(SampleState& sample, std::span<const TokenId> choices,
                                  int32_t num_ahead, std::span<uint32_t> words) {
  if (!choices.empty() && !sample.matcher->exhausted()) {
    std::ranges::fill(words, 0);
    for (const TokenId id : choices) allow(id, words);
    return;
  }
  const auto known = static_cast<size_t>(sample.matcher->words_per_mask());
  ESP_CHECK(known <= words.size(), "the vocabulary is larger than the logits");
  const auto tokens_left =
      static_cast<uint32_t>(std::max(1, sample.budget - sample.num_tokens - num_ahead));
  const bool any = sample.budget > 0
                       ? sample.matcher->fill_mask_within(words.first(known), tokens_left)
                       : sample.matcher->fill_mask(words.first(known));
  std::ranges::fill(words.subspan(known), 0);
  if (!sample.matcher->can_end() || (!any && sample.matcher->exhausted())) return;
  for (const TokenId id : sample.request->sampling.stop_ids) allow(id, words);
}

std::span<const TokenId> StepMasks::choices_of(SampleState& sample) {
  return narrows(sample) ? choices_of(sample, *jumps_[0]) : std::span<const TokenId>();
}

std::span<const TokenId> StepMasks::choices_of(SampleState& sample, JumpForward& jump) {
  if (std::exchange(sample.choices_at, sample.num_tokens) != sample.num_tokens) {
    sample.choices.clear();
    if (!sample.matcher->ended())
      jump.append_choices(*sample.matcher, sample.recent, sample.choices);
  }
  return sample.choices;
}

}  // namespace espalier
