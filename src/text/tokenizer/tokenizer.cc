#include "text/tokenizer/tokenizer.h"

#include <algorithm>

namespace espalier {

void cut_longest_first(std::vector<TokenId>& first, std::vector<TokenId>* second, size_t most) {
  if (second == nullptr) {
    if (first.size() > most) first.resize(most);
    return;
  }
  if (first.size() + second->size() <= most) return;
  const bool swapped = first.size() > second->size();
  size_t shorter = std::min(first.size(), second->size());
  size_t longer = shorter > most ? shorter : std::max(shorter, most - shorter);
  if (shorter + longer > most) {
    shorter = most / 2;
    longer = shorter + most % 2;
  }
  first.resize(swapped ? longer : shorter);
  second->resize(swapped ? shorter : longer);
}

TypedIds Tokenizer::encode_typed(std::string_view text, const std::string* pair,
                                 size_t tokens_max) const {
  TypedIds out{encode(text), {}};
  std::vector<TokenId> second;
  if (pair != nullptr) second = encode(*pair, {.add_special_tokens = false});
  if (tokens_max > 0) cut_longest_first(out.ids, pair != nullptr ? &second : nullptr, tokens_max);
  out.types.assign(out.ids.size(), 0);
  out.ids.insert(out.ids.end(), second.begin(), second.end());
  out.types.resize(out.ids.size(), 1);
  return out;
}

std::string Tokenizer::decode(const std::vector<TokenId>& ids, const DecodeOptions& options) const {
  const std::unique_ptr<DecodeStream> stream = decode_stream(options);
  std::string text;
  for (const TokenId id : ids) stream->push(id, text);
  stream->flush(text);
  return text;
}

bool Tokenizer::is_special(TokenId id) const {
  const std::vector<TokenId>& special = vocab().special_ids;
  return std::binary_search(special.begin(), special.end(), id);
}

}  // namespace espalier
