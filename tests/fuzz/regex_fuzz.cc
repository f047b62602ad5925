// libFuzzer: regular expressions as input of the grammar compiler. The first byte says how long a
// walk follows.
#include "base/check.h"
#include "grammar_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using espalier::grammar::GrammarSpec;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t walk = size == 0 ? 0 : data[0] % 24;
  espalier::fuzz::follow(
      {.kind = GrammarSpec::Kind::kRegex, .source = std::string(text.substr(size > 0))},
      text.substr(size - std::min(size, walk)));
  return 0;
}
