#include "text/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cfloat>
#include <cmath>
#include <map>
#include <unordered_map>

#include "text/json_fields.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/merge.h"
#include "text/tokenizer/piece_trie.h"
#include "text/tokenizer/rank_bpe.h"
#include "text/tokenizer/sentencepiece_normalizer.h"
#include "text/tokenizer/vocabulary.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

namespace json = boost::json;
using PieceType = SentencePieceModel::PieceType;

constexpr std::string_view kMark = "\xE2\x96\x81";  // stands for a space
constexpr float kScoreMax = 100000.0f;              // sums beyond it begin at 0 again
constexpr float kUnkPenalty = 10.0f;                // below the lowest score

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The byte of "<0x41>", or -1.
int byte_of_piece(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return -1;
  const int high = hex_digit(piece[3]), low = hex_digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

// A mark that follows something else begins a word.
size_t next_word(std::string_view text, size_t begin) {
  for (size_t at = text.find(kMark, begin + 1); at < text.size(); at = text.find(kMark, at + 1)) {
    if (!text.substr(0, at).ends_with(kMark)) return at;
  }
  return text.size();
}

std::string replace_marks(std::string_view piece) {
  std::string text;
  while (!piece.empty()) {
    const bool mark = piece.starts_with(kMark);
    text += mark ? ' ' : piece.front();
    piece.remove_prefix(mark ? kMark.size() : 1);
  }
  return text;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceModel model, const SentencePieceFrame& frame);

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override;
  std::unique_ptr<DecodeStream> decode_stream(const DecodeOptions& options) const override;
  const VocabView& vocab() const override { return vocab_; }
  std::optional<TokenId> token_to_id(std::string_view token) const override {
    return table_.find(token);
  }
  std::string id_to_token(TokenId id) const override {
    return id >= 0 && id < vocab_size() ? model_.pieces[id].text : std::string();
  }
  std::optional<TokenId> bos_id() const override { return bos_id_; }
  std::string_view chat_template() const override { return frame_.chat_template; }

 private:
  class Stream;

  void index_pieces();
  void prepare_bpe();
  void fill_vocab_view();
  PieceType type_of(TokenId id) const { return model_.pieces[id].type; }
  void encode_part(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_bpe(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_bpe_with_unused(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_unigram(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_words(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_characters(std::string_view text, std::vector<TokenId>& ids) const;
  void append_piece(std::string_view piece, std::vector<TokenId>& ids) const;
  void append_unknown(std::string_view piece, std::vector<TokenId>& ids) const;

  const SentencePieceModel model_;
  const SentencePieceFrame frame_;
  TokenTable table_;      // all pieces
  TokenTable mergeable_;  // normal, user-defined and unused ones
  PieceTrie pieces_;      // the same, for Unigram
  PieceTrie user_defined_;
  std::vector<float> scores_;
  std::vector<uint32_t> ranks_;
  float unk_score_ = 0;
  TokenId unk_id_ = -1;
  std::optional<TokenId> bos_id_, eos_id_;
  std::array<TokenId, 256> byte_ids_{};
  bool has_unused_ = false;
  bool cuts_at_marks_ = false;  // no piece goes on after a character with a mark
  std::unique_ptr<RankBpe> bpe_;
  std::vector<AddedToken> control_;
  std::unique_ptr<AddedTokenMatcher> control_matcher_;  // null: control pieces are not searched

  VocabView vocab_;
  std::vector<std::string> owned_bytes_;
  std::vector<std::string_view> token_bytes_;
};

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceModel model,
                                               const SentencePieceFrame& frame)
    : model_(std::move(model)),
      frame_(frame),
      table_(model_.pieces.size(), model_.pieces.size() * 8),
      mergeable_(model_.pieces.size(), model_.pieces.size() * 8) {
  index_pieces();
  if (model_.type == SentencePieceModel::Type::kBpe) prepare_bpe();
  if (frame_.parse_control) {
    std::vector<const AddedToken*> tokens;
    std::vector<std::string> contents;
    for (TokenId id = 0; id < static_cast<TokenId>(model_.pieces.size()); ++id) {
      if (type_of(id) != PieceType::kControl) continue;
      control_.push_back({.id = id, .content = model_.pieces[id].text, .special = true});
    }
    for (const AddedToken& token : control_) {
      tokens.push_back(&token);
      contents.push_back(token.content);
    }
    control_matcher_ = std::make_unique<AddedTokenMatcher>(tokens, contents);
  }
  fill_vocab_view();
}

void SentencePieceTokenizer::index_pieces() {
  byte_ids_.fill(-1);
  std::vector<PieceTrie::Piece> mergeable, user_defined;
  float score_min = FLT_MAX;
  cuts_at_marks_ = !model_.whitespace_is_suffix;
  for (TokenId id = 0; id < static_cast<TokenId>(model_.pieces.size()); ++id) {
    const SentencePieceModel::Piece& piece = model_.pieces[id];
    table_.add(piece.text, id);
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
        if (piece.text == model_.bos_piece) bos_id_ = id;
        if (piece.text == model_.eos_piece) eos_id_ = id;
        continue;
      case PieceType::kByte:
        if (const int byte = byte_of_piece(piece.text); byte >= 0) byte_ids_[byte] = id;
        continue;
    }
    mergeable_.add(piece.text, id);
    mergeable.push_back({piece.text, id});
    cuts_at_marks_ &= next_word(piece.text, 0) >= piece.text.size();
  }
  cuts_at_marks_ &= !has_unused_;
  pieces_ = PieceTrie(std::move(mergeable));
  user_defined_ = PieceTrie(std::move(user_defined));
  unk_score_ = score_min - kUnkPenalty;
}

// Pairs merge by the score of what they make, the highest first.
void SentencePieceTokenizer::prepare_bpe() {
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
  bpe_ = std::make_unique<RankBpe>(mergeable_, std::move(options));
}

void SentencePieceTokenizer::fill_vocab_view() {
  owned_bytes_.resize(model_.pieces.size());
  for (TokenId id = 0; id < static_cast<TokenId>(model_.pieces.size()); ++id) {
    const PieceType type = type_of(id);
    const std::string& text = model_.pieces[id].text;
    if (type == PieceType::kControl || type == PieceType::kUnknown) {
      vocab_.special_ids.push_back(id);
    } else if (const int byte = byte_of_piece(text); type == PieceType::kByte && byte >= 0) {
      owned_bytes_[id] = std::string(1, static_cast<char>(byte));
    } else {
      owned_bytes_[id] = replace_marks(text);
    }
    token_bytes_.push_back(owned_bytes_[id]);
  }
  vocab_.token_bytes = token_bytes_;
  if (eos_id_) vocab_.eos_ids.push_back(*eos_id_);
}

std::vector<TokenId> SentencePieceTokenizer::encode(std::string_view text,
                                                    const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3 + 8);
  if (options.add_special_tokens && frame_.add_bos && bos_id_) ids.push_back(*bos_id_);
  if (control_matcher_ == nullptr || !options.parse_special) {
    encode_part(text, ids);
  } else {
    std::vector<AddedTokenMatcher::Part> parts;
    control_matcher_->split(text, true, parts);
    for (const AddedTokenMatcher::Part& part : parts) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
      } else {
        encode_part(part.text, ids);
      }
    }
  }
  if (options.add_special_tokens && frame_.add_eos && eos_id_) ids.push_back(*eos_id_);
  return ids;
}

