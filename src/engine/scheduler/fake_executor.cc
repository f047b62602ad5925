#include "engine/scheduler/fake_executor.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace espalier {

uint64_t fake_digest(uint64_t digest, TokenId token) {
  return mix64(digest ^ (static_cast<uint64_t>(token) + 1));
}

uint64_t fake_first_digest(const std::string& cache_namespace) {
  uint64_t digest = 17;
  for (const char c : cache_namespace) digest = fake_digest(digest, c);
  return digest;
}

TokenId fake_token(uint64_t digest) { return static_cast<TokenId>(mix64(digest) % kFakeVocab); }

float fake_logprob(uint64_t digest, TokenId token) {
  return -static_cast<float>(mix64(digest ^ static_cast<uint64_t>(token) << 40) % 1000000) * 1e-5f;
}

void FakeExecutor::expect(uint64_t seed, const std::string& cache_namespace,
                          std::vector<TokenId> prompt, int32_t fail_at) {
  Known known = {.tokens = std::move(prompt), .fail_at = fail_at};
  known.prompt_len = known.tokens.size();
  known.digests.push_back(fake_first_digest(cache_namespace));
  for (const TokenId token : known.tokens)
    known.digests.push_back(fake_digest(known.digests.back(), token));
  known_[seed] = std::move(known);
}

// A token that nobody has sampled: forced, and here that is what the model would have said.
void FakeExecutor::learn(Known& known, TokenId token) {
  ESP_CHECK(token == fake_token(known.digests.back()), "a token that nobody has sampled");
  known.tokens.push_back(token);
  known.digests.push_back(fake_digest(known.digests.back(), token));
}

void FakeExecutor::check_init(const SlotInit& init) {
  if (!init.sampling->reads_history()) return;
  Known& known = known_.at(init.sampling->seed);
  std::vector<TokenId> history = init.prompt_ids;
  ESP_CHECK(history.size() == known.prompt_len);
  history.insert(history.end(), init.output_ids.begin(), init.output_ids.end());
  while (known.tokens.size() < history.size()) learn(known, history[known.tokens.size()]);
  ESP_CHECK(history.size() <= known.tokens.size() &&
                std::equal(history.begin(), history.end(), known.tokens.begin()),
            "slot {} is set up with a wrong history", init.slot);
}

void FakeExecutor::check_table(const ForwardBatch& batch, const BatchEntry& entry) {
  const auto begin = batch.page_tables.begin() + entry.page_begin;
  const std::vector<PageId> pages(begin, begin + entry.num_pages);
  Table& known = tables_[entry.slot];
  ESP_CHECK(entry.table_version != 0);
  const size_t kept = std::min(known.pages.size(), pages.size());
  ESP_CHECK(known.version != entry.table_version ||
                std::equal(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(kept),
                           known.pages.begin()),
            "step {} slot {}: entries of page table {} changed", batch.step, entry.slot,
            entry.table_version);
  known = {entry.table_version, pages};
}

void FakeExecutor::launch(const ForwardBatch& batch) {
  ESP_CHECK(in_flight_.size() < 2, "three steps in flight");
  for (const SlotInit& init : batch.slot_inits) {
    check_init(init);
    seed_of_slot_[init.slot] = init.sampling->seed;
  }
  in_flight_.emplace_back();
  InFlight& step = in_flight_.back();
  step.result.step = batch.step;
  if (holds_shared_prefixes_) check_shared_prefixes(batch);
  std::set<SlotId> slots;
  for (const BatchEntry& entry : batch.entries) {
    ESP_CHECK(slots.insert(entry.slot).second, "two entries of slot {}", entry.slot);
    check_table(batch, entry);
    step.result.entries.push_back(run(batch, entry, step));
  }
}

// Two entries of one known token share what their page tables have in common, no less and no more.
void FakeExecutor::check_shared_prefixes(const ForwardBatch& batch) const {
  const auto num_entries = batch.entries.size();
  const auto table = [&](size_t i) {
    const BatchEntry& entry = batch.entries[i];
    return std::span(batch.page_tables)
        .subspan(static_cast<size_t>(entry.page_begin), static_cast<size_t>(entry.num_pages));
  };
  std::vector<std::vector<int32_t>> shared_len(num_entries, std::vector<int32_t>(num_entries, 0));
  for (const SharedPrefixSegment& prefix : batch.shared_prefixes) {
    const std::span<const int32_t> entries = std::span(batch.shared_entries)
                                                 .subspan(static_cast<size_t>(prefix.first_entry),
                                                          static_cast<size_t>(prefix.num_entries));
    ESP_CHECK(entries.size() >= 2 && prefix.begin < prefix.end &&
              std::adjacent_find(entries.begin(), entries.end(), std::greater_equal()) ==
                  entries.end());
    ESP_CHECK(prefix.parent < 0
                  ? prefix.begin == 0
                  : &batch.shared_prefixes[static_cast<size_t>(prefix.parent)] < &prefix &&
                        batch.shared_prefixes[static_cast<size_t>(prefix.parent)].end ==
                            prefix.begin);
    for (const int32_t a : entries) {
      const BatchEntry& entry = batch.entries.at(static_cast<size_t>(a));
      ESP_CHECK(entry.has_single_known_row() && prefix.end <= entry.prefix_len);
      for (const int32_t b : entries) {
        int32_t& end = shared_len[static_cast<size_t>(a)][static_cast<size_t>(b)];
        end = std::max(end, prefix.end);
      }
    }
  }
  for (size_t a = 0; a < num_entries; ++a)
    for (size_t b = a + 1; b < num_entries; ++b) {
      if (!batch.entries[a].has_single_known_row() || !batch.entries[b].has_single_known_row())
        continue;
      const auto common = std::ranges::mismatch(table(a), table(b)).in1 - table(a).begin();
      ESP_CHECK(shared_len[a][b] == common * page_size_,
                "entries {} and {} share {} tokens, not {}", a, b, common * page_size_,
                shared_len[a][b]);
    }
}

