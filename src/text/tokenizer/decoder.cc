#include "text/tokenizer/decoder.h"

#include <optional>

#include "text/json_fields.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/normalizer.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

namespace json = boost::json;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The byte of "<0x41>".
std::optional<char> byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high * 16 + low);
}

class ReplaceStage final : public DecodeStage {
 public:
  using Replace = std::function<std::string(std::string)>;
  explicit ReplaceStage(const Replace& replace) : replace_(replace) {}
  std::unique_ptr<DecodeStage> clone() const override {
    return std::make_unique<ReplaceStage>(*this);
  }
  void push(std::string_view token, const Emit& emit) override {
    emit(replace_(std::string(token)));
  }

 private:
  const Replace& replace_;  // the decoder's
};

// A run of byte tokens is text when all of it is, else every byte of it is U+FFFD; so nothing of it
// is certain before it ends.
class ByteFallbackStage final : public DecodeStage {
 public:
  std::unique_ptr<DecodeStage> clone() const override {
    return std::make_unique<ByteFallbackStage>(*this);
  }
  void push(std::string_view token, const Emit& emit) override {
    if (const std::optional<char> byte = byte_token(token)) {
      run_ += *byte;
      return;
    }
    finish(emit);
    emit(token);
  }
  void finish(const Emit& emit) override {
    if (run_.empty()) return;
    if (is_valid_utf8(run_)) {
      emit(run_);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) emit(kReplacementUtf8);
    }
    run_.clear();
  }

 private:
  std::string run_;
};

// Strips up to `start` and `stop` times `content` from each token, or, once tokens are fused, from
// the whole text.
class StripStage final : public DecodeStage {
 public:
  StripStage(std::string content, int64_t start, int64_t stop, bool fused)
      : content_(std::move(content)), start_(start), stop_(stop), fused_(fused) {}

  std::unique_ptr<DecodeStage> clone() const override {
    return std::make_unique<StripStage>(*this);
  }
  void push(std::string_view token, const Emit& emit) override {
    if (!fused_) return emit(strip_end(strip_start(token, start_)));
    if (at_start_) {
      const size_t size_before = token.size();
      token = strip_start(token, start_left_ < 0 ? start_ : start_left_);
      start_left_ = (start_left_ < 0 ? start_ : start_left_) -
                    static_cast<int64_t>((size_before - token.size()) / content_.size());
      at_start_ = token.empty() && start_left_ > 0;
    }
    if (stop_ == 0) return emit(token);
    // The end of the text may begin in any token: its last copies of `content` wait.
    pending_ += token;
    const std::string_view pending = pending_;
    const size_t sure = strip_end(pending).size();
    if (sure > 0) emit(pending.substr(0, sure));
    pending_.erase(0, sure);
  }

 private:
  std::string_view strip_start(std::string_view token, int64_t count) const {
    for (; count > 0 && token.starts_with(content_); --count) token.remove_prefix(content_.size());
    return token;
  }
  std::string_view strip_end(std::string_view token) const {
    for (int64_t i = 0; i < stop_ && token.ends_with(content_); ++i) {
      token.remove_suffix(content_.size());
    }
    return token;
  }

  const std::string content_;
  const int64_t start_, stop_;
  const bool fused_;
  bool at_start_ = true;
  int64_t start_left_ = -1;
  std::string pending_;
};

class MetaspaceStage final : public DecodeStage {
 public:
  MetaspaceStage(std::string replacement, bool drops_first)
      : replacement_(std::move(replacement)), drop_(drops_first) {}
  std::unique_ptr<DecodeStage> clone() const override {
    return std::make_unique<MetaspaceStage>(*this);
  }
  void push(std::string_view token, const Emit& emit) override {
    std::string text;
    while (!token.empty()) {
      if (token.starts_with(replacement_)) {
        if (!drop_) text += ' ';
        token.remove_prefix(replacement_.size());
      } else {
        text += token.front();
        token.remove_prefix(1);
      }
    }
    drop_ = false;
    emit(text);
  }

 private:
  const std::string replacement_;
  bool drop_;
};

class ByteLevelStage final : public DecodeStage {
 public:
  std::unique_ptr<DecodeStage> clone() const override {
    return std::make_unique<ByteLevelStage>(*this);
  }
  void push(std::string_view token, const Emit& emit) override {
    std::string bytes, text;
    if (!append_spelled_bytes(token, bytes)) bytes = token;
    utf8_.push(bytes, text);
    emit(text);
  }
  void finish(const Emit& emit) override {
    std::string text;
    utf8_.flush(text);
    emit(text);
  }

 private:
  Utf8Stream utf8_;
};

