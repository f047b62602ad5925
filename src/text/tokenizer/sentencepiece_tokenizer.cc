#include "text/tokenizer/sentencepiece_tokenizer.h"

#include <boost/json.hpp>

#include "text/json_fields.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/sentencepiece_encoder.h"
#include "text/tokenizer/sentencepiece_normalizer.h"
#include "text/tokenizer/vocabulary.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

namespace json = boost::json;
using PieceType = SentencePieceModel::PieceType;

std::string replace_marks(std::string_view piece) {
  std::string text;
  while (!piece.empty()) {
    const bool mark = piece.starts_with(kSentencePieceSpace);
    text += mark ? ' ' : piece.front();
    piece.remove_prefix(mark ? kSentencePieceSpace.size() : 1);
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
  std::optional<FimTokens> fim_tokens() const override { return frame_.fim_tokens; }

 private:
  class Stream;

  void index_pieces();
  void prepare_control();
  void fill_vocab_view();
  PieceType type_of(TokenId id) const { return model_.pieces[id].type; }

  const SentencePieceModel model_;
  const SentencePieceFrame frame_;
  const SentencePieceEncoder encoder_{model_};
  TokenTable table_;  // all pieces, by text
  std::optional<TokenId> bos_id_, eos_id_;
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
      table_(model_.pieces.size(), model_.pieces.size() * 8) {
  index_pieces();
  if (frame_.parse_control) prepare_control();
  fill_vocab_view();
}

void SentencePieceTokenizer::index_pieces() {
  for (TokenId id = 0; id < static_cast<TokenId>(model_.pieces.size()); ++id) {
    const std::string& text = model_.pieces[id].text;
    table_.add(text, id);
    if (type_of(id) != PieceType::kControl) continue;
    if (text == model_.bos_piece) bos_id_ = id;
    if (text == model_.eos_piece) eos_id_ = id;
  }
}

void SentencePieceTokenizer::prepare_control() {
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

void SentencePieceTokenizer::fill_vocab_view() {
  owned_bytes_.resize(model_.pieces.size());
  for (TokenId id = 0; id < static_cast<TokenId>(model_.pieces.size()); ++id) {
    const PieceType type = type_of(id);
    const std::string& text = model_.pieces[id].text;
    if (type == PieceType::kControl || type == PieceType::kUnknown) {
      vocab_.special_ids.push_back(id);
    } else if (const int byte = sentencepiece_byte(text); type == PieceType::kByte && byte >= 0) {
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
    encoder_.encode(text, ids);
  } else {
    std::vector<AddedTokenMatcher::Part> parts;
    control_matcher_->split(text, true, parts);
    for (const AddedTokenMatcher::Part& part : parts) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
      } else {
        encoder_.encode(part.text, ids);
      }
    }
  }
  if (options.add_special_tokens && frame_.add_eos && eos_id_) ids.push_back(*eos_id_);
  return ids;
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

  std::unique_ptr<DecodeStream> clone() const override { return std::make_unique<Stream>(*this); }
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
    if (at_start_ && drops_first_mark_ && rest.starts_with(kSentencePieceSpace)) {
      rest.remove_prefix(kSentencePieceSpace.size());
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