EntryResult FakeExecutor::run(const ForwardBatch& batch, const BatchEntry& entry, InFlight& step) {
  Known& known = known_.at(seed_of_slot_.at(entry.slot));
  const int32_t end = entry.prefix_len + entry.num_query_tokens;
  ESP_CHECK(entry.num_query_tokens >= 1 && entry.num_pages == (end + page_size_ - 1) / page_size_);
  const auto row_of = [&](int32_t position) {
    return Row{batch.page_tables[static_cast<size_t>(entry.page_begin + position / page_size_)],
               position % page_size_};
  };
  const int32_t end_known = end - entry.num_draft_tokens;
  for (int32_t p = 0; p < end_known; ++p) {
    const Row row = row_of(p);
    if (static_cast<size_t>(p) == known.tokens.size()) {
      // Forced. What is in the cache already, another sequence has computed.
      const auto i = static_cast<size_t>(entry.query_begin + std::max(p - entry.prefix_len, 0));
      learn(known, p < entry.prefix_len ? fake_token(known.digests.back()) : batch.token_ids[i]);
    }
    const uint64_t digest = known.digests[static_cast<size_t>(p) + 1];
    if (p < entry.prefix_len) {
      const auto found = memory_.find(row);
      ESP_CHECK(found != memory_.end() && found->second == digest,
                "step {} slot {}: position {} is not in page {} row {}", batch.step, entry.slot, p,
                row.first, row.second);
      step.rows.try_emplace(row, entry.slot);
      continue;
    }
    const auto i = static_cast<size_t>(entry.query_begin + p - entry.prefix_len);
    ESP_CHECK(batch.positions[i] == p);
    const TokenId token = batch.token_ids[i];
    const bool last_known = static_cast<size_t>(p) + 1 == known.tokens.size();
    ESP_CHECK(token == kTokenFromSlot ? last_known && static_cast<size_t>(p) >= known.prompt_len
                                      : token == known.tokens[static_cast<size_t>(p)],
              "step {} slot {}: token {} at position {}", batch.step, entry.slot, token, p);
    for (const InFlight& other : in_flight_) {
      const auto used = other.rows.find(row);
      ESP_CHECK(used == other.rows.end() || used->second == entry.slot,
                "step {} writes page {} row {}, which step {} in flight still uses", batch.step,
                row.first, row.second, other.result.step);
    }
    memory_[row] = digest;
    step.rows[row] = entry.slot;
    if (static_cast<size_t>(p) < known.prompt_len) ++num_prompt_tokens_computed_;
  }

  if (sliding_window_ > 0) run_window(batch, entry, known, step);
  EntryResult result;
  run_draft_tokens(batch, entry, known, step, result);
  if (known.fail_at >= 0 && entry.output_index >= known.fail_at) {
    result.status = Status(StatusCode::kInternal, "the fake entry fails here");
    if (!entry.sample) return result;
  }
  for (size_t i = 0; i < entry.input_logprob_targets.size(); ++i) {
    const auto p = static_cast<size_t>(entry.prefix_len + entry.input_logprob_begin) + i;
    while (p + 1 >= known.tokens.size()) learn(known, entry.input_logprob_targets[i]);  // forced
    ESP_CHECK(entry.input_logprob_targets[i] == known.tokens[p + 1]);
    result.input_logprobs.push_back(
        {.logprob = fake_logprob(known.digests[p + 1], known.tokens[p + 1])});
  }
  if (!entry.sample) return result;
  // The output after these tokens, the same whenever it is computed again.
  const auto last = static_cast<size_t>(end_known);
  ESP_CHECK(last == known.prompt_len + static_cast<size_t>(entry.output_index));
  const uint64_t digest = known.digests[last];
  result.token = fake_token(digest);
  result.logprobs.logprob = fake_logprob(digest, result.token);
  if (known.tokens.size() == last) {
    known.tokens.push_back(result.token);
    known.digests.push_back(fake_digest(digest, result.token));
  }
  return result;
}

