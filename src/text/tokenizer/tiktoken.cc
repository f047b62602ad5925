#include "text/tokenizer/tiktoken.h"

#include <algorithm>
#include <charconv>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/splitter.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

constexpr std::string_view kEnd = "<|endoftext|>";

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

// Nothing for what is not base64.
std::optional<std::string> base64_decoded(std::string_view text) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int digit = base64_digit(c);
    if (digit < 0) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xff);
  }
  if (out.empty()) return std::nullopt;
  return out;
}

SplitRules rules_for(size_t num_tokens) {
  SplitRules rules{.family = SplitRules::Family::kCl100k, .digits_max = 3};
  if (num_tokens == 151643) rules.digits_max = 1;
  if (num_tokens == 199998) {
    rules.family = SplitRules::Family::kO200k;
    rules.slash_ends_symbols = true;
  }
  return rules;
}

class TiktokenDecodeStream final : public DecodeStream {
 public:
  TiktokenDecodeStream(const TokenTable& tokens, std::optional<TokenId> skipped)
      : tokens_(tokens), skipped_(skipped) {}
  void push(TokenId id, std::string& out) override {
    if (id != skipped_ && tokens_.has(id)) utf8_.push(tokens_.of(id), out);
  }
  void flush(std::string& out) override { utf8_.flush(out); }

 private:
  const TokenTable& tokens_;
  const std::optional<TokenId> skipped_;
  Utf8Stream utf8_;
};

class TiktokenTokenizer final : public Tokenizer {
 public:
  TiktokenTokenizer(std::unique_ptr<TokenTable> tokens, TokenId end_id)
      : tokens_(std::move(tokens)),
        end_id_(end_id),
        rules_(rules_for(static_cast<size_t>(end_id))),
        model_({.byte_level = true, .ignore_merges = true}, *tokens_, merges()) {
    for (TokenId id = 0; id < end_id_; ++id) token_bytes_.push_back(tokens_->of(id));
    token_bytes_.emplace_back();
    vocab_ = {.token_bytes = token_bytes_, .special_ids = {end_id_}, .eos_ids = {end_id_}};
  }

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      const size_t end =
          options.parse_special ? std::min(text.find(kEnd), text.size()) : text.size();
      for (size_t at = 0; at < end;) {
        const size_t next = next_word_end(rules_, text.substr(0, end), at);
        model_.encode_word(text.substr(at, next - at), ids);
        at = next;
      }
      if (end < text.size()) ids.push_back(end_id_);
      text.remove_prefix(end < text.size() ? end + kEnd.size() : end);
    }
    return ids;
  }
  std::unique_ptr<DecodeStream> decode_stream(const DecodeOptions& options) const override {
    return std::make_unique<TiktokenDecodeStream>(
        *tokens_, options.skip_special_tokens ? std::optional(end_id_) : std::nullopt);
  }
  const VocabView& vocab() const override { return vocab_; }
  std::optional<TokenId> token_to_id(std::string_view token) const override {
    return tokens_->find(token);
  }
  std::string id_to_token(TokenId id) const override {
    return tokens_->has(id) ? std::string(tokens_->of(id)) : std::string();
  }
  std::optional<TokenId> bos_id() const override { return std::nullopt; }

 private:
  // Every way to make a token of two, the lowest rank first.
  std::vector<BpeModel::Merge> merges() const {
    std::vector<BpeModel::Merge> out;
    for (TokenId id = 0; id < end_id_; ++id) {
      const std::string_view token = tokens_->of(id);
      for (size_t cut = 1; cut < token.size(); ++cut) {
        const auto left = tokens_->find(token.substr(0, cut));
        const auto right = left ? tokens_->find(token.substr(cut)) : std::nullopt;
        if (right) out.push_back({*left, *right, id});
      }
    }
    return out;
  }

  const std::unique_ptr<TokenTable> tokens_;
  const TokenId end_id_;
  const SplitRules rules_;
  const BpeModel model_;
  std::vector<std::string_view> token_bytes_;
  VocabView vocab_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> parse_tiktoken(std::string_view text) {
  auto tokens = std::make_unique<TokenTable>(text.size() / 12, text.size() / 2);
  TokenId next = 0;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (row.empty()) continue;
    const size_t space = row.find(' ');
    TokenId rank = -1;
    if (space != std::string_view::npos)
      std::from_chars(row.data() + space + 1, row.data() + row.size(), rank);
    const auto bytes = base64_decoded(row.substr(0, space));
    if (!bytes || rank != next)
      return fail(error(StatusCode::kDataLoss,
                        "line {}: expected a token in base64 and the rank {}", line, next));
    tokens->add(*bytes, next++);
  }
  if (next == 0) return fail(error(StatusCode::kDataLoss, "the vocabulary holds no token"));
  tokens->add(kEnd, next);
  return std::make_unique<TiktokenTokenizer>(std::move(tokens), next);
}

}  // namespace espalier
