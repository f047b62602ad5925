// Text to token ids and back. One interface over every vocabulary format; load_tokenizer picks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "seams/vocab_view.h"

namespace espalier {

struct EncodeOptions {
  bool add_special_tokens = true;  // what the post-processor adds: <s> and the like
  bool parse_special = true;       // text such as "<|eot|>" becomes the special token it names
};

struct DecodeOptions {
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;  // as Hugging Face: only between adjacent added tokens
};

// Immutable after loading; every method is thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Token ids of `text`. Invalid UTF-8 is encoded byte for byte where the vocabulary has bytes,
  // else as U+FFFD. Never fails: whatever text there is has tokens. Cost is linear in the text.
  virtual std::vector<TokenId> encode(std::string_view text,
                                      const EncodeOptions& options = {}) const = 0;

  // The text of `ids`, as the reference's decode gives it (incomplete UTF-8 as U+FFFD). Ids outside
  // the vocabulary decode to nothing.
  virtual std::string decode(const std::vector<TokenId>& ids,
                             const DecodeOptions& options = {}) const = 0;

  // Bytes of each token, special and end-of-sequence ids. Lives as long as the tokenizer.
  virtual const VocabView& vocab() const = 0;
  virtual int32_t vocab_size() const = 0;  // ids are in [0, vocab_size), added tokens included

  // The bytes that one token adds to a running text; empty for special tokens when skipped. Used by
  // the incremental detokenizer; `first` says that nothing was decoded before (metaspace
  // vocabularies drop the leading space there).
  virtual std::string_view piece(TokenId id, bool skip_special) const = 0;
  virtual bool is_special(TokenId id) const = 0;

  virtual std::optional<TokenId> token_to_id(std::string_view token) const = 0;
  virtual std::string id_to_token(TokenId id) const = 0;  // "<|eot|>", "Ġthe"; "" when unknown

  virtual std::optional<TokenId> bos_id() const = 0;
};

// Reads a model folder (tokenizer.json, with tokenizer_config.json beside it) or a tokenizer.json.
// Fails with the file, the place in it and what is not supported, by name.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& path);

}  // namespace espalier
