// Between the two ways in which models bring a byte-level BPE vocabulary: Hugging Face's
// tokenizer.json with tokenizer_config.json, and the arrays inside a GGUF. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"
#include "seams/stored_vocabulary.h"

namespace espalier {

struct VocabularyFiles {
  std::string tokenizer;  // tokenizer.json
  std::string config;     // tokenizer_config.json
};

// What a GGUF would hold. `size`: rows of the model's embedding; ids without a token get names of
// their own, for the arrays have no gaps. Its chat_template is the configuration's, if that is one
// text. kUnimplemented names what a GGUF cannot express, or is not written yet: other models than
// byte-level BPE, expressions without a name, tokens that take white space beside them.
Result<StoredVocabulary> store_vocabulary(const VocabularyFiles& files, size_t size);

// The way back. kUnimplemented for vocabularies that are no byte-level BPE.
Result<VocabularyFiles> make_vocabulary_files(const StoredVocabulary& vocabulary);

}  // namespace espalier
