#include "text/tokenizer/hf_tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "base/mapped_file.h"
#include "text/json_fields.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/hf_model.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tiktoken.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

namespace json = boost::json;

class HfTokenizer final : public Tokenizer {
 public:
  struct Parts {
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    HfModel model;
    std::vector<AddedToken> added;
    SequenceFrame frame;
    Decoder decoder;
    std::vector<std::string> bos_tokens, eos_tokens;  // by name, from tokenizer_config.json
  };
  explicit HfTokenizer(Parts parts);

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override;
  std::unique_ptr<DecodeStream> decode_stream(const DecodeOptions& options) const override;
  const VocabView& vocab() const override { return vocab_; }
  std::optional<TokenId> token_to_id(std::string_view token) const override;
  std::string id_to_token(TokenId id) const override;
  std::optional<TokenId> bos_id() const override { return bos_id_; }

 private:
  class ByteStream;
  class ChainStream;

  void index_added_tokens();
  void fill_vocab_view();
  void encode_text(std::string_view text, bool at_start, std::vector<TokenId>& ids) const;
  const AddedToken* added_token(TokenId id) const;
  // The string that the decoder gets for a token; "" for none.
  std::string decoded_token(TokenId id) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  HfVocabulary vocabulary_;
  BpeModel bpe_;
  std::vector<AddedToken> added_;
  std::unordered_map<std::string, TokenId> added_ids_;
  std::unordered_map<TokenId, size_t> added_index_;  // in added_
  std::vector<std::string> added_normalized_;        // [added_]: content, normalised where it is
  AddedTokenMatcher raw_matcher_, normalized_matcher_;
  SequenceFrame frame_;
  Decoder decoder_;
  bool keeps_invalid_utf8_;

  VocabView vocab_;
  std::optional<TokenId> bos_id_;
  std::vector<std::string_view> token_bytes_;  // [vocab_size]; special ones empty
  std::vector<std::string> owned_bytes_;       // of tokens whose bytes lie nowhere else
  std::vector<std::string> special_bytes_;     // [added_]: what ByteStream shows of special tokens
};

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

HfTokenizer::HfTokenizer(Parts parts)
    : normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      vocabulary_(std::move(parts.model.vocabulary)),
      bpe_(parts.model.options, vocabulary_.table(), parts.model.merges),
      added_(std::move(parts.added)),
      raw_matcher_(make_matcher(added_, normalizer_, false)),
      normalized_matcher_(make_matcher(added_, normalizer_, true)),
      frame_(std::move(parts.frame)),
      decoder_(std::move(parts.decoder)),
      keeps_invalid_utf8_(normalizer_.empty() && pre_tokenizer_.keeps_invalid_utf8()) {
  index_added_tokens();
  fill_vocab_view();
  for (const std::string& name : parts.eos_tokens) {
    if (const std::optional<TokenId> id = token_to_id(name)) vocab_.eos_ids.push_back(*id);
  }
  std::sort(vocab_.eos_ids.begin(), vocab_.eos_ids.end());
  for (const std::string& name : parts.bos_tokens) bos_id_ = token_to_id(name);
}

void HfTokenizer::index_added_tokens() {
  for (size_t i = 0; i < added_.size(); ++i) {
    added_ids_[added_[i].content] = added_[i].id;
    added_index_[added_[i].id] = i;
    added_normalized_.push_back(added_[i].normalized ? normalizer_.apply(added_[i].content)
                                                     : added_[i].content);
  }
}