class JoinBySpacesStage final : public DecodeStage {
 public:
  std::unique_ptr<DecodeStage> clone() const override {
    return std::make_unique<JoinBySpacesStage>(*this);
  }
  void push(std::string_view token, const Emit& emit) override {
    if (!first_) emit(" ");
    first_ = false;
    emit(token);
  }

 private:
  bool first_ = true;
};

// What transformers calls clean_up_tokenization_spaces.
std::string clean_up(std::string text) {
  static constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kReplacements) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
      text.replace(at, from.size(), to);
      at += to.size();
    }
  }
  return text;
}

// "##ing" joins what is before it; other tokens begin a word.
std::string word_piece_text(std::string_view token, std::string_view prefix, bool cleans) {
  std::string text;
  if (token.starts_with(prefix)) {
    text = token.substr(prefix.size());
  } else {
    text.append(" ").append(token);
  }
  return cleans ? clean_up(std::move(text)) : text;
}

class WordPieceStage final : public DecodeStage {
 public:
  WordPieceStage(std::string prefix, bool cleans) : prefix_(std::move(prefix)), cleans_(cleans) {}
  std::unique_ptr<DecodeStage> clone() const override {
    return std::make_unique<WordPieceStage>(*this);
  }
  void push(std::string_view token, const Emit& emit) override {
    if (!first_) return emit(word_piece_text(token, prefix_, cleans_));
    first_ = false;
    emit(cleans_ ? clean_up(std::string(token)) : token);
  }

 private:
  const std::string prefix_;
  const bool cleans_;
  bool first_ = true;
};

// Each "</w>" is a space, but in the last token, which so waits for another.
class SuffixStage final : public DecodeStage {
 public:
  explicit SuffixStage(std::string suffix) : suffix_(std::move(suffix)) {}
  std::unique_ptr<DecodeStage> clone() const override {
    return std::make_unique<SuffixStage>(*this);
  }
  void push(std::string_view token, const Emit& emit) override {
    if (pending_) emit(replaced(*pending_, " "));
    pending_ = token;
  }
  void finish(const Emit& emit) override {
    if (pending_) emit(replaced(*pending_, ""));
    pending_.reset();
  }

 private:
  std::string replaced(std::string token, std::string_view by) const {
    for (size_t at = token.find(suffix_); at != std::string::npos; at = token.find(suffix_, at)) {
      token.replace(at, suffix_.size(), by);
      at += by.size();
    }
    return token;
  }

  const std::string suffix_;
  std::optional<std::string> pending_;
};

}  // namespace

Result<Decoder> Decoder::parse(const json::value& value, const std::string& path) {
  Decoder decoder;
  if (value.is_null()) {
    decoder.stages_.push_back([] { return std::make_unique<JoinBySpacesStage>(); });
    return decoder;
  }
  ESP_RETURN_IF_ERROR(decoder.add(value, path));
  decoder.byte_level_only_ = decoder.byte_level_ && decoder.stages_.size() == 1;
  return decoder;
}

Status Decoder::add(const json::value& value, const std::string& path) {
  ESP_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of(value, path));
  ESP_ASSIGN_OR_RETURN(const std::string type, fields.string("type"));
  if (type == "Sequence") {
    ESP_ASSIGN_OR_RETURN(const json::array* parts, fields.array("decoders"));
    for (size_t i = 0; i < parts->size(); ++i) {
      ESP_RETURN_IF_ERROR(add((*parts)[i], fmt::format("{}.decoders[{}]", path, i)));
    }
    return {};
  }
  if (type == "Fuse") {
    fused_ = true;  // tokens flow on as one string in pieces
    return {};
  }
  if (type == "Strip") return add_strip(fields, path);
  if (fused_) {
    return error(StatusCode::kUnimplemented, "'{}' ({}) follows Fuse or ByteLevel; only Strip may",
                 path, type);
  }
  if (type == "Replace") return add_replace(value, path);
  if (type == "Metaspace") return add_metaspace(fields, path);
  if (type == "WordPiece") return add_word_piece(fields);
  if (type == "BPEDecoder") return add_suffix(fields, path);
  if (type == "ByteFallback") {
    stages_.push_back([] { return std::make_unique<ByteFallbackStage>(); });
    byte_fallback_ = true;
    return {};
  }
  if (type == "ByteLevel") {
    stages_.push_back([] { return std::make_unique<ByteLevelStage>(); });
    byte_level_ = fused_ = true;
    return {};
  }
  return error(StatusCode::kUnimplemented,
               "'{}' is of type '{}', which is not supported (supported: Sequence, ByteLevel, "
               "ByteFallback, Fuse, Metaspace, Replace, Strip, WordPiece, BPEDecoder)",
               path, type);
}

