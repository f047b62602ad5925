#include "engine/scheduler/batch_builder.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"
#include "engine/scheduler/wait_queue.h"

namespace espalier {
namespace {

// Each picture up to the next one is seen with those right in front of it.
void add_cross_spans(ForwardBatch& batch, const BatchEntry& entry, const PromptSpans& prompt) {
  const int32_t first = entry.prefix_len, last = first + entry.num_query_tokens;
  const std::vector<PromptSpan>& spans = prompt.spans;
  for (size_t run = 0, i = 0; i < spans.size(); ++i) {
    if (i > 0 && spans[i - 1].end() < spans[i].begin) run = i;
    const int32_t next = i + 1 < spans.size() ? spans[i + 1].begin : last;
    const int32_t begin = std::max(first, spans[i].begin), end = std::min(last, next);
    if (begin >= end) continue;
    batch.cross_spans.push_back({.token_begin = entry.query_begin + begin - first,
                                 .count = end - begin,
                                 .first_picture = static_cast<int32_t>(batch.cross_pictures.size()),
                                 .num_pictures = static_cast<int32_t>(i + 1 - run)});
    for (size_t at = run; at <= i; ++at) batch.cross_pictures.push_back(spans[at].rows);
  }
}

}  // namespace

BatchBuilder::BatchBuilder(const SchedulerConfig& config, const PrefixCache& cache,
                           const RunningSet& running, const StepCounter& steps, KvBudget& budget,
                           TokenProposer& proposer)
    : config_(config),
      cache_(cache),
      running_(running),
      steps_(steps),
      budget_(budget),
      proposer_(proposer),
      step_time_(config.step_bound),
      page_tables_(config.max_running) {}

void BatchBuilder::begin(ForwardBatch& batch, uint64_t step) {
  page_tables_.begin(batch);
  batch.slot_inits.clear();
  batch.entries.clear();
  batch.token_ids.clear();
  batch.positions.clear();
  batch.draft_samples.clear();
  batch.embedding_spans.clear();
  batch.rotary_spans.clear();
  batch.clear_cross();
  batch.step = step;
}

void BatchBuilder::end(ForwardBatch& batch) {
  page_tables_.end(batch);
  if (config_.find_shared_prefixes) add_shared_prefixes(batch);
}

// While it lives prompt_tokens_left_ is what is left of the part of the sequence's share.
class BatchBuilder::PartLimit {
 public:
  PartLimit(BatchBuilder& builder, const Sequence& sequence, const CountPromptShares& count_shares)
      : builder_(builder), is_one_of_several_(builder.shares(count_shares).count > 1) {
    if (!is_one_of_several_) return;
    const WaitingShare& share = *sequence.queue.share;
    used_ = &builder.part_used_[&share];
    const double part =
        builder.prompt_tokens_most_ * (share.weight / builder.prompt_shares_->weight);
    step_left_ = builder.prompt_tokens_left_;
    limit_ =
        std::clamp(std::max(1, static_cast<int32_t>(part)) - *used_, 0, std::max(0, step_left_));
    builder.prompt_tokens_left_ = limit_;
  }
  ~PartLimit() {
    if (!is_one_of_several_) return;
    const int32_t taken = limit_ - builder_.prompt_tokens_left_;
    *used_ += taken;
    builder_.prompt_tokens_left_ = step_left_ - taken;
  }
  PartLimit(const PartLimit&) = delete;
  PartLimit& operator=(const PartLimit&) = delete;

