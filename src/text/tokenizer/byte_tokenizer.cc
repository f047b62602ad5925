#include "text/tokenizer/byte_tokenizer.h"

#include <array>

#include "text/unicode/utf8.h"

namespace espalier {
namespace {

constexpr std::array<std::string_view, 4> kSpecials = {"<s>", "</s>", "<|user|>", "<|assistant|>"};

class ByteDecodeStream final : public DecodeStream {
 public:
  explicit ByteDecodeStream(bool skip_special) : skip_special_(skip_special) {}

  std::unique_ptr<DecodeStream> clone() const override {
    return std::make_unique<ByteDecodeStream>(*this);
  }
  void push(TokenId id, std::string& out) override {
    if (id >= 0 && id < 256) {
      const char byte = static_cast<char>(id);
      utf8_.push({&byte, 1}, out);
    } else if (id >= kByteBosId && id < kByteVocabSize && !skip_special_) {
      utf8_.push(kSpecials[id - kByteBosId], out);
    }
  }
  void flush(std::string& out) override { utf8_.flush(out); }

 private:
  const bool skip_special_;
  Utf8Stream utf8_;
};

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(bool add_bos) : add_bos_(add_bos) {
    for (int i = 0; i < 256; ++i) {
      bytes_[i] = static_cast<char>(i);
      token_bytes_[i] = {&bytes_[i], 1};
    }
    vocab_.token_bytes = token_bytes_;
    vocab_.special_ids = {kByteBosId, kByteEosId, kByteUserId, kByteAssistantId};
    vocab_.eos_ids = {kByteEosId};
  }

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<TokenId> ids;
    ids.reserve(text.size() + 1);
    if (add_bos_ && options.add_special_tokens) ids.push_back(kByteBosId);
    while (!text.empty()) {
      const std::optional<size_t> special =
          options.parse_special ? special_at_start(text) : std::nullopt;
      ids.push_back(special ? kByteBosId + static_cast<TokenId>(*special)
                            : static_cast<TokenId>(static_cast<uint8_t>(text.front())));
      text.remove_prefix(special ? kSpecials[*special].size() : 1);
    }
    return ids;
  }

  std::unique_ptr<DecodeStream> decode_stream(const DecodeOptions& options) const override {
    return std::make_unique<ByteDecodeStream>(options.skip_special_tokens);
  }

  const VocabView& vocab() const override { return vocab_; }

  std::optional<TokenId> token_to_id(std::string_view token) const override {
    const std::optional<size_t> special = special_at_start(token);
    if (special && kSpecials[*special].size() == token.size()) {
      return kByteBosId + static_cast<TokenId>(*special);
    }
    if (token.size() == 1) return static_cast<uint8_t>(token.front());
    return std::nullopt;
  }
  std::string id_to_token(TokenId id) const override {
    if (id >= 0 && id < 256) return std::string(token_bytes_[id]);
    if (id >= kByteBosId && id < kByteVocabSize) return std::string(kSpecials[id - kByteBosId]);
    return {};
  }
  std::optional<TokenId> bos_id() const override { return kByteBosId; }

 private:
  static std::optional<size_t> special_at_start(std::string_view text) {
    for (size_t i = 0; i < kSpecials.size(); ++i) {
      if (text.starts_with(kSpecials[i])) return i;
    }
    return std::nullopt;
  }

  const bool add_bos_;
  std::array<char, 256> bytes_{};
  std::array<std::string_view, kByteVocabSize> token_bytes_{};
  VocabView vocab_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer(bool add_bos) {
  return std::make_unique<ByteTokenizer>(add_bos);
}

}  // namespace espalier
