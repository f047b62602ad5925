#include "text/template/lexer.h"

#include "text/template/source_cursor.h"
#include "text/template/tag_token.h"
#include "text/unicode/char_class.h"
#include "text/unicode/utf8.h"

namespace espalier::jinja {
namespace {

// This bounds the height of an expression's tree, because the evaluator recurses into it.
constexpr size_t kTagTokensMax = 10'000;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Newlines as "\n", and the last one dropped (keep_trailing_newline is off).
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

size_t trimmed_end(std::string_view text) {  // Python's rstrip()
  const CharClasses classes;
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!classes.is(decode_utf8(text, begin).code, kSpace)) break;
    text = text.substr(0, begin);
  }
  return text.size();
}

// Lexes the text outside tags and applies the white space control of tags. Invariant: the tokens
// of everything before the cursor are in tokens_.
class Lexer {
 public:
  explicit Lexer(std::string source) : cursor_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (!cursor_.at_end()) ESP_RETURN_IF_ERROR(lex_data());
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view source() const { return cursor_.source(); }
  void add(TokenKind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), cursor_.line()});
  }

  // Text up to the next tag, then the tag.
  Status lex_data() {
    size_t begin = cursor_.position();
    for (;; ++begin) {
      begin = source().find('{', begin);
      if (begin == std::string::npos || begin + 1 >= source().size()) {
        begin = source().size();
        break;
      }
      const char kind = source()[begin + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    const bool at_end = begin == source().size();
    const char kind = at_end ? '\0' : source()[begin + 1];
    const char sign = at_end || begin + 2 >= source().size() ? '\0' : source()[begin + 2];
    std::string_view data = source().substr(cursor_.position(), begin - cursor_.position());
    if (!at_end) data = data.substr(0, kept_before_tag(data, kind, sign));
    if (!data.empty()) add(TokenKind::kData, std::string(data));
    cursor_.advance(begin - cursor_.position());
    line_starts_ = false;
    if (at_end) return {};
    cursor_.advance(sign == '-' || sign == '+' ? 3 : 2);
    if (kind == '#') return lex_comment();
    if (kind == '{') return lex_tag(TokenKind::kVariableBegin, TokenKind::kVariableEnd, "}}");
    if (is_raw_tag()) return lex_raw();
    return lex_tag(TokenKind::kBlockBegin, TokenKind::kBlockEnd, "%}");
  }

  // How much of the text before a tag stays: "-" strips all white space, lstrip_blocks the
  // indentation of a block or comment that begins its line.
  size_t kept_before_tag(std::string_view data, char kind, char sign) const {
    if (sign == '-') return trimmed_end(data);
    if (sign == '+' || kind == '{') return data.size();
    const size_t newline = data.rfind('\n');
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_begin == 0 && !line_starts_) return data.size();
    const std::string_view indentation = data.substr(line_begin);
    return trimmed_end(indentation) == 0 ? line_begin : data.size();
  }

  // After the closing sign of a block or comment: "-" takes all white space, trim_blocks one
  // newline.
  void after_tag(char sign) {
    const size_t before = cursor_.position();
    if (sign == '-') {
      cursor_.skip_spaces();
    } else if (sign != '+' && cursor_.peek() == '\n') {
      cursor_.advance(1);
    }
    line_starts_ = cursor_.position() > before && source()[cursor_.position() - 1] == '\n';
  }

  Status lex_comment() {
    const size_t end = source().find("#}", cursor_.position());
    if (end == std::string::npos) return cursor_.wrong("a comment '{#' has no end '#}'");
    const char sign = end > cursor_.position() ? source()[end - 1] : '\0';
    cursor_.advance(end + 2 - cursor_.position());
    after_tag(sign);
    return {};
  }

  bool is_raw_tag() const {
    size_t at = cursor_.position();
    while (at < source().size() && is_space(source()[at])) ++at;
    if (source().substr(at, 3) != "raw") return false;
    at += 3;
    while (at < source().size() && is_space(source()[at])) ++at;
    const std::string_view end = source().substr(at);
    return end.starts_with("%}") || end.starts_with("-%}");
  }

  Status lex_raw() {
    const size_t close = source().find("%}", cursor_.position());
    const char open_sign = source()[close - 1];
    cursor_.advance(close + 2 - cursor_.position());
    if (open_sign == '-') cursor_.skip_spaces();
    for (size_t at = source().find("{%", cursor_.position()); at != std::string::npos;
         at = source().find("{%", at + 2)) {
      size_t name = at + 2;
      const char sign = name < source().size() ? source()[name] : '\0';
      if (sign == '-' || sign == '+') ++name;
      while (name < source().size() && is_space(source()[name])) ++name;
      if (source().substr(name, 6) != "endraw") continue;
      size_t end = name + 6;
      while (end < source().size() && is_space(source()[end])) ++end;
      char end_sign = '\0';
      if (end < source().size() && (source()[end] == '-' || source()[end] == '+')) {
        end_sign = source()[end++];
      }
      if (source().substr(end, 2) != "%}") continue;
      std::string_view data = source().substr(cursor_.position(), at - cursor_.position());
      line_starts_ = false;
      data = data.substr(0, kept_before_tag(data, '%', sign));
      if (!data.empty()) add(TokenKind::kData, std::string(data));
      cursor_.advance(end + 2 - cursor_.position());
      after_tag(end_sign);
      return {};
    }
    return cursor_.wrong("'{% raw %}' has no '{% endraw %}'");
  }

  Status lex_tag(TokenKind begin, TokenKind end, std::string_view closing) {
    add(begin, "");
    const int line = cursor_.line();
    const size_t num_tokens_max = tokens_.size() + kTagTokensMax;
    int depth = 0;  // of brackets; within brackets the closing sign does not end the tag
    for (;;) {
      cursor_.skip_spaces();
      if (cursor_.at_end()) {
        return SourceCursor::wrong_at(line, fmt::format("a tag has no end '{}'", closing));
      }
      const char sign = cursor_.peek();
      if (depth == 0) {
        const bool block = end == TokenKind::kBlockEnd;
        const bool signed_end = (sign == '-' || (sign == '+' && block)) &&
                                cursor_.rest().substr(1).starts_with(closing);
        if (cursor_.rest().starts_with(closing) || signed_end) {
          add(end, "");
          cursor_.advance(closing.size() + (signed_end ? 1 : 0));
          if (block) {
            after_tag(signed_end ? sign : '\0');
          } else if (signed_end) {
            const size_t before = cursor_.position();
            cursor_.skip_spaces();
            line_starts_ = cursor_.position() > before && source()[cursor_.position() - 1] == '\n';
          }
          return {};
        }
      }
      if (tokens_.size() > num_tokens_max) {
        return cursor_.wrong(fmt::format("a tag has more than {} tokens", kTagTokensMax));
      }
      ESP_RETURN_IF_ERROR(lex_token(depth));
    }
  }

  // Lexes one token and follows the depth of brackets.
  Status lex_token(int& depth) {
    ESP_ASSIGN_OR_RETURN(Token token, lex_tag_token(cursor_));
    const char op = token.kind == TokenKind::kOperator ? token.text[0] : '\0';
    if (op == '(' || op == '[' || op == '{') ++depth;
    if (op == ')' || op == ']' || op == '}') {
      if (--depth < 0) {
        return SourceCursor::wrong_at(token.line, fmt::format("unexpected '{}'", token.text));
      }
    }
    tokens_.push_back(std::move(token));
    return {};
  }

  SourceCursor cursor_;
  bool line_starts_ = true;  // nothing precedes the cursor on its line
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize_template(std::string_view source) {
  return Lexer(normalize_newlines(to_valid_utf8(source))).run();
}

}  // namespace espalier::jinja
