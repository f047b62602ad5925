#include "text/tokenizer/fill_in_the_middle.h"

#include <algorithm>
#include <string>

namespace espalier {
namespace {

struct FimNames {
  const char *prefix, *suffix, *middle;
};

constexpr FimNames kFamilies[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},     // Qwen2.5-Coder, CodeGemma
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},           // StarCoder, Granite
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},           // SantaCoder
    {"▁<PRE>", "▁<SUF>", "▁<MID>"},                             // Code Llama
    {"<PRE>", "<SUF>", "<MID>"},                                // Code Llama, by its plain names
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},     // DeepSeek-Coder
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},  // GLM-4
};

// What these models put behind a gap's text, and what separates files and repositories in their
// training, which a gap's text never holds.
constexpr const char* kEnds[] = {"▁<EOT>",       "<EOT>",      "<|endoftext|>",
                                 "<|fim_pad|>",  "<fim_pad>",  "<|repo_name|>",
                                 "<|file_sep|>", "<file_sep>", "<|file_separator|>"};

constexpr EncodeOptions kPlainText{.add_special_tokens = false, .parse_special = false};

// Whether the tokenizer puts a space before a text, as SentencePiece models do.
bool adds_space(const Tokenizer& tokenizer) {
  const std::vector<TokenId> ids = tokenizer.encode("x", kPlainText);
  if (ids.empty()) return false;
  const auto& bytes = tokenizer.vocab().token_bytes;
  const auto first = static_cast<size_t>(ids[0]);
  return first < bytes.size() && bytes[first].starts_with(' ');
}

// The ids of a text that stands within another: without the space that a tokenizer puts before a
// text. They are those behind a character that no token joins with what follows it.
std::vector<TokenId> encode_within(const Tokenizer& tokenizer, std::string_view text) {
  if (!adds_space(tokenizer)) return tokenizer.encode(text, kPlainText);
  const std::string mark = "☺";
  const std::vector<TokenId> of_mark = tokenizer.encode(mark, kPlainText);
  std::vector<TokenId> ids = tokenizer.encode(mark + std::string(text), kPlainText);
  if (ids.size() < of_mark.size() || !std::equal(of_mark.begin(), of_mark.end(), ids.begin()))
    return tokenizer.encode(text, kPlainText);
  ids.erase(ids.begin(), ids.begin() + std::ssize(of_mark));
  return ids;
}

}  // namespace

std::optional<FimTokens> find_fim_tokens(const Tokenizer& tokenizer) {
  if (const auto stored = tokenizer.fim_tokens()) return stored;
  for (const FimNames& names : kFamilies) {
    const auto prefix = tokenizer.token_to_id(names.prefix);
    const auto suffix = tokenizer.token_to_id(names.suffix);
    const auto middle = tokenizer.token_to_id(names.middle);
    if (prefix && suffix && middle)
      return FimTokens{.prefix = *prefix, .suffix = *suffix, .middle = *middle};
  }
  return std::nullopt;
}

FimPrompt make_fim_prompt(const Tokenizer& tokenizer, const FimTokens& tokens,
                          std::string_view before, std::string_view behind) {
  FimPrompt prompt;
  const std::vector<TokenId> frame = tokenizer.encode("");
  if (!frame.empty() && frame[0] == tokenizer.bos_id()) prompt.ids.push_back(frame[0]);
  const auto append = [&](TokenId mark, const std::vector<TokenId>& text) {
    prompt.ids.push_back(mark);
    prompt.ids.insert(prompt.ids.end(), text.begin(), text.end());
  };
  append(tokens.prefix, tokenizer.encode(before, kPlainText));
  append(tokens.suffix, encode_within(tokenizer, behind));
  prompt.ids.push_back(tokens.middle);
  for (const char* name : kEnds)
    if (const auto id = tokenizer.token_to_id(name)) prompt.end_ids.push_back(*id);
  return prompt;
}

}  // namespace espalier
