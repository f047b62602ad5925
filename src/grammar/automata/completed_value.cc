#include "grammar/automata/completed_value.h"

#include <cctype>

namespace espalier::grammar {
namespace {

// Returns whether the quote at `at` is escaped, that is, preceded by an odd number of backslashes.
bool escaped_quote(std::string_view text, size_t at) {
  size_t slashes = 0;
  while (slashes < at && text[at - slashes - 1] == '\\') ++slashes;
  return slashes % 2 == 1;
}

// Returns the offset of the opening quote of the string whose closing quote is at `end`; 0 when
// there is none.
size_t string_begin(std::string_view text, size_t end) {
  while (end > 0) {
    --end;
    if (text[end] == '"' && !escaped_quote(text, end)) return end;
  }
  return 0;
}

}  // namespace

size_t completed_value_size(std::string_view text, uint8_t last) {
  size_t at = text.size();
  if (last == '"') return at - string_begin(text, at);
  if (last != '}' && last != ']') {
    while (at > 0 && (std::isalnum(static_cast<unsigned char>(text[at - 1])) != 0 ||
                      text[at - 1] == '-' || text[at - 1] == '+' || text[at - 1] == '.')) {
      --at;
    }
    return text.size() - at;
  }
  for (int depth = 1; depth > 0 && at > 0;) {
    --at;
    const char c = text[at];
    if (c == '"') {
      at = string_begin(text, at);
    } else if (c == '}' || c == ']') {
      ++depth;
    } else if (c == '{' || c == '[') {
      --depth;
    }
  }
  return text.size() - at;
}

}  // namespace espalier::grammar
