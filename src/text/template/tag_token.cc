#include "text/template/tag_token.h"

#include <utility>

#include "text/template/value.h"
#include "text/unicode/char_class.h"
#include "text/unicode/utf8.h"

namespace espalier::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

Token begin_token(TokenKind kind, const SourceCursor& cursor) { return {kind, "", cursor.line()}; }

// Advances the cursor to `end`, a position in the source.
Token finish_token(Token token, size_t end, SourceCursor& cursor) {
  cursor.advance(end - cursor.position());
  return token;
}

Result<Token> lex_name(SourceCursor& cursor) {
  const CharClasses classes;
  const std::string_view source = cursor.source();
  size_t end = cursor.position();
  while (end < source.size()) {
    const Utf8Char c = decode_utf8(source, end);
    if (c.code != '_' && !classes.is(c.code, kLetter | kMark | kDecimal)) break;
    end += c.size;
  }
  Token token = begin_token(TokenKind::kName, cursor);
  token.text = source.substr(cursor.position(), end - cursor.position());
  return finish_token(std::move(token), end, cursor);
}

// 12, 1_000, 0x1F, 0o7, 0b1, 1.5, 1e3, 1.5e-3. ("1.foo" is an integer and an attribute.)
Result<Token> lex_number(SourceCursor& cursor) {
  const std::string_view source = cursor.source();
  size_t end = cursor.position();
  Token token = begin_token(TokenKind::kInteger, cursor);
  const auto take = [&](auto&& accept) {
    while (end < source.size() && (accept(source[end]) || source[end] == '_')) {
      if (source[end] != '_') token.text += source[end];
      ++end;
    }
  };
  const char radix = cursor.peek(1);
  if (cursor.peek() == '0' && radix != '\0' &&
      std::string_view("xXoObB").find(radix) != std::string_view::npos) {
    token.text = source.substr(end, 2);
    end += 2;
    take(is_hex_digit);
    return finish_token(std::move(token), end, cursor);
  }
  take(is_digit);
  const auto at = [&](size_t i) { return i < source.size() ? source[i] : '\0'; };
  if (at(end) == '.' && is_digit(at(end + 1))) {
    token.kind = TokenKind::kFloat;
    token.text += '.';
    ++end;
    take(is_digit);
  }
  if (at(end) == 'e' || at(end) == 'E') {
    const size_t sign = at(end + 1) == '+' || at(end + 1) == '-' ? 1 : 0;
    if (is_digit(at(end + 1 + sign))) {
      token.kind = TokenKind::kFloat;
      token.text += source.substr(end, 1 + sign);
      end += 1 + sign;
      take(is_digit);
    }
  }
  return finish_token(std::move(token), end, cursor);
}

Result<Token> lex_string(SourceCursor& cursor) {
  const std::string_view source = cursor.source();
  const char quote = cursor.peek();
  const size_t begin = cursor.position() + 1;
  size_t end = begin;
  while (end < source.size() && source[end] != quote) end += source[end] == '\\' ? 2 : 1;
  if (end >= source.size()) return fail(cursor.wrong("a string has no end"));
  Token token = begin_token(TokenKind::kString, cursor);
  ESP_ASSIGN_OR_RETURN(token.text,
                       decode_string_escapes(source.substr(begin, end - begin), cursor));
  return finish_token(std::move(token), end + 1, cursor);
}

// The bytes of the operator at the text's start; 0: there is none. The longest operator wins.
size_t operator_size(std::string_view text) {
  const char first = text[0], second = text.size() > 1 ? text[1] : '\0';
  const bool doubled = second == first && (first == '*' || first == '/');
  const bool compares =
      second == '=' && (first == '=' || first == '!' || first == '<' || first == '>');
  if (doubled || compares) return 2;
  return std::string_view("+-*/%~<>=.:|()[]{},;").find(first) != std::string_view::npos ? 1 : 0;
}

Result<Token> lex_operator(SourceCursor& cursor) {
  if (const size_t size = operator_size(cursor.rest()); size > 0) {
    Token token = begin_token(TokenKind::kOperator, cursor);
    token.text = cursor.rest().substr(0, size);
    return finish_token(std::move(token), cursor.position() + size, cursor);
  }
  const Utf8Char character = decode_utf8(cursor.source(), cursor.position());
  return fail(
      cursor.wrong(fmt::format("unexpected '{}'", cursor.rest().substr(0, character.size))));
}

Result<char32_t> escaped_code(std::string_view digits, size_t count, const SourceCursor& cursor) {
  char32_t code = 0;
  for (const char c : digits) {
    const size_t digit = std::string_view("0123456789abcdef")
                             .find(static_cast<char>(c >= 'A' && c <= 'F' ? c + 32 : c));
    if (digit == std::string_view::npos)
      return fail(cursor.wrong("a string's escape has a wrong digit"));
    code = code * 16 + static_cast<char32_t>(digit);
  }
  if (digits.size() < count || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
    return fail(cursor.wrong("a string's escape is no character"));
  }
  return code;
}

// The code of an octal escape that begins at body[i]; leaves `i` at its last digit.
char32_t take_octal_code(std::string_view body, size_t& i) {
  char32_t code = 0;
  size_t digits = 0;
  while (digits < 3 && i < body.size() && body[i] >= '0' && body[i] <= '7') {
    code = code * 8 + static_cast<char32_t>(body[i++] - '0');
    ++digits;
  }
  --i;
  return code;
}

}  // namespace

Result<std::string> decode_string_escapes(std::string_view body, const SourceCursor& cursor) {
  std::string out;
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\' || i + 1 >= body.size()) {
      out += body[i];
      continue;
    }
    const char c = body[++i];
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
      out += kTo[simple];
    } else if (c == '\n') {
      continue;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      ESP_ASSIGN_OR_RETURN(const char32_t code,
                           escaped_code(body.substr(i + 1, count), count, cursor));
      append_utf8(code, out);
      i += count;
    } else if (c >= '0' && c <= '7') {
      append_utf8(take_octal_code(body, i), out);
    } else {
      out += '\\';
      out += c;
    }
  }
  return out;
}

Result<Token> lex_tag_token(SourceCursor& cursor) {
  const char c = cursor.peek();
  if (c == '\'' || c == '"') return lex_string(cursor);
  if (is_digit(c)) return lex_number(cursor);
  const Utf8Char letter = decode_utf8(cursor.source(), cursor.position());
  if (c == '_' || CharClasses().is(letter.code, kLetter)) return lex_name(cursor);
  return lex_operator(cursor);
}

}  // namespace espalier::jinja
