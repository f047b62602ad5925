#include "text/tokenizer/unigram.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/unicode/utf8.h"

namespace espalier {
namespace {

constexpr double kUnigramUnkPenalty = 10.0;  // below the lowest score

struct Best {  // the best way to cut the text up to a position
  double score = 0;
  uint32_t begin = 0;  // of its last piece
  TokenId id = -1;     // -1: not reached yet
};

}  // namespace

UnigramModel::UnigramModel(const TokenTable& table, std::vector<double> scores,
                           std::optional<TokenId> unk_id, bool byte_fallback)
    : table_(table),
      scores_(std::move(scores)),
      unk_id_(unk_id),
      byte_fallback_(byte_fallback),
      cache_(std::make_unique<WordCache>()) {
  std::vector<PieceTrie::Piece> pieces;
  for (TokenId id = 0; id < table.id_end(); ++id) {
    if (table.has(id)) pieces.push_back({table.of(id), id});
  }
  trie_ = PieceTrie(std::move(pieces));
  const auto lowest = std::min_element(scores_.begin(), scores_.end());
  unk_score_ = (lowest == scores_.end() ? 0.0 : *lowest) - kUnigramUnkPenalty;
}

void UnigramModel::encode_word(std::string_view word, std::vector<TokenId>& out) const {
  const bool cached = word.size() <= WordCache::kWordBytesMax;
  const uint64_t hash = cached ? WordCache::hash_of(word) : 0;
  if (cached && cache_->find(word, hash, out)) return;
  // Text that no piece covers. Any id that no piece has serves where there is no unknown token.
  const TokenId unknown = unk_id_.value_or(table_.id_end());
  std::vector<Best> best(word.size() + 1);
  for (size_t begin = 0; begin < word.size();) {
    const size_t character_size = decode_utf8(word, begin).size;
    const double score_here = best[begin].score;
    bool has_character = false;
    const auto offer = [&](size_t size, TokenId id, double score) {
      Best& target = best[begin + size];
      if (target.id >= 0 && score <= target.score) return;
      target = {score, static_cast<uint32_t>(begin), id};
    };
    trie_.for_each_prefix(word, begin, [&](size_t size, TokenId id) {
      offer(size, id, scores_[id] + score_here);
      has_character |= size == character_size;
    });
    if (!has_character) offer(character_size, unknown, unk_score_ + score_here);
    begin += character_size;
  }
  // Reads the cut backwards. Adjacent unknown pieces become one.
  std::vector<std::string_view> pieces;
  for (size_t end = word.size(); end > 0;) {
    size_t begin = best[end].begin;
    if (best[end].id == unknown) {
      while (begin > 0 && best[begin].id == unknown) begin = best[begin].begin;
    }
    pieces.push_back(word.substr(begin, end - begin));
    end = begin;
  }
  const size_t size_before = out.size();
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) append_piece(*piece, out);
  if (cached) cache_->insert(word, hash, out.data() + size_before, out.size() - size_before);
}

void UnigramModel::append_piece(std::string_view piece, std::vector<TokenId>& out) const {
  const PieceTrie::Match match = trie_.longest(PieceTrie::kRoot, piece, 0);
  if (match.size == piece.size()) {
    out.push_back(match.value);
    return;
  }
  if (byte_fallback_) {
    const size_t size_before = out.size();
    for (const char byte : piece) {
      const TokenId id = table_.find_id(fmt::format("<0x{:02X}>", static_cast<uint8_t>(byte)));
      if (id < 0) break;
      out.push_back(id);
    }
    if (out.size() - size_before == piece.size()) return;
    out.resize(size_before);
  }
  if (unk_id_) out.push_back(*unk_id_);
}

}  // namespace espalier
