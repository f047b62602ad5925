// A tokenizer in stages, as Hugging Face's tokenizers lays them out: added tokens, normaliser,
// pre-tokeniser, word model, frame; decoder. Every format but SentencePiece's own ends here.
// Immutable after its constructor and thread-safe; it owns all of its stages.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"
#include "text/tokenizer/word_model.h"

namespace espalier {

// The ids that a post-processor puts around a sequence, and how it joins two of them.
struct SequenceFrame {
  struct Piece {
    std::vector<TokenId> ids;  // of the post-processor's own
    int32_t sequence = -1;     // or the first (0) or the second (1) text
    int32_t type = 0;
  };
  std::vector<TokenId> before, after;
  std::vector<Piece> pair;  // each text once; empty: one behind the other, of types 0 and 1
};

class PipelineTokenizer final : public Tokenizer {
 public:
  struct Parts {
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    Vocabulary vocabulary;
    std::unique_ptr<WordModel> model;  // may refer to vocabulary.table()
    std::vector<AddedToken> added;
    SequenceFrame frame;
    Decoder decoder;
    std::vector<std::string> bos_tokens, eos_tokens;  // by name
    std::string chat_template;
    std::optional<FimTokens> fim_tokens;
  };
  explicit PipelineTokenizer(Parts parts);

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override;
  TypedIds encode_typed(std::string_view text, const std::string* pair,
                        size_t tokens_max) const override;
  std::unique_ptr<DecodeStream> decode_stream(const DecodeOptions& options) const override;
  const VocabView& vocab() const override { return vocab_; }
  std::optional<TokenId> token_to_id(std::string_view token) const override;
  std::string id_to_token(TokenId id) const override;
  std::optional<TokenId> bos_id() const override { return bos_id_; }
  std::string_view chat_template() const override { return prompts_.chat_template; }
  std::optional<FimTokens> fim_tokens() const override { return prompts_.fim_tokens; }

 private:
  class ByteStream;
  class ChainStream;

  void index_added_tokens();
  void fill_vocab_view();
  void encode_raw(std::string_view raw, bool at_start, bool parse_special,
                  std::vector<TokenId>& ids) const;
  void encode_in_parallel(std::string_view raw, bool at_start, const EncodeOptions& options,
                          std::vector<TokenId>& ids) const;
  void encode_words(std::string_view text, bool at_start, std::vector<TokenId>& ids) const;
  const AddedToken* added_token(TokenId id) const;
  // The string that the decoder gets for a token; "" for none.
  std::string decoded_token(TokenId id) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Vocabulary vocabulary_;
  std::unique_ptr<WordModel> model_;
  std::vector<AddedToken> added_;
  std::unordered_map<std::string, TokenId> added_ids_;
  std::unordered_map<TokenId, size_t> added_index_;  // in added_
  std::vector<std::string> added_normalized_;        // [added_]: content, normalised where it is
  AddedTokenMatcher raw_matcher_, normalized_matcher_;
  SequenceFrame frame_;
  Decoder decoder_;
  // What prompts of the model are built of.
  struct PromptParts {
    std::string chat_template;
    std::optional<FimTokens> fim_tokens;
  };
  const PromptParts prompts_;
  bool keeps_invalid_utf8_;
  bool cuts_at_lines_;  // text can be cut before a line that begins with a letter

  VocabView vocab_;
  std::optional<TokenId> bos_id_;
  std::vector<std::string_view> token_bytes_;  // [vocab_size]; special ones empty
  std::vector<std::string> owned_bytes_;       // of tokens whose bytes lie nowhere else
  std::vector<std::string> special_bytes_;     // [added_]: what ByteStream shows of special tokens
};

}  // namespace espalier