// Draft tokens: histories that no later entry may read unless they are accepted.
void FakeExecutor::run_draft_tokens(const ForwardBatch& batch, const BatchEntry& entry,
                                    const Known& known, InFlight& step, EntryResult& result) {
  if (entry.num_draft_tokens == 0) return;
  ESP_CHECK(entry.sample && entry.last_known() >= 0);
  const int32_t begin = entry.prefix_len + entry.last_known() + 1;
  uint64_t digest = known.digests[static_cast<size_t>(begin)];
  int32_t sample = 0;
  for (int32_t i = 0; i < entry.num_draft_tokens; ++i) {
    const int32_t p = begin + i;
    const auto at = static_cast<size_t>(entry.query_begin + p - entry.prefix_len);
    ESP_CHECK(batch.positions[at] == p && batch.token_ids[at] >= 0);
    digest = fake_digest(digest, batch.token_ids[at]);
    const auto page = static_cast<size_t>(entry.page_begin + p / page_size_);
    write(Row{batch.page_tables[page], p % page_size_}, digest, entry, step, false);
    if (sliding_window_ > 0)
      write(Row{batch.window_page_tables[page], p % page_size_}, digest, entry, step, true);
    if (sample == entry.num_draft_samples ||
        batch.draft_samples[static_cast<size_t>(entry.draft_samples_begin + sample)] != i)
      continue;
    ++sample;
    const bool fails = known.fail_at >= 0 && entry.output_index + 1 + i >= known.fail_at;
    result.draft_tokens.push_back(fails ? -1 : fake_token(digest));
  }
  ESP_CHECK(sample == entry.num_draft_samples, "draft samples are out of order");
}

void FakeExecutor::write(const Row& row, uint64_t digest, const BatchEntry& entry, InFlight& step,
                         bool window) {
  for (const InFlight& other : in_flight_) {
    const auto& rows = window ? other.window_rows : other.rows;
    const auto used = rows.find(row);
    ESP_CHECK(used == rows.end() || used->second == entry.slot,
              "a draft token is written over page {} row {}, which step {} in flight still uses",
              row.first, row.second, other.result.step);
  }
  (window ? window_memory_ : memory_)[row] = digest;
  (window ? step.window_rows : step.rows)[row] = entry.slot;
}

// The layers with a window: the same histories, in the window's pages, as far as it reaches.
void FakeExecutor::run_window(const ForwardBatch& batch, const BatchEntry& entry,
                              const Known& known, InFlight& step) {
  ESP_CHECK(batch.window_page_tables.size() == batch.page_tables.size());
  const int32_t end = entry.prefix_len + entry.last_known() + 1;
  for (int32_t p = std::max(0, entry.prefix_len - sliding_window_ + 1); p < end; ++p) {
    const Row row{batch.window_page_tables[static_cast<size_t>(entry.page_begin + p / page_size_)],
                  p % page_size_};
    const uint64_t digest = known.digests[static_cast<size_t>(p) + 1];
    if (p < entry.prefix_len) {
      const auto found = window_memory_.find(row);
      ESP_CHECK(found != window_memory_.end() && found->second == digest,
                "step {} slot {}: position {} is not in window page {} row {}", batch.step,
                entry.slot, p, row.first, row.second);
    } else {
      for (const InFlight& other : in_flight_) {
        const auto used = other.window_rows.find(row);
        ESP_CHECK(used == other.window_rows.end() || used->second == entry.slot,
                  "step {} writes window page {} row {}, which step {} in flight still uses",
                  batch.step, row.first, row.second, other.result.step);
      }
      window_memory_[row] = digest;
    }
    step.window_rows[row] = entry.slot;
  }
}

void FakeExecutor::fill(const std::string& cache_namespace, std::span<const TokenId> tokens,
                        int32_t begin, std::span<const PageId> pages) {
  uint64_t digest = fake_first_digest(cache_namespace);
  for (int32_t p = 0; p < static_cast<int32_t>(tokens.size()); ++p) {
    digest = fake_digest(digest, tokens[static_cast<size_t>(p)]);
    if (p < begin) continue;
    const Row row{pages[static_cast<size_t>(p / page_size_)], p % page_size_};
    for (const InFlight& step : in_flight_)
      ESP_CHECK(!step.rows.contains(row), "a load writes page {} row {}, which step {} uses",
                row.first, row.second, step.result.step);
    memory_[row] = digest;
  }
}

StepResult FakeExecutor::wait(uint64_t step) {
  ESP_CHECK(!in_flight_.empty() && in_flight_.front().result.step == step);
  StepResult result = std::move(in_flight_.front().result);
  in_flight_.pop_front();
  return result;
}

}  // namespace espalier
