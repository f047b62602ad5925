#include "text/tokenizer/pipeline_tokenizer.h"

#include <algorithm>
#include <thread>

#include "text/unicode/char_class.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

// What a thread of its own pays for.
constexpr size_t kThreadBytesMin = 64 * 1024;

std::vector<const AddedToken*> tokens_where(const std::vector<AddedToken>& added, bool normalized) {
  std::vector<const AddedToken*> tokens;
  for (const AddedToken& token : added) {
    if (token.normalized == normalized) tokens.push_back(&token);
  }
  return tokens;
}

std::vector<std::string> contents_of(const std::vector<const AddedToken*>& tokens,
                                     const Normalizer& normalizer) {
  std::vector<std::string> contents;
  for (const AddedToken* token : tokens) {
    contents.push_back(token->normalized ? normalizer.apply(token->content) : token->content);
  }
  return contents;
}

AddedTokenMatcher make_matcher(const std::vector<AddedToken>& added, const Normalizer& normalizer,
                               bool normalized) {
  const std::vector<const AddedToken*> tokens = tokens_where(added, normalized);
  return AddedTokenMatcher(tokens, contents_of(tokens, normalizer));
}

}  // namespace

PipelineTokenizer::PipelineTokenizer(Parts parts)
    : normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      vocabulary_(std::move(parts.vocabulary)),
      model_(std::move(parts.model)),
      added_(std::move(parts.added)),
      raw_matcher_(make_matcher(added_, normalizer_, false)),
      normalized_matcher_(make_matcher(added_, normalizer_, true)),
      frame_(std::move(parts.frame)),
      decoder_(std::move(parts.decoder)),
      prompts_{std::move(parts.chat_template), parts.fim_tokens},
      keeps_invalid_utf8_(normalizer_.empty() && pre_tokenizer_.keeps_invalid_utf8()),
      cuts_at_lines_(normalizer_.unicode_form_only() && pre_tokenizer_.cuts_at_lines() &&
                     normalized_matcher_.empty()) {
  index_added_tokens();
  fill_vocab_view();
  for (const std::string& name : parts.eos_tokens) {
    if (const std::optional<TokenId> id = token_to_id(name)) vocab_.eos_ids.push_back(*id);
  }
  std::sort(vocab_.eos_ids.begin(), vocab_.eos_ids.end());
  for (const std::string& name : parts.bos_tokens) bos_id_ = token_to_id(name);
}

void PipelineTokenizer::index_added_tokens() {
  for (size_t i = 0; i < added_.size(); ++i) {
    added_ids_[added_[i].content] = added_[i].id;
    added_index_[added_[i].id] = i;
    added_normalized_.push_back(added_[i].normalized ? normalizer_.apply(added_[i].content)
                                                     : added_[i].content);
  }
}

void PipelineTokenizer::fill_vocab_view() {
  TokenId id_end = vocabulary_.id_end();
  for (const AddedToken& token : added_) id_end = std::max(id_end, token.id + 1);
  token_bytes_.resize(static_cast<size_t>(id_end));
  owned_bytes_.reserve(token_bytes_.size());  // views into it must not move
  const bool views_suffice = decoder_.byte_level_only() && pre_tokenizer_.byte_level();
  for (TokenId id = 0; id < id_end; ++id) {
    const AddedToken* added = added_token(id);
    if (added != nullptr && added->special) {
      vocab_.special_ids.push_back(id);
    } else if (views_suffice && added == nullptr) {
      token_bytes_[id] = vocabulary_.bytes_of(id);
    } else {
      owned_bytes_.push_back(decoder_.bytes_within_text(decoded_token(id)));
      token_bytes_[id] = owned_bytes_.back();
    }
  }
  for (const std::string& content : added_normalized_) {
    special_bytes_.push_back(decoder_.bytes_within_text(content));
  }
  vocab_.token_bytes = token_bytes_;
}

const AddedToken* PipelineTokenizer::added_token(TokenId id) const {
  const auto it = added_index_.find(id);
  return it == added_index_.end() ? nullptr : &added_[it->second];
}