void SentencePieceTokenizer::encode_part(std::string_view text, std::vector<TokenId>& ids) const {
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
void SentencePieceTokenizer::encode_bpe(std::string_view text, std::vector<TokenId>& ids) const {
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
void SentencePieceTokenizer::encode_bpe_with_unused(std::string_view text,
                                                    std::vector<TokenId>& ids) const {
  std::vector<MergeSymbol> symbols;
  std::vector<bool> frozen(text.size() + 1, false);  // by where a symbol begins
  for (uint32_t i = 0; i < text.size();) {
    const PieceTrie::Match match = user_defined_.longest(PieceTrie::kRoot, text, i);
    const auto size =
        static_cast<uint32_t>(match.size > 0 ? match.size : decode_utf8(text, i).size);
    frozen[i] = match.size > 0;
    symbols.push_back({mergeable_.find_id(text.substr(i, size)), i});
    i += size;
  }
  std::map<std::string_view, size_t> left_sizes;  // of unused pieces: where they were joined
  merge_symbols(symbols, static_cast<uint32_t>(text.size()),
                [&](const MergeSymbol& left, const MergeSymbol& right, uint32_t end) -> MergeOf {
                  if (frozen[left.begin] || frozen[right.begin]) return {};
                  const std::string_view piece = text.substr(left.begin, end - left.begin);
                  const TokenId id = mergeable_.find_id(piece);
                  if (id < 0) return {};
                  if (type_of(id) == PieceType::kUnused) {
                    left_sizes[piece] = right.begin - left.begin;
                  }
                  return {ranks_[id], id};
                });
  const std::function<void(std::string_view)> append = [&](std::string_view piece) {
    const TokenId id = mergeable_.find_id(piece);
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
void SentencePieceTokenizer::encode_unigram(std::string_view text,
                                            std::vector<TokenId>& ids) const {
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
    pieces_.for_each_prefix(text, begin, [&](size_t size, TokenId id) {
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

void SentencePieceTokenizer::encode_words(std::string_view text, std::vector<TokenId>& ids) const {
  while (!text.empty()) {
    size_t end = 0;
    if (model_.whitespace_is_suffix) {
      const size_t mark = text.find(kMark);
      end = mark < text.size() ? mark + kMark.size() : text.size();
    } else {
      end = std::min(text.find(kMark, 1), text.size());
    }
    append_piece(text.substr(0, end), ids);
    text.remove_prefix(end);
  }
}

void SentencePieceTokenizer::encode_characters(std::string_view text,
                                               std::vector<TokenId>& ids) const {
  while (!text.empty()) {
    const PieceTrie::Match match = user_defined_.longest(PieceTrie::kRoot, text, 0);
    const size_t size = match.size > 0 ? match.size : decode_utf8(text, 0).size;
    append_piece(text.substr(0, size), ids);
    text.remove_prefix(size);
  }
}

void SentencePieceTokenizer::append_piece(std::string_view piece, std::vector<TokenId>& ids) const {
  // Not of all pieces: a control piece or a byte's, written out in a text, is a text like any
  // other.
  const TokenId id = mergeable_.find_id(piece);
  if (id >= 0) {
    ids.push_back(id);
  } else {
    append_unknown(piece, ids);
  }
}

void SentencePieceTokenizer::append_unknown(std::string_view piece,
                                            std::vector<TokenId>& ids) const {
  if (!model_.byte_fallback) {
    ids.push_back(unk_id_);
    return;
  }
  for (const char byte : piece) {
    const TokenId id = byte_ids_[static_cast<uint8_t>(byte)];
    ids.push_back(id >= 0 ? id : unk_id_);
  }
}

// Pieces to text. Only bytes that may yet become a character are pending, and, where a
// denormaliser rewrites the whole text, all of it.
class SentencePieceTokenizer::Stream final : public DecodeStream {
 public:
  Stream(const SentencePieceTokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer),
        model_(tokenizer.model_),
        skip_special_(skip_special),
        drops_first_mark_(model_.add_dummy_prefix || model_.remove_extra_whitespaces) {}

  void push(TokenId id, std::string& out) override {
    if (id < 0 || id >= tokenizer_.vocab_size()) return;
    if (tokenizer_.type_of(id) == PieceType::kByte) {
      bytes_ += tokenizer_.owned_bytes_[id];
      flush_bytes(/*at_end=*/false, out);
      return;
    }
    flush_bytes(/*at_end=*/true, out);
    if (mark_dropped_ || has_text_) at_start_ = false;
    mark_dropped_ = false;
    emit(text_of(id), out);
  }

  void flush(std::string& out) override {
    flush_bytes(/*at_end=*/true, out);
    if (model_.decode_charsmap.empty()) return;
    out += replace_by(model_.decode_charsmap, whole_);
    whole_.clear();
  }

 private:
  std::string text_of(TokenId id) {
    const std::string& piece = model_.pieces[id].text;
    const PieceType type = tokenizer_.type_of(id);
    if (type == PieceType::kControl) return skip_special_ ? std::string() : piece;
    if (type == PieceType::kUnknown) return model_.unk_surface;
    std::string_view rest = piece;
    if (at_start_ && drops_first_mark_ && rest.starts_with(kMark)) {
      rest.remove_prefix(kMark.size());
      // Where extra white space is removed, more of it may follow at the start.
      mark_dropped_ = !model_.remove_extra_whitespaces;
    }
    return replace_marks(rest);
  }

  void emit(std::string_view text, std::string& out) {
    has_text_ |= !text.empty();
    (model_.decode_charsmap.empty() ? out : whole_) += text;
  }

  // Each byte that is part of no character becomes U+FFFD.
  void flush_bytes(bool at_end, std::string& out) {
    size_t i = 0;
    while (i < bytes_.size()) {
      const Utf8Char c = decode_utf8(bytes_, i);
      if (!c.valid && c.cut && !at_end) break;
      emit(c.valid ? std::string_view(bytes_).substr(i, c.size) : kReplacementUtf8, out);
      i += c.valid ? c.size : 1;
    }
    bytes_.erase(0, i);
  }

  const SentencePieceTokenizer& tokenizer_;
  const SentencePieceModel& model_;
  const bool skip_special_, drops_first_mark_;
  bool at_start_ = true, mark_dropped_ = false, has_text_ = false;
  std::string bytes_, whole_;
};

std::unique_ptr<DecodeStream> SentencePieceTokenizer::decode_stream(
    const DecodeOptions& options) const {
  return std::make_unique<Stream>(*this, options.skip_special_tokens);
}

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(SentencePieceModel model,
                                                        const SentencePieceFrame& frame) {
  return std::make_unique<SentencePieceTokenizer>(std::move(model), frame);
}

Result<std::unique_ptr<Tokenizer>> parse_sentencepiece_tokenizer(std::string_view bytes,
                                                                 std::string_view config_json) {
  ESP_ASSIGN_OR_RETURN(SentencePieceModel model, SentencePieceModel::parse(bytes));
  SentencePieceFrame frame;
  if (!config_json.empty()) {
    json::error_code code;
    const json::value config = json::parse(config_json, code);
    if (code) {
      return fail(
          error(StatusCode::kDataLoss, "tokenizer_config.json is no JSON: {}", code.message()));
    }
    ESP_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of(config, "tokenizer_config.json"));
    ESP_ASSIGN_OR_RETURN(frame.add_bos, fields.boolean_or("add_bos_token", true));
    ESP_ASSIGN_OR_RETURN(frame.add_eos, fields.boolean_or("add_eos_token", false));
    frame.parse_control = true;
  }
  return make_sentencepiece_tokenizer(std::move(model), frame);
}

}  // namespace espalier