 private:
  BatchBuilder& builder_;
  const bool is_one_of_several_;
  int32_t* used_ = nullptr;
  int32_t step_left_ = 0, limit_ = 0;
};

const PromptShares& BatchBuilder::shares(const CountPromptShares& count_shares) {
  if (!prompt_shares_) prompt_shares_ = count_shares ? count_shares() : PromptShares();
  return *prompt_shares_;
}

// What the step has used of its prompt tokens stays used.
void BatchBuilder::limit_prompt_tokens(int32_t most) {
  const int32_t less = std::max(0, prompt_tokens_left_ - most);
  prompt_tokens_left_ -= less;
  prompt_tokens_most_ -= less;
}

// Where sequences wait for their next token. The prompt that has come furthest stands for all that
// run, for its tokens cost the most: steps come out shorter rather than longer.
void BatchBuilder::limit_step_time(const ForwardBatch& batch,
                                   const CountPromptShares& count_shares) {
  if (!step_time_.is_bounded()) return;
  int32_t prefix = 0;
  for (const Sequence* s : running_.running()) {
    if (s->prefilling())
      prefix = std::max(prefix, s->num_launched);
    else if (s->num_samples_launched < s->spec.max_new_tokens)
      is_time_limited_ = true;
  }
  // Entries of a last token, behind which none waits, are in the batch.
  is_time_limited_ = is_time_limited_ || !batch.entries.empty();
  if (!is_time_limited_) return;
  limit_prompt_tokens(step_time_.prompt_tokens(batch, prefix, shares(count_shares).per_decode));
}

void BatchBuilder::add_running(ForwardBatch& batch, const CountPromptShares& count_shares) {
  prompt_shares_.reset();
  part_used_.clear();
  prompt_tokens_left_ = config_.chunked_prefill_size > 0 ? config_.chunked_prefill_size
                                                         : std::numeric_limits<int32_t>::max();
  prompt_tokens_most_ = prompt_tokens_left_;
  // A picture that found no room in the step before has it in this one: no entry has draft tokens,
  // and forced ones take what is left beside it.
  const int32_t kept = std::min(std::exchange(picture_tokens_due_, 0), prompt_tokens_left_);
  draft_samples_left_ = kept > 0 ? 0 : config_.draft_samples_max;
  is_time_limited_ = false;
  if (waits_for_commit()) return limit_prompt_tokens(0);
  prompt_tokens_left_ -= kept;
  add_decode_entries(batch, count_shares);
  prompt_tokens_left_ += kept;
  limit_step_time(batch, count_shares);
  for (Sequence* sequence : running_.running()) {
    if (!sequence->prefilling()) continue;
    const PartLimit limit(*this, *sequence, count_shares);
    if (prompt_tokens_left_ > 0)
      add_chunk(batch, *sequence);
    else
      keep_pictures_whole(batch, *sequence, 1);  // which notes that one waits
  }
}

void BatchBuilder::add_decode_entries(ForwardBatch& batch, const CountPromptShares& count_shares) {
  const std::span<Sequence* const> running = running_.running();
  bool any = false;
  for (size_t i = 0; i < running.size(); ++i) {
    if (i + kStepsAhead < running.size()) running[i + kStepsAhead]->prefetch_step();
    if (i + kEndsAhead < running.size()) {
      running[i + kEndsAhead]->prefetch_ends();
      page_tables_.prefetch_end(batch, running[i + kEndsAhead]->kv.slot);
    }
    Sequence* const sequence = running[i];
    if (!sequence->wants_decode_entry()) continue;
    if (sequence->spec.takes_proposals && waits_for_draft_tokens(*sequence)) continue;
    std::optional<PartLimit> limit;
    if (sequence->num_due() > 1 || may_draft(*sequence))
      limit.emplace(*this, *sequence, count_shares);
    // Forced tokens beyond the first count as prompt tokens do. Without a page the sequence gets no
    // entry in this step: pages are coming back.
    int32_t count = 1;
    if (const int32_t num_due = sequence->num_due(); num_due > 1) {
      const auto most =
          static_cast<int32_t>(std::min<int64_t>(budget_.room_for(*sequence), num_due));
      count += std::clamp(most - 1, 0, prompt_tokens_left_);
    }
    if (!budget_.grow(*sequence, sequence->num_launched + count)) continue;
    prompt_tokens_left_ -= count - 1;
    propose_draft_tokens(*sequence, count);
    add_entry(batch, *sequence, count);
    any = true;
  }
  if (any) budget_.on_decode_step();
}

// Of the prompt's next tokens as many as cut no picture whose rows see each other: a chunk ends in
// front of it or behind it. The picture that is next goes in whole as soon as the step has room for
// it, whatever limits of latency and shares have left, for they may never leave as much; the next
// step keeps that room.
int32_t BatchBuilder::keep_pictures_whole(const ForwardBatch& batch, const Sequence& sequence,
                                          int32_t count) {
  if (!sequence.spec.has_spans || !sequence.spec.spans->whole) return count;
  const int32_t begin = sequence.num_launched, end = begin + count;
  const auto& spans = sequence.spec.spans->spans;
  const auto cut = std::ranges::find_if(
      spans, [&](const PromptSpan& span) { return span.begin < end && end < span.end(); });
  if (cut == spans.end()) return count;
  if (cut->begin > begin) return cut->begin - begin;
  const int32_t needed = cut->end() - begin;
  const int64_t room =
      config_.chunked_prefill_size <= 0
          ? needed
          : config_.chunked_prefill_size + std::ssize(batch.entries) - batch.num_tokens();
  if (needed > budget_.room_for(sequence)) return 0;
  if (needed <= room) return needed;
  if (needed <= config_.chunked_prefill_size)
    picture_tokens_due_ = std::max(picture_tokens_due_, needed);
  return 0;
}

void BatchBuilder::add_chunk(ForwardBatch& batch, Sequence& sequence) {
  auto count = static_cast<int32_t>(std::min<int64_t>(
      budget_.room_for(sequence),
      std::min(prompt_tokens_left_, sequence.prefill_end - sequence.num_launched)));
  if (is_time_limited_) count = std::min(count, step_time_.chunk_tokens(sequence.num_launched));
  if (count > 0) count = keep_pictures_whole(batch, sequence, count);
  if (count <= 0) return;
  ESP_CHECK(budget_.grow(sequence, sequence.num_launched + count));
  prompt_tokens_left_ -= count;
  propose_draft_tokens(sequence, count);
  add_entry(batch, sequence, count);
}

// A device has room for longer lists of log-probabilities in rows of known tokens alone.
constexpr int32_t kDraftedTopLogprobsMax = 32;

// What depends on the order of the tokens before does not go with draft tokens; nor do
// log-probabilities where a grammar forces tokens, which have none in this entry, long lists of
// log-probabilities, and hidden states, of which each token has one row.
bool BatchBuilder::can_draft(const Sequence& sequence) const {
  return sequence.spec.takes_proposals && !sequence.spec.sampling->reads_order() &&
         (config_.penalises_draft_tokens || !sequence.spec.sampling->has_penalties()) &&
         sequence.spec.sampling->hidden_layers.empty() &&
         !(sequence.spec.has_grammar && sequence.spec.sampling->return_logprob) &&
         sequence.spec.sampling->token_ids_logprob.empty() &&
         sequence.spec.sampling->top_logprobs_num <= kDraftedTopLogprobsMax;
}

namespace {
DraftSite site_of(const Sequence& sequence) {
  return {.id = sequence.spec.id, .tokens = sequence.tokens, .pages = sequence.kv.pages};
}
}  // namespace

// Draft tokens behind an entry of `num_query_tokens` known tokens.
void BatchBuilder::propose_draft_tokens(Sequence& sequence, int32_t num_query_tokens) {
  draft_tokens_.clear();
  const SequenceSpec& spec = sequence.spec;
  const int32_t begin = sequence.num_launched + num_query_tokens;
  if (!may_draft(sequence) || begin != sequence.num_tokens()) return;
  const int64_t most =
      std::min<int64_t>({prompt_tokens_left_, spec.max_new_tokens - sequence.num_outputs() - 1,
                         budget_.spare_tokens()});
  if (most <= 0) return;
  draft_tokens_.tokens_max = static_cast<int32_t>(most);
  draft_tokens_.samples_max = draft_samples_left_;
  proposer_.propose_draft_tokens(site_of(sequence), draft_tokens_);
  const auto count = static_cast<int32_t>(draft_tokens_.tokens.size());
  ESP_CHECK(count <= most && std::ssize(draft_tokens_.samples) <= draft_samples_left_);
  if (count > 0 && !budget_.grow(sequence, begin + count)) return draft_tokens_.clear();
  prompt_tokens_left_ -= count;
  draft_samples_left_ -= static_cast<int32_t>(draft_tokens_.samples.size());
}

// Whether the next entry would be one token that is being sampled, with no draft tokens behind it.
bool BatchBuilder::awaits_sample(const Sequence& sequence) const {
  return steps_.in_flight(sequence.last_step) && sequence.num_launched == sequence.num_tokens() &&
         sequence.stale_step < sequence.last_step;
}

// Whether the step is built after the commit of the one in flight, for the sake of draft tokens. A
// sequence that verifies some has no entry before it, and without it the others would have a step
// of their own, which takes nearly as long as one of all.
bool BatchBuilder::waits_for_commit() {
  if (draft_samples_left_ <= 0 || !proposer_.plans_draft_tokens()) return false;
  if (steps_.in_flight(verifying_step_)) return true;
  sites_.clear();
  int32_t num_entries = 0;
  for (const Sequence* s : running_.running()) {
    if (!s->wants_decode_entry()) continue;
    ++num_entries;
    if (s->num_due() > 1 || !may_draft(*s)) continue;
    DraftSite& site = sites_.emplace_back(site_of(*s));
    site.awaits_sample = awaits_sample(*s);
    site.tokens_max = s->spec.max_new_tokens - s->num_outputs() - (site.awaits_sample ? 2 : 1);
  }
  const bool waits = proposer_.plan_draft_tokens(
      {.num_entries = num_entries, .samples_max = draft_samples_left_, .sites = sites_});
  return waits && steps_.any_in_flight();
}

bool BatchBuilder::waits_for_draft_tokens(Sequence& sequence) {
  if (!may_draft(sequence) || !awaits_sample(sequence)) return false;
  sequence.awaiting_commit = proposer_.draft_tokens_after_next(site_of(sequence));
  return sequence.awaiting_commit;
}

void BatchBuilder::add_slot_init(ForwardBatch& batch, Sequence& sequence) {
  if (!sequence.kv.needs_slot_init) return;
  SlotInit init{.slot = sequence.kv.slot, .sampling = sequence.spec.sampling};
  if (init.sampling->reads_history()) {
    const auto output = sequence.tokens.begin() + sequence.prompt_len - sequence.spec.num_generated;
    init.prompt_ids.assign(sequence.tokens.begin(), output);
    if (sequence.spec.has_spans)  // keys are no tokens, and no rule applies to them
      std::erase_if(init.prompt_ids, [](TokenId id) { return id >= kFirstSpanKey; });
    init.output_ids.assign(output, sequence.tokens.end());
  }
  batch.slot_inits.push_back(std::move(init));
  sequence.kv.needs_slot_init = false;
}

void BatchBuilder::set_page_table(ForwardBatch& batch, BatchEntry& entry, Sequence& sequence) {
  const KvPlacement& kv = sequence.kv;
  entry.num_pages = cache_.num_pages_for(entry.prefix_len + entry.num_query_tokens);
  const auto num_pages = static_cast<size_t>(entry.num_pages);
  entry.page_begin = page_tables_.place(
      batch, kv.slot, kv.table_version, kv.pages.table().first(num_pages),
      cache_.has_window() ? kv.pages.window_table().first(num_pages) : std::span<const PageId>(),
      kv.num_pages_max);
  entry.table_version = kv.table_version;
}

void BatchBuilder::add_entry(ForwardBatch& batch, Sequence& sequence, int32_t num_query_tokens) {
  add_slot_init(batch, sequence);
  const int32_t begin = sequence.num_launched, end = begin + num_query_tokens;
  BatchEntry& entry = batch.entries.emplace_back();
  entry.slot = sequence.kv.slot;
  entry.sequence = sequence.spec.id;
  entry.adapter = sequence.spec.adapter;
  entry.num_draft_tokens = static_cast<int32_t>(draft_tokens_.tokens.size());
  entry.num_query_tokens = num_query_tokens + entry.num_draft_tokens;
  entry.prefix_len = begin;
  entry.query_begin = batch.num_tokens();
  set_page_table(batch, entry, sequence);
  const bool generates = sequence.spec.max_new_tokens > 0;
  entry.sample =
      end >= sequence.num_tokens() && (generates || sequence.spec.sampling->wants_next_logprobs());
  entry.has_mask = entry.sample && sequence.spec.has_grammar;
  entry.output_index = sequence.spec.num_generated + sequence.num_samples_launched;
  for (int32_t i = begin; i < end; ++i) {
    batch.token_ids.push_back(i < sequence.num_tokens() ? sequence.tokens[static_cast<size_t>(i)]
                                                        : kTokenFromSlot);
    batch.positions.push_back(i);
  }
  if (sequence.spec.has_spans && sequence.spec.spans->cross)
    add_cross_spans(batch, entry, *sequence.spec.spans);
  else if (sequence.spec.has_spans && begin < sequence.prompt_len)
    add_spans(batch, entry, sequence);
  add_draft_tokens(batch, entry);
  if (sequence.spec.has_spans && sequence.spec.spans->have_grids)
    add_rotary_spans(batch, entry, *sequence.spec.spans);
  if (entry.num_draft_tokens > 0) {
    sequence.drafting.drafter = draft_tokens_.drafter;
    if (draft_tokens_.is_planned) verifying_step_ = batch.step;
  }

  sequence.num_launched = end;
  sequence.last_step = batch.step;
  if (entry.sample && generates) ++sequence.num_samples_launched;
  if (entry.sample && sequence.spec.takes_proposals && end == sequence.num_tokens())
    sequence.awaiting_commit =
        entry.num_draft_tokens > 0 || proposer_.forces_after_next(sequence.spec.id);
  if (config_.chain_max > 0 && sequence.spec.takes_proposals) set_chain(entry, sequence);
  add_logprob_targets(entry, sequence);
  if (sequence.spec.pooled != PooledTokens::kNone) set_pooling(entry, sequence);
  if (sequence.kv.hidden_next >= 0) set_hidden_states(entry, sequence);
}

// Those of tokens before hidden_next were returned before a retraction.
void BatchBuilder::set_hidden_states(BatchEntry& entry, Sequence& sequence) {
  const int32_t end = entry.prefix_len + entry.num_query_tokens;
  if (end <= sequence.kv.hidden_next) return;
  entry.hidden_begin = std::max(0, sequence.kv.hidden_next - entry.prefix_len);
  entry.hidden_layers = sequence.spec.sampling->hidden_layers;
  sequence.kv.hidden_next = end;
}

void BatchBuilder::add_draft_tokens(ForwardBatch& batch, BatchEntry& entry) const {
  if (entry.num_draft_tokens == 0) return;
  entry.draft_samples_begin = static_cast<int32_t>(batch.draft_samples.size());
  entry.num_draft_samples = static_cast<int32_t>(draft_tokens_.samples.size());
  batch.draft_samples.insert(batch.draft_samples.end(), draft_tokens_.samples.begin(),
                             draft_tokens_.samples.end());
  batch.token_ids.insert(batch.token_ids.end(), draft_tokens_.tokens.begin(),
                         draft_tokens_.tokens.end());
  for (int32_t i = 0; i < entry.num_draft_tokens; ++i)
    batch.positions.push_back(batch.positions.back() + 1);
}

// A chain is of use as far as draft tokens behind the entry's sample may be accepted.
void BatchBuilder::set_chain(BatchEntry& entry, const Sequence& sequence) {
  if (!entry.sample && sequence.num_launched < sequence.num_tokens())
    entry.next_token = sequence.tokens[static_cast<size_t>(sequence.num_launched)];
  const int32_t most =
      std::min(config_.chain_max, sequence.spec.max_new_tokens - sequence.num_samples_launched - 1);
  if (!can_draft(sequence) || (entry.sample && most < 1)) return;
  entry.chain_length = std::min(proposer_.chain_length(sequence.spec.id, entry.sample), most);
}

// The log-probability of the token at position p comes from the logits of position p - 1.
void BatchBuilder::add_logprob_targets(BatchEntry& entry, Sequence& sequence) {
  LogprobRange& due = sequence.logprobs;
  const int32_t end = std::min(sequence.num_launched + 1, due.end);
  if (due.next >= end) return;
  entry.input_logprob_begin = due.next - 1 - entry.prefix_len;
  entry.input_logprob_targets.assign(sequence.tokens.begin() + due.next,
                                     sequence.tokens.begin() + end);
  due.next = end;
  if (!sequence.spec.has_spans) return;
  for (TokenId& target : entry.input_logprob_targets)
    if (target >= kFirstSpanKey) target = sequence.spec.spans->placeholder;
}

// A chunk may begin and end within a picture.
void BatchBuilder::add_spans(ForwardBatch& batch, const BatchEntry& entry,
                             const Sequence& sequence) {
  const int32_t first = entry.prefix_len, last = first + entry.num_query_tokens;
  for (const PromptSpan& span : sequence.spec.spans->spans) {
    const int32_t begin = std::max(first, span.begin), end = std::min(last, span.end());
    if (begin >= end) continue;
    batch.embedding_spans.push_back({.token_begin = entry.query_begin + begin - first,
                                     .count = end - begin,
                                     .first_row = span.first_row + begin - span.begin,
                                     .rows = span.rows});
  }
}

// Texts behind pictures and the pictures themselves, in turns.
void BatchBuilder::add_rotary_spans(ForwardBatch& batch, const BatchEntry& entry,
                                    const PromptSpans& spans) {
  const int32_t first = entry.prefix_len, last = first + entry.num_query_tokens;
  const auto add = [&](int32_t from, int32_t to, RotarySpan span) {
    const int32_t begin = std::max(first, from), end = std::min(last, to);
    if (begin >= end) return;
    span.token_begin = entry.query_begin + begin - first;
    span.count = end - begin;
    span.columns == 0 ? span.position += begin : span.first_row = begin - from;
    batch.rotary_spans.push_back(span);
  };
  for (size_t i = 0; i < spans.spans.size(); ++i) {
    const PromptSpan& span = spans.spans[i];
    if (span.rows->grid_columns > 0)
      add(span.begin, span.end(),
          {.position = span.rotary, .columns = span.rows->grid_columns, .time = span.time()});
    const int32_t next = i + 1 < spans.spans.size() ? spans.spans[i + 1].begin : last;
    add(span.end(), next, {.position = span.rotary_shift()});
  }
}

void BatchBuilder::set_pooling(BatchEntry& entry, const Sequence& sequence) {
  entry.pooled_end = sequence.num_launched == sequence.prefill_end;
  if (sequence.spec.pooled == PooledTokens::kAll)
    entry.pooled_begin = 0;
  else if (entry.pooled_end)
    entry.pooled_begin = entry.num_query_tokens - 1;
}

void BatchBuilder::add_shared_prefixes(ForwardBatch& batch) {
  shared_prefixes_.begin();
  for (size_t i = 0; i < batch.entries.size(); ++i)
    if (batch.entries[i].has_single_known_row())
      shared_prefixes_.add(cache_, running_.at(batch.entries[i].slot).kv.pages,
                           static_cast<int32_t>(i));
  shared_prefixes_.fill(batch);
}

void BatchBuilder::observe_step_time(const ForwardBatch& batch, const StepResult& result,
                                     TimePoint now) {
  const double seconds = result.forward_seconds;
  // Where nothing runs the time to the next commit is no step's.
  const TimePoint before = std::exchange(last_commit_, running_.empty() ? TimePoint{} : now);
  const double since_commit = before == TimePoint{} ? 0 : to_seconds(now - before);
  const StepSeconds times{.device = seconds - result.draft_seconds,
                          .since_commit = since_commit,
                          .is_first = result.graph_use == GraphUse::kRecorded};
  proposer_.observe_step(batch, times);
  if (config_.chain_max > 0) proposer_.observe_chains(batch, times, result.draft_seconds);
  step_time_.observe(batch, seconds);
}

void BatchBuilder::check_sequence(const Sequence& s) const {
  const bool in_flight = steps_.in_flight(s.last_step);
  ESP_CHECK(s.num_computed <= s.num_launched && s.last_step <= steps_.launched());
  ESP_CHECK(in_flight || s.entry_failed || s.num_computed == s.num_launched);
  ESP_CHECK(s.num_outputs() <= s.num_samples_launched &&
            s.num_samples_launched <= s.spec.max_new_tokens);
  ESP_CHECK(!s.awaiting_commit || in_flight, "it awaits a commit and has no entry in flight");
}

}  // namespace espalier
