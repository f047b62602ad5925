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
}  // namespace

void DraftChains::clear() {
  pass_.clear();
  rows_.clear();
}

// Draft tokens that were not accepted are not the text's, so the head does not read them.
DraftChains::Known DraftChains::known_tokens(const ForwardBatch& batch, const BatchEntry& entry,
                                             const EntryResult& result) {
  if (entry.chain_length < 0 || !result.status.ok()) return {};
  if (!entry.sample)
    return {entry.num_query_tokens - (entry.next_token < 0 ? 1 : 0), entry.next_token};
  const AcceptedDraft accepted = accept_draft(batch, entry, result);
  if (accepted.next < 0) return {};
  return {entry.last_known() + 1 + accepted.num_tokens, accepted.next};
}

void DraftChains::read_known(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                             const KvView& kv, const StepResult& result) {
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    const Known known = known_tokens(batch, entry, result.entries[i]);
    if (known.count == 0) continue;
    BatchEntry& of_pass = pass_.entries.emplace_back();
    of_pass.num_query_tokens = known.count;
    of_pass.prefix_len = entry.prefix_len;
    of_pass.query_begin = pass_.num_tokens();
    of_pass.page_begin = static_cast<int32_t>(pass_.page_tables.size());
    of_pass.num_pages = pages_of(entry.prefix_len + known.count, kv.page_size);
    of_pass.sample = entry.sample && entry.chain_length > 0;
    const auto pages = batch.page_tables.begin() + entry.page_begin;
    pass_.page_tables.insert(pass_.page_tables.end(), pages, pages + of_pass.num_pages);
    for (int32_t row = 0; row < known.count; ++row) {
      const auto at = static_cast<size_t>(entry.query_begin + row);
      pass_.token_ids.push_back(row + 1 < entry.num_query_tokens ? token_ids[at + 1] : known.next);
      pass_.positions.push_back(entry.prefix_len + row);
      rows_.push_back(static_cast<int32_t>(at));
    }
    if (known.next >= 0) pass_.token_ids.back() = known.next;
    if (of_pass.sample)
      chains_.push_back({.entry = static_cast<int32_t>(i),
                         .row = static_cast<int32_t>(chains_.size()),
                         .position = entry.prefix_len + known.count - 1});
  }
}

// Each chain's last token as an entry of its own, behind the tokens before it.
void DraftChains::read_chains(const ForwardBatch& batch, int32_t page_size) {
  const int32_t own_pages = pages_of(kChainMax, page_size);
  for (size_t i = 0; i < chains_.size(); ++i) {
    Chain& chain = chains_[i];
    const BatchEntry& entry = batch.entries[static_cast<size_t>(chain.entry)];
    const int32_t position = ++chain.position;
    BatchEntry& of_pass = pass_.entries.emplace_back();
    of_pass.num_query_tokens = 1;
    of_pass.prefix_len = position;
    of_pass.query_begin = pass_.num_tokens();
    of_pass.page_begin = static_cast<int32_t>(pass_.page_tables.size());
    of_pass.num_pages = pages_of(position + 1, page_size);
    of_pass.sample = true;
    // The entry's own pages may be more, for draft tokens that were not accepted.
    const int32_t num_of_entry = std::min(entry.num_pages, of_pass.num_pages);
    const auto pages = batch.page_tables.begin() + entry.page_begin;
    pass_.page_tables.insert(pass_.page_tables.end(), pages, pages + num_of_entry);
    ESP_CHECK(of_pass.num_pages - num_of_entry <= own_pages);
    for (int32_t page = num_of_entry; page < of_pass.num_pages; ++page)
      pass_.page_tables.push_back(first_page_ + chain.entry * own_pages + page - num_of_entry);
    pass_.token_ids.push_back(chain.token);
    pass_.positions.push_back(position);
    rows_.push_back(chain.row);
    chain.row = static_cast<int32_t>(i);
  }
}

// Chains that are as long as the entry wants end.
void DraftChains::take(std::span<const TokenId> drafted, const ForwardBatch& batch,
                       StepResult& result) {
  ESP_CHECK(drafted.size() == chains_.size());
  for (Chain& chain : chains_) {
    chain.token = drafted[static_cast<size_t>(chain.row)];
    result.entries[static_cast<size_t>(chain.entry)].chain.push_back(chain.token);
  }
  std::erase_if(chains_, [&](const Chain& chain) {
    const auto at = static_cast<size_t>(chain.entry);
    return std::ssize(result.entries[at].chain) >=
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
