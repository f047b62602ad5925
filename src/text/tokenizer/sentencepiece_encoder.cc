#include "text/tokenizer/sentencepiece_encoder.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "text/tokenizer/merge.h"
#include "text/tokenizer/sentencepiece_normalizer.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

using PieceType = SentencePieceModel::PieceType;

constexpr float kScoreMax = 100000.0f;  // sums beyond it begin at 0 again
constexpr float kUnkPenalty = 10.0f;    // below the lowest score

// Where the next word begins, in bytes: at a space mark that no other mark precedes.
size_t next_word(std::string_view text, size_t begin) {
  for (size_t at = text.find(kSentencePieceSpace, begin + 1); at < text.size();
       at = text.find(kSentencePieceSpace, at + 1)) {
    if (!text.substr(0, at).ends_with(kSentencePieceSpace)) return at;
  }
  return text.size();
}

}  // namespace

SentencePieceEncoder::SentencePieceEncoder(const SentencePieceModel& model)
    : model_(model), pieces_(model.pieces.size(), model.pieces.size() * 8) {
  index_pieces();
  if (model_.type == SentencePieceModel::Type::kBpe) prepare_bpe();
}

void SentencePieceEncoder::index_pieces() {
  byte_ids_.fill(-1);
  std::vector<PieceTrie::Piece> mergeable, user_defined;
  float score_min = FLT_MAX;
  cuts_at_marks_ = !model_.whitespace_is_suffix;
  for (TokenId id = 0; id < static_cast<TokenId>(model_.pieces.size()); ++id) {
    const SentencePieceModel::Piece& piece = model_.pieces[id];
    scores_.push_back(piece.score);
    switch (piece.type) {
      case PieceType::kNormal:
        score_min = std::min(score_min, piece.score);
        break;
      case PieceType::kUserDefined:
        user_defined.push_back({piece.text, id});
        break;
      case PieceType::kUnused:
        has_unused_ = true;
        break;
      case PieceType::kUnknown:
        unk_id_ = id;
        continue;
      case PieceType::kControl:
        continue;
      case PieceType::kByte:
        if (const int byte = sentencepiece_byte(piece.text); byte >= 0) byte_ids_[byte] = id;
        continue;
    }
    pieces_.add(piece.text, id);
    mergeable.push_back({piece.text, id});
    cuts_at_marks_ &= next_word(piece.text, 0) >= piece.text.size();
  }
  cuts_at_marks_ &= !has_unused_;
  piece_trie_ = PieceTrie(std::move(mergeable));
  user_defined_ = PieceTrie(std::move(user_defined));
  unk_score_ = score_min - kUnkPenalty;
}

// Pairs merge by the score of what they make, the highest first.
void SentencePieceEncoder::prepare_bpe() {
  std::vector<float> distinct = scores_;
  std::sort(distinct.begin(), distinct.end(), std::greater<>());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  ranks_.resize(scores_.size());
  for (size_t id = 0; id < scores_.size(); ++id) {
    const auto at =
        std::lower_bound(distinct.begin(), distinct.end(), scores_[id], std::greater<>());
    ranks_[id] = static_cast<uint32_t>(at - distinct.begin());
  }
  RankBpeOptions options;
  options.by_bytes = false;
  options.whole_words_first = false;
  options.ranks = ranks_;
  options.fallback_ids = byte_ids_;
  options.byte_fallback = model_.byte_fallback;
  options.unk_id = unk_id_;
  bpe_ = std::make_unique<RankBpe>(pieces_, std::move(options));
}

