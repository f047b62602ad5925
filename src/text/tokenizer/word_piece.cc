#include "text/tokenizer/word_piece.h"

#include <algorithm>

namespace espalier {
namespace {

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

}  // namespace

WordPieceModel::WordPieceModel(const TokenTable& table, Options options)
    : options_(std::move(options)) {
  std::vector<PieceTrie::Piece> pieces;
  for (TokenId id = 0; id < table.id_end(); ++id) {
    if (table.has(id)) pieces.push_back({table.of(id), id});
  }
  trie_ = PieceTrie(std::move(pieces));
  continuing_root_ = trie_.walk(PieceTrie::kRoot, options_.continuing_prefix);
}

void WordPieceModel::encode_word(std::string_view word, std::vector<TokenId>& out) const {
  const size_t size_before = out.size();
  bool known = count_characters(word) <= options_.characters_max;
  for (size_t begin = 0; known && begin < word.size();) {
    const uint32_t root = begin == 0 ? PieceTrie::kRoot : continuing_root_;
    const PieceTrie::Match match = trie_.longest(root, word, begin);
    known = match.size > 0;
    out.push_back(match.value);
    begin += match.size;
  }
  if (known) return;
  out.resize(size_before);
  if (options_.unk_id) out.push_back(*options_.unk_id);
}

}  // namespace espalier
