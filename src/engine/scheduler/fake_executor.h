// For tests: an executor whose model is a hash. Each row of KV memory holds a digest of the whole
// history that wrote it, and an entry is run only if its pages hold exactly the history of its own
// sequence: any wrong reuse, stale page or page reused too early is seen at once.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "seams/forward_batch.h"
#include "seams/step_result.h"

namespace espalier {

inline constexpr TokenId kFakeVocab = 50;

// The history's digest after one token more.
uint64_t fake_digest(uint64_t digest, TokenId token);
uint64_t fake_first_digest(const std::string& cache_namespace);
// What the model says after a history.
TokenId fake_token(uint64_t digest);
float fake_logprob(uint64_t digest, TokenId token);

class FakeExecutor {
 public:
  // sliding_window: where batches bring tables of the window's map, what a token reads there.
  explicit FakeExecutor(int32_t page_size, int32_t sliding_window = 0)
      : page_size_(page_size), sliding_window_(sliding_window) {}

  // A sequence is known by its sampling seed. Entries of it fail from output `fail_at` on (-1:
  // never).
  void expect_shared_prefixes() { holds_shared_prefixes_ = true; }
  void expect(uint64_t seed, const std::string& cache_namespace, std::vector<TokenId> prompt,
              int32_t fail_at = -1);

  // Runs the step now; its pages count as in use until wait() has taken its result.
  void launch(const ForwardBatch& batch);
  StepResult wait(uint64_t step);

  // A load from outside has written positions [begin, tokens.size()) of this history.
  void fill(const std::string& cache_namespace, std::span<const TokenId> tokens, int32_t begin,
            std::span<const PageId> pages);

  int64_t num_prompt_tokens_computed() const { return num_prompt_tokens_computed_; }

 private:
  using Row = std::pair<PageId, int32_t>;
  struct Known {
    std::vector<TokenId> tokens;    // the prompt, then what was sampled
    std::vector<uint64_t> digests;  // [0] before any token
    size_t prompt_len = 0;
    int32_t fail_at = -1;
  };
  struct InFlight {
    StepResult result;
    std::map<Row, SlotId> rows;  // read or written, by whom
    std::map<Row, SlotId> window_rows;
  };
  void run_window(const ForwardBatch& batch, const BatchEntry& entry, const Known& known,
                  InFlight& step);

  void run_draft_tokens(const ForwardBatch& batch, const BatchEntry& entry, const Known& known,
                        InFlight& step, EntryResult& result);
  void write(const Row& row, uint64_t digest, const BatchEntry& entry, InFlight& step, bool window);

  EntryResult run(const ForwardBatch& batch, const BatchEntry& entry, InFlight& step);
  void check_init(const SlotInit& init);
  static void learn(Known& known, TokenId token);
  void check_table(const ForwardBatch& batch, const BatchEntry& entry);
  void check_shared_prefixes(const ForwardBatch& batch) const;
  bool holds_shared_prefixes_ = false;

  const int32_t page_size_, sliding_window_;
  std::unordered_map<uint64_t, Known> known_;
  std::unordered_map<SlotId, uint64_t> seed_of_slot_;
  // What a device that keeps page tables knows of each slot's: its version, and its entries so far.
  struct Table {
    uint64_t version = 0;
    std::vector<PageId> pages;
  };
  std::unordered_map<SlotId, Table> tables_;
  std::map<Row, uint64_t> memory_, window_memory_;
  std::deque<InFlight> in_flight_;
  int64_t num_prompt_tokens_computed_ = 0;
};

}  // namespace espalier
