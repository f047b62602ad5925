// Lexes the tokens within a tag: names, numbers, strings and operators.
#pragma once

#include <string>
#include <string_view>

#include "text/template/lexer.h"
#include "text/template/source_cursor.h"

namespace espalier::jinja {

// Reads the token at the cursor, which stands on no white space, and advances behind it.
// kInvalidArgument names the line. REQUIRES: !cursor.at_end().
Result<Token> lex_tag_token(SourceCursor& cursor);

// The text of a string literal without its quotes. Python's escapes are decoded; an escape that
// Python does not know stays as it is.
Result<std::string> decode_string_escapes(std::string_view body, const SourceCursor& cursor);

}  // namespace espalier::jinja
