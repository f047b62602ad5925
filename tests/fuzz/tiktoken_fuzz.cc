// libFuzzer: .tiktoken rank files.
#include "text/tokenizer/tiktoken.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = espalier::parse_tiktoken(text);
  if (tokenizer) (*tokenizer)->decode((*tokenizer)->encode(text.substr(0, 200)));
  return 0;
}
