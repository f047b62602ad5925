// Tokenizers of vocabularies that lie inside model files, by llama.cpp's names for their parts. The
// tokenizer takes the vocabulary over and is thread-safe, as every Tokenizer is.
#pragma once

#include <memory>

#include "seams/stored_vocabulary.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier {

// kUnimplemented names a model or a pre-tokeniser that is not known, with those that are; kDataLoss
// what is malformed.
Result<std::unique_ptr<Tokenizer>> make_stored_tokenizer(StoredVocabulary vocabulary);

}  // namespace espalier
