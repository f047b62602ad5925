// The smallest real vocabulary: a token a byte and four special tokens. For the tests of rooms that
// need a tokenizer and care little which. Thread-safe.
#pragma once

#include <memory>

#include "text/tokenizer/tokenizer.h"

namespace espalier {

inline constexpr TokenId kByteBosId = 256;        // "<s>"
inline constexpr TokenId kByteEosId = 257;        // "</s>", the one end-of-sequence id
inline constexpr TokenId kByteUserId = 258;       // "<|user|>"
inline constexpr TokenId kByteAssistantId = 259;  // "<|assistant|>"
inline constexpr int32_t kByteVocabSize = 260;

// Ids 0 to 255 are the bytes. With `add_bos` encode() puts "<s>" first where special tokens are
// asked for.
std::unique_ptr<Tokenizer> make_byte_tokenizer(bool add_bos = false);

}  // namespace espalier