Status Decoder::add_strip(const JsonFields& fields, const std::string& path) {
  ESP_ASSIGN_OR_RETURN(const std::string content, fields.string("content"));
  ESP_ASSIGN_OR_RETURN(const int64_t start, fields.integer("start"));
  ESP_ASSIGN_OR_RETURN(const int64_t stop, fields.integer("stop"));
  if (content.empty() || start < 0 || stop < 0) {
    return error(StatusCode::kDataLoss, "'{}' strips nothing or a negative number", path);
  }
  stages_.push_back([content, start, stop, fused = fused_] {
    return std::make_unique<StripStage>(content, start, stop, fused);
  });
  return {};
}

Status Decoder::add_replace(const json::value& value, const std::string& path) {
  ESP_ASSIGN_OR_RETURN(auto replace, parse_replace(value, path));
  // Shared by the streams, which the decoder outlives.
  const auto shared = std::make_shared<const ReplaceStage::Replace>(std::move(replace));
  stages_.push_back([shared] { return std::make_unique<ReplaceStage>(*shared); });
  replacements_.push_back(*shared);
  return {};
}

Status Decoder::add_metaspace(const JsonFields& fields, const std::string& path) {
  ESP_ASSIGN_OR_RETURN(const std::string replacement, fields.string_or("replacement", "\u2581"));
  ESP_ASSIGN_OR_RETURN(const bool add_prefix_space, fields.boolean_or("add_prefix_space", true));
  ESP_ASSIGN_OR_RETURN(const std::string scheme,
                       fields.string_or("prepend_scheme", add_prefix_space ? "always" : "never"));
  if (replacement.empty()) {
    return error(StatusCode::kDataLoss, "'{}.replacement' is empty", path);
  }
  stages_.push_back([replacement, drops_first = scheme != "never"] {
    return std::make_unique<MetaspaceStage>(replacement, drops_first);
  });
  replacements_.push_back([replacement](std::string token) {
    std::string text;
    MetaspaceStage(replacement, false).push(token, [&](std::string_view t) { text = t; });
    return text;
  });
  return {};
}

Status Decoder::add_word_piece(const JsonFields& fields) {
  ESP_ASSIGN_OR_RETURN(const std::string prefix, fields.string_or("prefix", "##"));
  ESP_ASSIGN_OR_RETURN(const bool cleans, fields.boolean_or("cleanup", true));
  stages_.push_back([prefix, cleans] { return std::make_unique<WordPieceStage>(prefix, cleans); });
  replacements_.push_back(
      [prefix, cleans](std::string token) { return word_piece_text(token, prefix, cleans); });
  return {};
}

Status Decoder::add_suffix(const JsonFields& fields, const std::string& path) {
  ESP_ASSIGN_OR_RETURN(const std::string suffix, fields.string_or("suffix", "</w>"));
  if (suffix.empty()) return error(StatusCode::kDataLoss, "'{}.suffix' is empty", path);
  stages_.push_back([suffix] { return std::make_unique<SuffixStage>(suffix); });
  replacements_.push_back([suffix](std::string token) {
    if (token.ends_with(suffix)) token.replace(token.size() - suffix.size(), suffix.size(), " ");
    return token;
  });
  return {};
}

Decoder::Stream::Stream(const Stream& other) {
  stages_.reserve(other.stages_.size());
  for (const auto& stage : other.stages_) stages_.push_back(stage->clone());
}

Decoder::Stream Decoder::stream() const {
  Stream stream;
  for (const MakeStage& make : stages_) stream.stages_.push_back(make());
  return stream;
}

void Decoder::Stream::push_to(size_t stage, std::string_view token, std::string& out) {
  if (stage == stages_.size()) {
    out += token;
    return;
  }
  stages_[stage]->push(token, [&, stage](std::string_view t) { push_to(stage + 1, t, out); });
}

void Decoder::Stream::finish(std::string& out) {
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    stages_[stage]->finish([&, stage](std::string_view t) { push_to(stage + 1, t, out); });
  }
}

std::string Decoder::bytes_within_text(std::string_view token) const {
  if (byte_level_) {
    std::string bytes;
    return append_spelled_bytes(token, bytes) ? bytes : std::string(token);
  }
  if (byte_fallback_) {
    if (const std::optional<char> byte = byte_token(token)) return std::string(1, *byte);
  }
  std::string text(token);
  for (const auto& replace : replacements_) text = replace(std::move(text));
  return text;
}

}  // namespace espalier
