// SentencePiece's own models, token for token as its library encodes and decodes: normaliser, BPE,
// Unigram, words or characters. The tokenizers are immutable and thread-safe and own their model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer/sentencepiece_model.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier {

// What stands around a model when it serves a language model.
struct SentencePieceFrame {
  bool add_bos = true;  // where the model has such a piece
  bool add_eos = false;
  bool parse_control = false;  // "<s>" in a text is the control piece; to SentencePiece it is text
  std::string chat_template;
  std::optional<FimTokens> fim_tokens;
};

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(SentencePieceModel model,
                                                        const SentencePieceFrame& frame);

// `bytes`: a .model file. `config_json`: the tokenizer_config.json beside it ("" for none), whose
// add_bos_token and add_eos_token count; with it control pieces are found in texts, as transformers
// does. kDataLoss for what is malformed.
Result<std::unique_ptr<Tokenizer>> parse_sentencepiece_tokenizer(std::string_view bytes,
                                                                 std::string_view config_json = {});

}  // namespace espalier