void HfTokenizer::fill_vocab_view() {
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

const AddedToken* HfTokenizer::added_token(TokenId id) const {
  const auto it = added_index_.find(id);
  return it == added_index_.end() ? nullptr : &added_[it->second];
}

std::string HfTokenizer::decoded_token(TokenId id) const {
  const auto it = added_index_.find(id);
  return it == added_index_.end() ? vocabulary_.token_of(id) : added_normalized_[it->second];
}

std::optional<TokenId> HfTokenizer::token_to_id(std::string_view token) const {
  const auto it = added_ids_.find(std::string(token));
  return it == added_ids_.end() ? vocabulary_.find(token) : it->second;
}

std::string HfTokenizer::id_to_token(TokenId id) const {
  const AddedToken* added = added_token(id);
  return added != nullptr ? added->content : vocabulary_.token_of(id);
}

std::vector<TokenId> HfTokenizer::encode(std::string_view text,
                                         const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3 + 8);
  if (options.add_special_tokens) ids = frame_.before;
  std::string replaced;
  if (!keeps_invalid_utf8_ && !is_valid_utf8(text)) {
    replaced = to_valid_utf8(text);
    text = replaced;
  }
  std::vector<AddedTokenMatcher::Part> raw_parts, parts;
  raw_matcher_.split(text, options.parse_special, raw_parts);
  for (const AddedTokenMatcher::Part& raw : raw_parts) {
    if (raw.token != nullptr) {
      ids.push_back(raw.token->id);
      continue;
    }
    const bool at_start = raw.text.data() == text.data();
    std::string normalized;
    if (!normalizer_.empty()) normalized = normalizer_.apply(raw.text);
    const std::string_view piece = normalizer_.empty() ? raw.text : std::string_view(normalized);
    parts.clear();
    normalized_matcher_.split(piece, options.parse_special, parts);
    for (const AddedTokenMatcher::Part& part : parts) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
      } else {
        encode_text(part.text, at_start && part.text.data() == piece.data(), ids);
      }
    }
  }
  if (options.add_special_tokens) {
    ids.insert(ids.end(), frame_.after.begin(), frame_.after.end());
  }
  return ids;
}

void HfTokenizer::encode_text(std::string_view text, bool at_start,
                              std::vector<TokenId>& ids) const {
  pre_tokenizer_.for_each_word(text, at_start,
                               [&](std::string_view word) { bpe_.encode_word(word, ids); });
}

// Byte-level vocabularies: tokens are bytes, bytes become UTF-8.
class HfTokenizer::ByteStream final : public DecodeStream {
 public:
  ByteStream(const HfTokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

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
  const HfTokenizer& tokenizer_;
  const bool skip_special_;
  Utf8Stream utf8_;
};

// Any other decoder.
class HfTokenizer::ChainStream final : public DecodeStream {
 public:
  ChainStream(const HfTokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special), stream_(tokenizer.decoder_.stream()) {}

  void push(TokenId id, std::string& out) override {
    const AddedToken* added = tokenizer_.added_token(id);
    if (added == nullptr && !tokenizer_.vocabulary_.has(id)) return;
    if (added != nullptr && added->special && skip_special_) return;
    stream_.push(tokenizer_.decoded_token(id), out);
  }
  void flush(std::string& out) override { stream_.finish(out); }

