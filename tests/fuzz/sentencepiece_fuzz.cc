// libFuzzer: SentencePiece .model files. A tokenizer that is made encodes and decodes the file
// itself.
#include <cstdint>

#include "text/tokenizer/sentencepiece_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = espalier::parse_sentencepiece_tokenizer(text);
  if (tokenizer) (*tokenizer)->decode((*tokenizer)->encode(text.substr(0, 200)));
  return 0;
}
