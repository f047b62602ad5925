// The masks of a step: what each entry's next token may be, as its sequence's grammar, its forced
// tokens and the text that it still has to spell allow.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/constrained/jump_forward.h"
#include "engine/constrained/tokens_by_bytes.h"
#include "engine/executor/executor.h"
#include "engine/requests/live_request.h"
#include "grammar/masks/mask_pool.h"
#include "seams/forward_batch.h"

namespace espalier {

// For the loop's thread, which several others help where a step has much to fill. Whatever they
// do, a step's masks are those that one thread would make.
class StepMasks {
 public:
  using Samples = std::unordered_map<SequenceId, SampleState*>;

  // Borrowed; `tokenizer` may be null, and then no sample has a grammar or text to spell.
  StepMasks(const Tokenizer* tokenizer, const Samples& samples, int32_t vocab_size,
            int32_t num_threads);

  // Those of all entries of the batch that have one; empty where none has. Valid until the next
  // call. REQUIRES: the tokens before are known.
  MaskView fill(const ForwardBatch& batch);

  // Where the continuations are few, the tokens that the sample's next one is drawn from: with any
  // other the answer would not be canonical, and nothing could be forced behind it. Empty: what the
  // grammar allows. A ban must find others left.
  std::span<const TokenId> choices_of(SampleState& sample);

  // Made when they are needed first. REQUIRES: a tokenizer.
  const TokensByBytes& tokens_by_bytes();
  JumpForward& jump_forward();  // the loop's own

 private:
  // An entry, and its words: its mask, and behind it those of its draft samples.
  struct Row {
    const BatchEntry* entry;
    std::span<uint32_t> words;
  };
  // What a thread uses while it fills a row.
  struct Scratch {
    std::vector<TokenId> output, choices;  // of an entry's draft tokens
  };

  void fill_row(const ForwardBatch& batch, const Row& row, size_t thread);
  void fill_mask(const BatchEntry& entry, size_t thread, std::span<uint32_t> words);
  void fill_draft_masks(const ForwardBatch& batch, const BatchEntry& entry, size_t thread,
                        std::span<uint32_t> words);
  // `num_ahead`: the draft tokens that the matcher has read beyond the sample's own.
  static void fill_grammar_mask(SampleState& sample, std::span<const TokenId> choices,
                                int32_t num_ahead, std::span<uint32_t> words);
  static std::span<const TokenId> choices_of(SampleState& sample, JumpForward& jump);

  const Tokenizer* const tokenizer_;
  const Samples& samples_;
  const size_t words_per_mask_;
  std::unique_ptr<TokensByBytes> tokens_by_bytes_;
  std::vector<std::unique_ptr<JumpForward>> jumps_;  // [thread]; none until a grammar needs them
  std::vector<Scratch> scratch_;                     // [thread]
  std::vector<Row> rows_;                            // of the step
  std::vector<uint32_t> words_;                      // [mask, words_per_mask_]
  grammar::MaskPool pool_;
};

}  // namespace espalier