 private:
  const HfTokenizer& tokenizer_;
  const bool skip_special_;
  Decoder::Stream stream_;
};

std::unique_ptr<DecodeStream> HfTokenizer::decode_stream(const DecodeOptions& options) const {
  if (decoder_.byte_level_only()) {
    return std::make_unique<ByteStream>(*this, options.skip_special_tokens);
  }
  return std::make_unique<ChainStream>(*this, options.skip_special_tokens);
}

// The token under `name` in tokenizer_config.json: "</s>" or {"content": "</s>"}.
void append_named_token(const json::value& config, std::string_view name,
                        std::vector<std::string>& tokens) {
  const json::object* fields = config.if_object();
  const json::value* value = fields != nullptr ? fields->if_contains(name) : nullptr;
  if (value == nullptr) return;
  if (const json::object* object = value->if_object()) value = object->if_contains("content");
  if (value == nullptr) return;
  if (const json::string* text = value->if_string()) tokens.emplace_back(std::string_view(*text));
}

Result<json::value> parse_json(std::string_view text, json::storage_ptr memory) {
  json::error_code code;
  json::value value = json::parse(text, code, std::move(memory));
  if (code) {
    return fail(error(StatusCode::kDataLoss, "this is no JSON: {}", code.message()));
  }
  return value;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> parse_hf_tokenizer(std::string_view text,
                                                      std::string_view config_text) {
  // One arena for the document, which lives until the tables are built.
  json::monotonic_resource memory(std::max<size_t>(text.size() * 4, 4096));
  ESP_ASSIGN_OR_RETURN(const json::value document, parse_json(text, &memory));
  ESP_ASSIGN_OR_RETURN(const JsonFields root, JsonFields::of(document, ""));
  const auto field = [&](std::string_view name) {
    const json::value* value = root.find(name);
    return value != nullptr ? *value : json::value();
  };
  const json::value* model = root.find("model");
  if (model == nullptr) {
    return fail(error(StatusCode::kDataLoss, "'model' is missing: this is no tokenizer.json"));
  }
  ESP_ASSIGN_OR_RETURN(Normalizer normalizer, Normalizer::parse(field("normalizer"), "normalizer"));
  ESP_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer,
                       PreTokenizer::parse(field("pre_tokenizer"), "pre_tokenizer"));
  ESP_ASSIGN_OR_RETURN(HfModel hf_model, parse_hf_model(*model, pre_tokenizer.byte_level()));
  ESP_ASSIGN_OR_RETURN(std::vector<AddedToken> added,
                       parse_added_tokens(field("added_tokens"), hf_model.vocabulary));
  ESP_ASSIGN_OR_RETURN(SequenceFrame frame,
                       parse_post_processor(field("post_processor"), "post_processor"));
  ESP_ASSIGN_OR_RETURN(Decoder decoder, Decoder::parse(field("decoder"), "decoder"));
  HfTokenizer::Parts parts{std::move(normalizer),
                           std::move(pre_tokenizer),
                           std::move(hf_model),
                           std::move(added),
                           std::move(frame),
                           std::move(decoder),
                           {},
                           {}};
  if (!config_text.empty()) {
    ESP_ASSIGN_OR_RETURN(const json::value config, parse_json(config_text, {}));
    append_named_token(config, "bos_token", parts.bos_tokens);
    append_named_token(config, "eos_token", parts.eos_tokens);
  }
  return std::make_unique<HfTokenizer>(std::move(parts));
}

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& path) {
  const std::filesystem::path file =
      std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  if (!std::filesystem::exists(file)) {
    return fail(error(StatusCode::kNotFound,
                      "there is no {}: give a folder with a tokenizer.json, or that file",
                      file.string()));
  }
  if (file.extension() == ".tiktoken") {
    ESP_ASSIGN_OR_RETURN(const MappedFile ranks, MappedFile::open(file));
    Result<std::unique_ptr<Tokenizer>> tokenizer = parse_tiktoken(ranks.text());
    if (!tokenizer) return fail(tokenizer.error().with_context(file.string()));
    return tokenizer;
  }
  if (file.extension() != ".json") {
    return fail(error(StatusCode::kUnimplemented,
                      "{}: vocabularies in '{}' files are not supported; give a tokenizer.json or "
                      "a .tiktoken file",
                      file.string(), file.extension().string()));
  }
  ESP_ASSIGN_OR_RETURN(const MappedFile json, MappedFile::open(file));
  std::string config;
  const std::filesystem::path config_file = file.parent_path() / "tokenizer_config.json";
  if (std::filesystem::exists(config_file)) {
    ESP_ASSIGN_OR_RETURN(config, read_text_file(config_file));
  }
  Result<std::unique_ptr<Tokenizer>> tokenizer = parse_hf_tokenizer(json.text(), config);
  if (!tokenizer) return fail(tokenizer.error().with_context(file.string()));
  return tokenizer;
}

}  // namespace espalier
