// libFuzzer: SentencePiece .model files.
#include "text/tokenizer/sentencepiece_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto model = espalier::SentencePieceModel::parse(text);
  return model && model->pieces.size() > size ? 1 : 0;
}