std::string PipelineTokenizer::decoded_token(TokenId id) const {
  const auto it = added_index_.find(id);
  return it == added_index_.end() ? vocabulary_.token_of(id) : added_normalized_[it->second];
}

std::optional<TokenId> PipelineTokenizer::token_to_id(std::string_view token) const {
  const auto it = added_ids_.find(std::string(token));
  return it == added_ids_.end() ? vocabulary_.find(token) : it->second;
}

std::string PipelineTokenizer::id_to_token(TokenId id) const {
  const AddedToken* added = added_token(id);
  return added != nullptr ? added->content : vocabulary_.token_of(id);
}

std::vector<TokenId> PipelineTokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3 + 8);
  if (options.add_special_tokens) ids = frame_.before;
  std::string replaced;
  if (!keeps_invalid_utf8_ && !is_valid_utf8(text)) {
    replaced = to_valid_utf8(text);
    text = replaced;
  }
  std::vector<AddedTokenMatcher::Part> parts;
  raw_matcher_.split(text, options.parse_special, parts);
  for (const AddedTokenMatcher::Part& part : parts) {
    const bool at_start = part.text.data() == text.data();
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
    } else if (options.num_threads > 1 && cuts_at_lines_ &&
               part.text.size() >= 2 * kThreadBytesMin) {
      encode_in_parallel(part.text, at_start, options, ids);
    } else {
      encode_raw(part.text, at_start, options.parse_special, ids);
    }
  }
  if (options.add_special_tokens) {
    ids.insert(ids.end(), frame_.after.begin(), frame_.after.end());
  }
  return ids;
}

TypedIds PipelineTokenizer::encode_typed(std::string_view text, const std::string* pair,
                                         size_t tokens_max) const {
  using Piece = SequenceFrame::Piece;
  const std::vector<Piece> single = {
      {.ids = frame_.before}, {.sequence = 0}, {.ids = frame_.after}};
  const std::vector<Piece> plain_pair = {{.sequence = 0}, {.sequence = 1, .type = 1}};
  const std::vector<Piece>& pieces = pair == nullptr       ? single
                                     : frame_.pair.empty() ? plain_pair
                                                           : frame_.pair;
  size_t own = 0;
  for (const Piece& piece : pieces) own += piece.ids.size();
  std::vector<TokenId> texts[2] = {encode(text, {.add_special_tokens = false})};
  if (pair != nullptr) texts[1] = encode(*pair, {.add_special_tokens = false});
  if (tokens_max > 0)
    cut_longest_first(texts[0], pair != nullptr ? &texts[1] : nullptr,
                      tokens_max > own ? tokens_max - own : 0);
  TypedIds out;
  for (const Piece& piece : pieces) {
    const std::vector<TokenId>& ids = piece.sequence < 0 ? piece.ids : texts[piece.sequence];
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.types.resize(out.ids.size(), piece.type);
  }
  return out;
}

void PipelineTokenizer::encode_raw(std::string_view raw, bool at_start, bool parse_special,
                                   std::vector<TokenId>& ids) const {
  std::string normalized;
  if (!normalizer_.empty()) normalized = normalizer_.apply(raw);
  const std::string_view text = normalizer_.empty() ? raw : std::string_view(normalized);
  if (normalized_matcher_.empty()) return encode_words(text, at_start, ids);
  std::vector<AddedTokenMatcher::Part> parts;
  normalized_matcher_.split(text, parse_special, parts);
  for (const AddedTokenMatcher::Part& part : parts) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
    } else {
      encode_words(part.text, at_start && part.text.data() == text.data(), ids);
    }
  }
}

void PipelineTokenizer::encode_words(std::string_view text, bool at_start,
                                     std::vector<TokenId>& ids) const {
  pre_tokenizer_.for_each_word(text, at_start,
                               [&](std::string_view word) { model_->encode_word(word, ids); });
}

