// tiktoken's rank files: a line for each token, base64 and its rank. Such a file does not say how
// text is split or which special tokens there are. Both follow from the vocabulary, which the
// file's name or its number of ranks identifies. The functions are thread-safe, and so are the
// tokenizers.
#pragma once

#include <memory>
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace espalier {

// `name`: the file's; "cl100k", "o200k", "harmony", "llama", "qwen", "gpt2", "r50k" or "p50k" in it
// picks a vocabulary by name, else its size does. Where neither is known, words are cut as
// cl100k's, the only special token is "<|endoftext|>" behind the ranks, and a warning is logged.
// kDataLoss names the line that is malformed. `normalizes_nfc`: as Qwen's own class for its rank
// file does, which tiktoken itself does not.
Result<std::unique_ptr<Tokenizer>> parse_tiktoken(std::string_view text, std::string_view name = {},
                                                  bool normalizes_nfc = false);

// Whether a file's text looks like ranks (Llama 3's are in a file called tokenizer.model).
bool looks_like_tiktoken(std::string_view text);

}  // namespace espalier
