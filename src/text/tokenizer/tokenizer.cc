#include "text/tokenizer/tokenizer.h"

#include <algorithm>

namespace espalier {

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