void SentencePieceEncoder::encode(std::string_view text, std::vector<TokenId>& ids) const {
  const std::string normalized = normalize_sentencepiece(model_, user_defined_, text);
  const auto first = static_cast<ptrdiff_t>(ids.size());
  switch (model_.type) {
    case SentencePieceModel::Type::kBpe:
      if (has_unused_) {
        encode_bpe_with_unused(normalized, ids);
      } else {
        encode_bpe(normalized, ids);
      }
      break;
    case SentencePieceModel::Type::kUnigram:
      encode_unigram(normalized, ids);
      break;
    case SentencePieceModel::Type::kWord:
      encode_words(normalized, ids);
      break;
    case SentencePieceModel::Type::kChar:
      encode_characters(normalized, ids);
      break;
  }
  if (model_.byte_fallback) return;
  // A run of unknown pieces is one.
  ids.erase(std::unique(ids.begin() + first, ids.end(),
                        [&](TokenId a, TokenId b) { return a == unk_id_ && b == unk_id_; }),
            ids.end());
}

// User-defined symbols stand; what is between them is merged, a word at a time where nothing can
// merge across words.
void SentencePieceEncoder::encode_bpe(std::string_view text, std::vector<TokenId>& ids) const {
  const auto encode_between = [&](std::string_view part) {
    while (!part.empty()) {
      const size_t end = cuts_at_marks_ ? next_word(part, 0) : part.size();
      bpe_->encode_word(part.substr(0, end), ids);
      part.remove_prefix(end);
    }
  };
  size_t done = 0;
  for (size_t i = 0; !user_defined_.empty() && i < text.size();) {
    const PieceTrie::Match match = user_defined_.longest(PieceTrie::kRoot, text, i);
    if (match.size == 0) {
      i += decode_utf8(text, i).size;
      continue;
    }
    encode_between(text.substr(done, i - done));
    ids.push_back(match.value);
    done = i += match.size;
  }
  encode_between(text.substr(done));
}

// Unused pieces are merged like others, and cut again into what they were made of.
void SentencePieceEncoder::encode_bpe_with_unused(std::string_view text,
                                                  std::vector<TokenId>& ids) const {
  std::vector<MergeSymbol> symbols;
  std::vector<bool> frozen(text.size() + 1, false);  // by where a symbol begins
  for (uint32_t i = 0; i < text.size();) {
    const PieceTrie::Match match = user_defined_.longest(PieceTrie::kRoot, text, i);
    const auto size =
        static_cast<uint32_t>(match.size > 0 ? match.size : decode_utf8(text, i).size);
    frozen[i] = match.size > 0;
    symbols.push_back({pieces_.find_id(text.substr(i, size)), i});
    i += size;
  }
  std::map<std::string_view, size_t> left_sizes;  // of unused pieces: where they were joined
  merge_symbols(symbols, static_cast<uint32_t>(text.size()),
                [&](const MergeSymbol& left, const MergeSymbol& right, uint32_t end) -> MergeOf {
                  if (frozen[left.begin] || frozen[right.begin]) return {};
                  const std::string_view piece = text.substr(left.begin, end - left.begin);
                  const TokenId id = pieces_.find_id(piece);
                  if (id < 0) return {};
                  if (type_of(id) == PieceType::kUnused) {
                    left_sizes[piece] = right.begin - left.begin;
                  }
                  return {ranks_[id], id};
                });
  const std::function<void(std::string_view)> append = [&](std::string_view piece) {
    const TokenId id = pieces_.find_id(piece);
    const auto parts = left_sizes.find(piece);
    if (id >= 0 && type_of(id) == PieceType::kUnused && parts != left_sizes.end()) {
      append(piece.substr(0, parts->second));
      append(piece.substr(parts->second));
    } else {
      append_piece(piece, ids);
    }
  };
  for (size_t i = 0; i < symbols.size(); ++i) {
    const size_t end = i + 1 < symbols.size() ? symbols[i + 1].begin : text.size();
    append(text.substr(symbols[i].begin, end - symbols[i].begin));
  }
}

