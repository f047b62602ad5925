// Prompts of fill in the middle (FIM): a model that was trained for it continues a prompt of the
// text before a gap, the text behind the gap and special tokens around both with the text of the
// gap. Pure functions, thread-safe.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace espalier {

// The tokens that the vocabulary's file names, else those with the names that a known family uses:
// Qwen2.5-Coder and CodeGemma, StarCoder and Granite, SantaCoder, Code Llama, DeepSeek-Coder,
// GLM-4. Absent: the model fills no gaps.
std::optional<FimTokens> find_fim_tokens(const Tokenizer& tokenizer);

struct FimPrompt {
  std::vector<TokenId> ids;
  std::vector<TokenId> end_ids;  // tokens that end the gap's text beside those that end every text
};

// The beginning-of-sequence token where the tokenizer adds one, then the prefix token, `before`,
// the suffix token, `behind`, and the middle token. Text that spells a special token stays text.
FimPrompt make_fim_prompt(const Tokenizer& tokenizer, const FimTokens& tokens,
                          std::string_view before, std::string_view behind);

}  // namespace espalier
