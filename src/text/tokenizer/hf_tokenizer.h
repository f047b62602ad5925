// tokenizer.json, as Hugging Face's tokenizers reads it: normaliser, pre-tokeniser, byte-pair
// encoding, post-processor, decoder, added tokens. Thread-safe, as is the tokenizer, which keeps
// nothing of the texts.
#pragma once

#include <memory>
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace espalier {

// `json`: the text of a tokenizer.json; `config_json`: that of tokenizer_config.json ("" for none),
// which names the tokens that begin and end a sequence. kDataLoss for what is malformed,
// kUnimplemented for what is known and not supported; both name the place. The file's truncation
// and padding are left out, as transformers does.
Result<std::unique_ptr<Tokenizer>> parse_hf_tokenizer(std::string_view json,
                                                      std::string_view config_json = {});

}  // namespace espalier