// The best cut by the sum of scores. Sums are kept in single precision from the text's beginning,
// or from where they last became too large, as the library does: which of two nearly equal cuts
// wins depends on it.
// Source: sentencepiece/src/unigram_model.cc, EncodeOptimized.
void SentencePieceEncoder::encode_unigram(std::string_view text, std::vector<TokenId>& ids) const {
  struct Best {
    float score = 0;
    uint32_t size = 0;  // of the last piece; 0: not reached yet
    TokenId id = -1;
  };
  std::vector<Best> best(text.size() + 1);
  size_t frontier = 0;  // the furthest place that is reached
  for (size_t begin = 0; begin < text.size();) {
    const size_t character_size = decode_utf8(text, begin).size;
    if (std::abs(best[begin].score) > kScoreMax) {
      const float offset = best[begin].score;
      for (size_t i = begin; i <= frontier; ++i) {
        if (best[i].size > 0) best[i].score -= offset;
      }
    }
    const float score_here = best[begin].score;
    bool has_character = false;
    const auto offer = [&](size_t size, TokenId id, float score) {
      frontier = std::max(frontier, begin + size);
      Best& target = best[begin + size];
      if (target.size > 0 && score <= target.score) return;
      target = {score, static_cast<uint32_t>(size), id};
    };
    piece_trie_.for_each_prefix(text, begin, [&](size_t size, TokenId id) {
      const PieceType type = type_of(id);
      if (type == PieceType::kUnused) return;
      const float score = type == PieceType::kUserDefined
                              ? static_cast<float>(0.1 * static_cast<double>(size - 1))
                              : scores_[id];
      offer(size, id, score + score_here);
      has_character |= size == character_size;
    });
    if (!has_character) offer(character_size, unk_id_, unk_score_ + score_here);
    begin += character_size;
  }
  const size_t first = ids.size();
  std::vector<std::pair<TokenId, std::string_view>> pieces;
  for (size_t end = text.size(); end > 0; end -= best[end].size) {
    pieces.emplace_back(best[end].id, text.substr(end - best[end].size, best[end].size));
  }
  ids.reserve(first + pieces.size());
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    if (piece->first == unk_id_) {
      append_unknown(piece->second, ids);
    } else {
      ids.push_back(piece->first);
    }
  }
}

void SentencePieceEncoder::encode_words(std::string_view text, std::vector<TokenId>& ids) const {
  while (!text.empty()) {
    size_t end = 0;
    if (model_.whitespace_is_suffix) {
      const size_t mark = text.find(kSentencePieceSpace);
      end = mark < text.size() ? mark + kSentencePieceSpace.size() : text.size();
    } else {
      end = std::min(text.find(kSentencePieceSpace, 1), text.size());
    }
    append_piece(text.substr(0, end), ids);
    text.remove_prefix(end);
  }
}

void SentencePieceEncoder::encode_characters(std::string_view text,
                                             std::vector<TokenId>& ids) const {
  while (!text.empty()) {
    const PieceTrie::Match match = user_defined_.longest(PieceTrie::kRoot, text, 0);
    const size_t size = match.size > 0 ? match.size : decode_utf8(text, 0).size;
    append_piece(text.substr(0, size), ids);
    text.remove_prefix(size);
  }
}

void SentencePieceEncoder::append_piece(std::string_view piece, std::vector<TokenId>& ids) const {
  // Not of all pieces: a control piece or a byte's, written out in a text, is a text like any
  // other.
  const TokenId id = pieces_.find_id(piece);
  if (id >= 0) {
    ids.push_back(id);
  } else {
    append_unknown(piece, ids);
  }
}

void SentencePieceEncoder::append_unknown(std::string_view piece, std::vector<TokenId>& ids) const {
  if (!model_.byte_fallback) {
    ids.push_back(unk_id_);
    return;
  }
  for (const char byte : piece) {
    const TokenId id = byte_ids_[static_cast<uint8_t>(byte)];
    ids.push_back(id >= 0 ? id : unk_id_);
  }
}

}  // namespace espalier