namespace {

// Where a line begins with a letter, at or after `from`; the text's end when there is none. A word
// ends there whatever came before it, and no normal form joins what is on either side.
size_t next_cut(std::string_view text, size_t from) {
  const CharClasses classes;
  for (size_t at = text.find('\n', from); at < text.size() - 1; at = text.find('\n', at + 1)) {
    const Utf8Char c = decode_utf8(text, at + 1);
    if (c.valid && classes.is(c.code, kLetter)) return at + 1;
  }
  return text.size();
}

}  // namespace

void PipelineTokenizer::encode_in_parallel(std::string_view raw, bool at_start,
                                           const EncodeOptions& options,
                                           std::vector<TokenId>& ids) const {
  const size_t num_parts =
      std::min(static_cast<size_t>(options.num_threads), raw.size() / kThreadBytesMin);
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin < raw.size();) {
    const size_t even_end = raw.size() * (parts.size() + 1) / num_parts;
    const size_t end = next_cut(raw, std::max(begin, even_end));
    parts.push_back(raw.substr(begin, end - begin));
    begin = end;
  }
  std::vector<std::vector<TokenId>> encoded(parts.size());
  std::vector<std::exception_ptr> thrown(parts.size());  // no memory
  const auto encode_part = [&](size_t i) {
    try {
      encode_raw(parts[i], at_start && i == 0, options.parse_special, encoded[i]);
    } catch (...) {
      thrown[i] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;  // joined at the block's end
    for (size_t i = 1; i < parts.size(); ++i) threads.emplace_back(encode_part, i);
    encode_part(0);
  }
  for (const std::exception_ptr& one : thrown)
    if (one != nullptr) std::rethrow_exception(one);
  for (const std::vector<TokenId>& part : encoded) ids.insert(ids.end(), part.begin(), part.end());
}

// Byte-level vocabularies: tokens are bytes, bytes become UTF-8.
class PipelineTokenizer::ByteStream final : public DecodeStream {
 public:
  ByteStream(const PipelineTokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  std::unique_ptr<DecodeStream> clone() const override {
    return std::make_unique<ByteStream>(*this);
  }
  void push(TokenId id, std::string& out) override {
    if (id < 0 || static_cast<size_t>(id) >= tokenizer_.token_bytes_.size()) return;
    std::string_view bytes = tokenizer_.token_bytes_[id];
    if (bytes.empty() && !skip_special_) {
      const auto it = tokenizer_.added_index_.find(id);
      if (it != tokenizer_.added_index_.end()) bytes = tokenizer_.special_bytes_[it->second];
    }
    utf8_.push(bytes, out);
  }
  void flush(std::string& out) override { utf8_.flush(out); }

 private:
  const PipelineTokenizer& tokenizer_;
  const bool skip_special_;
  Utf8Stream utf8_;
};

// Any other decoder.
class PipelineTokenizer::ChainStream final : public DecodeStream {
 public:
  ChainStream(const PipelineTokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special), stream_(tokenizer.decoder_.stream()) {}

  std::unique_ptr<DecodeStream> clone() const override {
    return std::make_unique<ChainStream>(*this);
  }
  void push(TokenId id, std::string& out) override {
    const AddedToken* added = tokenizer_.added_token(id);
    if (added == nullptr && !tokenizer_.vocabulary_.has(id)) return;
    if (added != nullptr && added->special && skip_special_) return;
    stream_.push(tokenizer_.decoded_token(id), out);
  }
  void flush(std::string& out) override { stream_.finish(out); }

 private:
  const PipelineTokenizer& tokenizer_;
  const bool skip_special_;
  Decoder::Stream stream_;
};

std::unique_ptr<DecodeStream> PipelineTokenizer::decode_stream(const DecodeOptions& options) const {
  if (decoder_.byte_level_only()) {
    return std::make_unique<ByteStream>(*this, options.skip_special_tokens);
  }
  return std::make_unique<ChainStream>(*this, options.skip_special_tokens);
}

}  // namespace espalier
