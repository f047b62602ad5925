#include "text/template/source_cursor.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/template/value.h"
#include "text/unicode/char_class.h"
#include "text/unicode/utf8.h"

namespace espalier::jinja {

void SourceCursor::advance(size_t num_bytes) {
  const std::string_view passed = rest().substr(0, num_bytes);
  line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
  position_ += passed.size();
}

void SourceCursor::skip_spaces() {
  const CharClasses classes;
  size_t end = position_;
  while (end < source_.size()) {
    const Utf8Char c = decode_utf8(source_, end);
    if (!classes.is(c.code, kSpace)) break;
    end += c.size;
  }
  advance(end - position_);
}

Status SourceCursor::wrong_at(int line, std::string_view what) {
  return template_error(fmt::format("line {}: {}", line, what));
}

}  // namespace espalier::jinja
