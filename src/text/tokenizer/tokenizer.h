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
  // Threads that encode a long text. The text is cut where a cut cannot change its tokens; a
  // vocabulary whose rules allow no cut uses one thread.
  int num_threads = 1;
};

// Token ids, and of each which of several texts it belongs to as the model sees it.
struct TypedIds {
  std::vector<TokenId> ids;
  std::vector<int32_t> types;  // [ids]
};

struct DecodeOptions {
  bool skip_special_tokens = true;
  // Accepted and without effect on every vocabulary here, as in Hugging Face's fast tokenizers.
  bool spaces_between_special_tokens = true;
};

// A decode in progress. push() and flush() append whole characters as soon as they are certain, and
// their concatenation is Tokenizer::decode of all the ids. Amortised O(bytes). Not thread-safe; the
// tokenizer that made it outlives it.
class DecodeStream {
 public:
  virtual ~DecodeStream() = default;
  // The same decode, which goes on by itself. O(bytes that are pending).
  virtual std::unique_ptr<DecodeStream> clone() const = 0;
  virtual void push(TokenId id, std::string& out) = 0;
  // Ends the ids: appends the pending text, incomplete characters as U+FFFD. No push() may follow.
  virtual void flush(std::string& out) = 0;
};

// The tokens around the parts of a fill-in-the-middle prompt (fill_in_the_middle.h).
struct FimTokens {
  TokenId prefix = -1, suffix = -1, middle = -1;
  bool operator==(const FimTokens&) const = default;
};

// Immutable after loading; every method is thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Token ids of `text`. Invalid UTF-8 is encoded byte for byte where the vocabulary has bytes (a
  // byte-level one that does not normalise), else as U+FFFD. Never fails: every text has tokens, or
  // none where the vocabulary has no unknown token. The cost is linear in the text.
  virtual std::vector<TokenId> encode(std::string_view text,
                                      const EncodeOptions& options = {}) const = 0;

  // One text, or two as the post-processor joins them, with its special tokens. Where these are more
  // than tokens_max (0: any number may be), tokens are left out at the ends of the texts, of the
  // longer one first, as transformers truncates; those of the post-processor stay.
  virtual TypedIds encode_typed(std::string_view text, const std::string* pair,
                                size_t tokens_max) const;

  // The text of `ids`, as the reference's decode gives it (incomplete UTF-8 as U+FFFD). Ids outside
  // the vocabulary decode to nothing.
  std::string decode(const std::vector<TokenId>& ids, const DecodeOptions& options = {}) const;

  virtual std::unique_ptr<DecodeStream> decode_stream(const DecodeOptions& options) const = 0;

  // Bytes of each token, special and end-of-sequence ids. Lives as long as the tokenizer.
  virtual const VocabView& vocab() const = 0;
  // Ids are in [0, vocab_size), added tokens included; some may be unused.
  int32_t vocab_size() const { return vocab().vocab_size(); }
  bool is_special(TokenId id) const;

  virtual std::optional<TokenId> token_to_id(std::string_view token) const = 0;
  // The token as the vocabulary spells it: "<|eot|>", "Ġthe"; "" for an unknown id.
  virtual std::string id_to_token(TokenId id) const = 0;

  virtual std::optional<TokenId> bos_id() const = 0;
  // The chat template that came with the vocabulary in one file; "" when there was none.
  virtual std::string_view chat_template() const { return {}; }
  // As the vocabulary's file names them by id; absent: they may still be found by their names.
  virtual std::optional<FimTokens> fim_tokens() const { return std::nullopt; }
};

// Shortens two texts' ids (or one's, where `second` is null) to `most` together, as tokenizers'
// longest_first does.
void cut_longest_first(std::vector<TokenId>& first, std::vector<TokenId>* second, size_t most);

// Reads a model's folder or one file: tokenizer.json (with tokenizer_config.json beside it), a
// SentencePiece .model, a .tiktoken rank file. A folder's files are looked for in that order. Fails
// with the file, the place in it and what is not supported, by name.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& path);

}  // namespace espalier
