#include "engine/executor/draft_chains.h"

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "engine/executor/slot_lengths.h"

namespace espalier {

namespace {
int32_t pages_of(int32_t num_tokens, int32_t page_size) {
  return (num_tokens + page_size - 1) / page_size;
}

// As the host accepts draft tokens: those without a sample behind them are forced by the one
// before.
AcceptedDraft accept_with_forced(const ForwardBatch& batch, const BatchEntry& entry,
                                 const EntryResult& result) {
  AcceptedDraft out{.next = result.token};
  const auto first_token = static_cast<size_t>(entry.query_begin + entry.last_known() + 1);
  const auto first_sample = static_cast<size_t>(entry.draft_samples_begin);
  for (size_t k = 0; k < result.draft_tokens.size(); ++k) {
    const TokenId sampled = result.draft_tokens[k];
    const TokenId draft = batch.token_ids[first_token + static_cast<size_t>(out.num_tokens)];
    if (draft != out.next || sampled < 0) break;
    out = {.num_tokens = batch.draft_samples[first_sample + k] + 1, .next = sampled};
  }
  return out;
}
}  // namespace

void DraftChains::clear() {
  pass_.clear();
  rows_.clear();
}

// Draft tokens that were not accepted are not the text's, so the head does not read them.
DraftChains::Known DraftChains::known_tokens(const ForwardBatch& batch, const BatchEntry& entry,
                                             const EntryResult& result) const {
  if (entry.chain_length < 0 || !result.status.ok()) return {};
  const bool shifts = head_.info().reads_states;
  if (!entry.sample)
    return {entry.num_query_tokens - (shifts && entry.next_token < 0 ? 1 : 0), entry.next_token};
  const AcceptedDraft accepted = accept_with_forced(batch, entry, result);
  if (accepted.next < 0) return {};
  const int32_t with_sampled = !shifts && entry.chain_length > 0 ? 1 : 0;
  return {entry.last_known() + 1 + accepted.num_tokens + with_sampled, accepted.next};
}

void DraftChains::add_pages(const ForwardBatch& batch, int32_t index, int32_t num_tokens,
                            int32_t page_size) {
  const BatchEntry& entry = batch.entries[static_cast<size_t>(index)];
  BatchEntry& of_pass = pass_.entries.back();
  of_pass.page_begin = static_cast<int32_t>(pass_.page_tables.size());
  of_pass.num_pages = pages_of(num_tokens, page_size);
  // The entry's own pages may be more, for draft tokens that were not accepted.
  const int32_t num_of_entry = std::min(entry.num_pages, of_pass.num_pages);
  const auto pages = batch.page_tables.begin() + entry.page_begin;
  pass_.page_tables.insert(pass_.page_tables.end(), pages, pages + num_of_entry);
  const int32_t own_pages = pages_of(kChainMax, page_size);
  ESP_CHECK(of_pass.num_pages - num_of_entry <= own_pages);
  for (int32_t page = num_of_entry; page < of_pass.num_pages; ++page)
    pass_.page_tables.push_back(first_page_ + index * own_pages + page - num_of_entry);
}

void DraftChains::add_known(const BatchEntry& entry, const Known& known,
                            std::span<const TokenId> token_ids) {
  const int32_t shift = head_.info().reads_states ? 1 : 0;
  for (int32_t row = 0; row < known.count; ++row) {
    const auto at = static_cast<size_t>(entry.query_begin + row);
    const bool computed = row + shift < entry.num_query_tokens;
    pass_.token_ids.push_back(computed ? token_ids[at + static_cast<size_t>(shift)] : known.next);
    pass_.positions.push_back(entry.prefix_len + row);
    rows_.push_back(static_cast<int32_t>(at));
  }
  // In place of a draft token that was not accepted.
  const bool reads_next = shift > 0 || (entry.sample && entry.chain_length > 0);
  if (known.next >= 0 && reads_next) pass_.token_ids.back() = known.next;
}

void DraftChains::read_known(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                             const KvView& kv, StepResult& result) {
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    const Known known = known_tokens(batch, entry, result.entries[i]);
    if (known.count == 0 || goes_beyond(entry.prefix_len + known.count)) continue;
    BatchEntry& of_pass = pass_.entries.emplace_back();
    of_pass.num_query_tokens = known.count;
    of_pass.prefix_len = entry.prefix_len;
    of_pass.query_begin = pass_.num_tokens();
    of_pass.sample = entry.sample && entry.chain_length > 0;
    add_pages(batch, static_cast<int32_t>(i), entry.prefix_len + known.count, kv.page_size);
    add_known(entry, known, token_ids);
    if (of_pass.sample)
      chains_.push_back({.entry = static_cast<int32_t>(i),
                         .row = static_cast<int32_t>(chains_.size()),
                         .position = entry.prefix_len + known.count - 1});
    result.entries[i].chain_begin =
        entry.prefix_len + known.count + (head_.info().reads_states ? 1 : 0);
  }
}

// Each chain's last token as an entry of its own, behind the tokens before it.
void DraftChains::read_chains(const ForwardBatch& batch, int32_t page_size) {
  for (size_t i = 0; i < chains_.size(); ++i) {
    Chain& chain = chains_[i];
    const int32_t position = ++chain.position;
    BatchEntry& of_pass = pass_.entries.emplace_back();
    of_pass.num_query_tokens = 1;
    of_pass.prefix_len = position;
    of_pass.query_begin = pass_.num_tokens();
    of_pass.sample = true;
    add_pages(batch, chain.entry, position + 1, page_size);
    pass_.token_ids.push_back(chain.token);
    pass_.positions.push_back(position);
    rows_.push_back(chain.row);
    chain.row = static_cast<int32_t>(i);
  }
}

// Chains that are as long as the entry wants, or as the head computes positions, end.
void DraftChains::take(std::span<const TokenId> drafted, const ForwardBatch& batch,
                       StepResult& result) {
  ESP_CHECK(drafted.size() == chains_.size());
  for (Chain& chain : chains_) {
    chain.token = drafted[static_cast<size_t>(chain.row)];
    result.entries[static_cast<size_t>(chain.entry)].chain.push_back(chain.token);
  }
  std::erase_if(chains_, [&](const Chain& chain) {
    const auto at = static_cast<size_t>(chain.entry);
    return goes_beyond(chain.position + 2) ||
           std::ssize(result.entries[at].chain) >=
               std::min(batch.entries[at].chain_length, kChainMax);
  });
}

void DraftChains::run(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                      const KvView& kv, StepResult& result) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  clear();
  chains_.clear();
  read_known(batch, token_ids, kv, result);
  if (pass_.entries.empty()) return;
  take(head_.draft(pass_, rows_, kv), batch, result);
  while (!chains_.empty()) {
    clear();
    read_chains(batch, kv.page_size);
    take(head_.draft_next(pass_, rows_, kv), batch, result);
  }
  result.draft_seconds = to_seconds(clock.now() - start);
}

}  // namespace espalier
