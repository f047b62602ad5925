// Chains of draft tokens by a model's draft head, behind a step's samples. The head first reads
// the tokens that the step has computed and accepted, each with the token behind it; then it reads
// its own draft tokens, one a pass. A draft model (DraftHeadInfo::reads_states is false) reads
// these tokens and the sampled one, which it reads once more in the next step, where it has a page.
//
// What it writes for draft tokens is written again once tokens have been sampled there. It lies in
// the sequence's last page, and beyond that in pages of this class, behind those of the cache.
// Used from the executor's thread alone; allocates nothing beyond its largest step. Borrows the
// head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/draft_head.h"
#include "seams/forward_batch.h"
#include "seams/kv_view.h"
#include "seams/step_result.h"

namespace espalier {

class DraftChains {
 public:
  static constexpr int32_t kChainMax = 16;

  // Pages behind the cache's that steps of so many entries need.
  static int32_t num_pages(int32_t max_entries, int32_t page_size) {
    return max_entries * ((kChainMax + page_size - 1) / page_size);
  }

  // first_page: the first of these pages.
  DraftChains(DraftHead& head, PageId first_page) : head_(head), first_page_(first_page) {}

  // After the step's tokens have been sampled: fills EntryResult::chain. token_ids: of the batch,
  // without kTokenFromSlot; prefix lengths are known.
  void run(const ForwardBatch& batch, std::span<const TokenId> token_ids, const KvView& kv,
           StepResult& result);

 private:
  // An entry whose chain is being drafted.
  struct Chain {
    int32_t entry = 0;     // in the batch
    int32_t row = 0;       // of the head's last result
    int32_t position = 0;  // of the last token whose keys the head has written
    TokenId token = -1;    // drafted last
  };
  // Tokens of the entry that the head reads, and the one behind them; 0: none.
  struct Known {
    int32_t count = 0;
    TokenId next = -1;
  };
  Known known_tokens(const ForwardBatch& batch, const BatchEntry& entry,
                     const EntryResult& result) const;
  void read_known(const ForwardBatch& batch, std::span<const TokenId> token_ids, const KvView& kv,
                  StepResult& result);
  void add_known(const BatchEntry& entry, const Known& known, std::span<const TokenId> token_ids);
  // Pages of the entry with this index for num_tokens of its tokens, and behind its own those of
  // its chain.
  void add_pages(const ForwardBatch& batch, int32_t index, int32_t num_tokens, int32_t page_size);
  bool goes_beyond(int32_t num_tokens) const {
    const int32_t most = head_.info().context_length;
    return most > 0 && num_tokens > most;
  }
  void read_chains(const ForwardBatch& batch, int32_t page_size);
  void take(std::span<const TokenId> drafted, const ForwardBatch& batch, StepResult& result);
  void clear();

  DraftHead& head_;
  const PageId first_page_;
  ForwardBatch pass_;
  std::vector<int32_t> rows_;
  std::vector<Chain> chains_;
};

}  // namespace espalier
