// The bytes and special ids of a vocabulary: all that the grammar, the scheduler and the sampler
// need of a tokenizer.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace espalier {

using TokenId = int32_t;

// Borrowed; the tokenizer that made it outlives it. Thread-safe to read.
struct VocabView {
  // The bytes that each token stands for, [vocab_size]; empty for special tokens and for ids that
  // the vocabulary does not use (a model's logits may be padded beyond it).
  std::span<const std::string_view> token_bytes;
  std::vector<TokenId> special_ids;  // sorted
  std::vector<TokenId> eos_ids;      // sorted; any of them ends a generation

  int32_t vocab_size() const { return static_cast<int32_t>(token_bytes.size()); }
};

}  // namespace espalier
