#include "text/template/lexer.h"

#include <algorithm>
#include <array>

#include "text/template/value.h"
#include "text/unicode/char_class.h"
#include "text/unicode/utf8.h"

namespace espalier::jinja {
namespace {

// Bounds the height of an expression's tree, which is walked by recursion.
constexpr size_t kTagTokensMax = 10'000;

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

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

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  Result<std::vector<Token>> run() {
    while (position_ < source_.size()) ESP_RETURN_IF_ERROR(lex_data());
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(position_); }
  char peek(size_t offset = 0) const {
    return position_ + offset < source_.size() ? source_[position_ + offset] : '\0';
  }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(size_t count) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<ptrdiff_t>(position_),
                   source_.begin() + static_cast<ptrdiff_t>(position_ + count), '\n'));
    position_ += count;
  }
  Status wrong(std::string_view what) const {
    return template_error(fmt::format("line {}: {}", line_, what));
  }
  void skip_spaces() {
    size_t count = 0;
    const CharClasses classes;
    for (size_t at = position_; at < source_.size();) {
      const Utf8Char c = decode_utf8(source_, at);
      if (!classes.is(c.code, kSpace)) break;
      at += c.size;
      count += c.size;
    }
    advance(count);
  }

  // Text up to the next tag, then the tag.
  Status lex_data() {
    size_t begin = position_;
    for (;; ++begin) {
      begin = source_.find('{', begin);
      if (begin == std::string::npos || begin + 1 >= source_.size()) {
        begin = source_.size();
        break;
      }
      const char kind = source_[begin + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    const bool at_end = begin == source_.size();
    const char kind = at_end ? '\0' : source_[begin + 1];
    const char sign = at_end || begin + 2 >= source_.size() ? '\0' : source_[begin + 2];
    std::string_view data = std::string_view(source_).substr(position_, begin - position_);
    if (!at_end) data = data.substr(0, kept_before_tag(data, kind, sign));
    if (!data.empty()) add(TokenKind::kData, std::string(data));
    advance(begin - position_);
    line_starts_ = false;
    if (at_end) return {};
    advance(sign == '-' || sign == '+' ? 3 : 2);
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
    const size_t before = position_;
    if (sign == '-') {
      skip_spaces();
    } else if (sign != '+' && peek() == '\n') {
      advance(1);
    }
    line_starts_ = position_ > before && source_[position_ - 1] == '\n';
  }

  Status lex_comment() {
    const size_t end = source_.find("#}", position_);
    if (end == std::string::npos) return wrong("a comment '{#' has no end '#}'");
    const char sign = end > position_ ? source_[end - 1] : '\0';
    advance(end + 2 - position_);
    after_tag(sign);
    return {};
  }

  bool is_raw_tag() const {
    size_t at = position_;
    while (at < source_.size() && is_space(source_[at])) ++at;
    if (std::string_view(source_).substr(at, 3) != "raw") return false;
    at += 3;
    while (at < source_.size() && is_space(source_[at])) ++at;
    const std::string_view end = std::string_view(source_).substr(at);
    return end.starts_with("%}") || end.starts_with("-%}");
  }

  Status lex_raw() {
    const size_t close = source_.find("%}", position_);
    const char open_sign = source_[close - 1];
    advance(close + 2 - position_);
    if (open_sign == '-') skip_spaces();
    for (size_t at = source_.find("{%", position_); at != std::string::npos;
         at = source_.find("{%", at + 2)) {
      size_t name = at + 2;
      const char sign = name < source_.size() ? source_[name] : '\0';
      if (sign == '-' || sign == '+') ++name;
      while (name < source_.size() && is_space(source_[name])) ++name;
      if (std::string_view(source_).substr(name, 6) != "endraw") continue;
      size_t end = name + 6;
      while (end < source_.size() && is_space(source_[end])) ++end;
      char end_sign = '\0';
      if (end < source_.size() && (source_[end] == '-' || source_[end] == '+')) {
        end_sign = source_[end++];
      }
      if (std::string_view(source_).substr(end, 2) != "%}") continue;
      std::string_view data = std::string_view(source_).substr(position_, at - position_);
      line_starts_ = false;
      data = data.substr(0, kept_before_tag(data, '%', sign));
      if (!data.empty()) add(TokenKind::kData, std::string(data));
      advance(end + 2 - position_);
      after_tag(end_sign);
      return {};
    }
    return wrong("'{% raw %}' has no '{% endraw %}'");
  }

  Status lex_tag(TokenKind begin, TokenKind end, std::string_view closing) {
    add(begin, "");
    const int line = line_;
    const size_t num_tokens_max = tokens_.size() + kTagTokensMax;
    int depth = 0;  // of brackets, within which the closing sign is none
    for (;;) {
      skip_spaces();
      if (position_ >= source_.size()) {
        line_ = line;
        return wrong(fmt::format("a tag has no end '{}'", closing));
      }
      const char sign = peek();
      if (depth == 0) {
        const bool block = end == TokenKind::kBlockEnd;
        const bool signed_end =
            (sign == '-' || (sign == '+' && block)) && rest().substr(1).starts_with(closing);
        if (rest().starts_with(closing) || signed_end) {
          add(end, "");
          advance(closing.size() + (signed_end ? 1 : 0));
          if (block) {
            after_tag(signed_end ? sign : '\0');
          } else if (signed_end) {
            const size_t before = position_;
            skip_spaces();
            line_starts_ = position_ > before && source_[position_ - 1] == '\n';
          }
          return {};
        }
      }
      if (tokens_.size() > num_tokens_max) {
        return wrong(fmt::format("a tag has more than {} tokens", kTagTokensMax));
      }
      ESP_RETURN_IF_ERROR(lex_token(depth));
    }
  }

  Status lex_token(int& depth) {
    const char c = peek();
    if (c == '\'' || c == '"') return lex_string(c);
    if (is_digit(c)) return lex_number();
    const Utf8Char letter = decode_utf8(source_, position_);
    if (c == '_' || CharClasses().is(letter.code, kLetter)) return lex_name();
    static constexpr std::array<std::string_view, 26> kOperators = {
        "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
        ">",  "=",  ".",  ":",  "|",  "(",  ")", "[", "]", "{", "}", ",", ";"};
    for (const std::string_view op : kOperators) {
      if (!rest().starts_with(op)) continue;
      if (op == "(" || op == "[" || op == "{") ++depth;
      if (op == ")" || op == "]" || op == "}") {
        if (--depth < 0) return wrong(fmt::format("unexpected '{}'", op));
      }
      add(TokenKind::kOperator, std::string(op));
      advance(op.size());
      return {};
    }
    return wrong(fmt::format("unexpected '{}'", source_.substr(position_, letter.size)));
  }

  Status lex_name() {
    const CharClasses classes;
    size_t end = position_;
    while (end < source_.size()) {
      const Utf8Char c = decode_utf8(source_, end);
      if (c.code != '_' && !classes.is(c.code, kLetter | kMark | kDecimal)) break;
      end += c.size;
    }
    add(TokenKind::kName, source_.substr(position_, end - position_));
    advance(end - position_);
    return {};
  }

  // 12, 1_000, 0x1F, 0o7, 0b1, 1.5, 1e3, 1.5e-3. ("1.foo" is an integer and an attribute.)
  Status lex_number() {
    size_t end = position_;
    std::string digits;
    const auto take = [&](auto&& accept) {
      while (end < source_.size() && (accept(source_[end]) || source_[end] == '_')) {
        if (source_[end] != '_') digits += source_[end];
        ++end;
      }
    };
    if (peek() == '0' && std::string_view("xXoObB").find(peek(1)) != std::string_view::npos &&
        peek(1) != '\0') {
      digits = source_.substr(position_, 2);
      end += 2;
      take([](char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); });
      add(TokenKind::kInteger, digits);
      advance(end - position_);
      return {};
    }
    take(is_digit);
    bool is_float = false;
    const auto at = [&](size_t i) { return i < source_.size() ? source_[i] : '\0'; };
    if (at(end) == '.' && is_digit(at(end + 1))) {
      is_float = true;
      digits += '.';
      ++end;
      take(is_digit);
    }
    if (at(end) == 'e' || at(end) == 'E') {
      const size_t sign = at(end + 1) == '+' || at(end + 1) == '-' ? 1 : 0;
      if (is_digit(at(end + 1 + sign))) {
        is_float = true;
        digits += source_.substr(end, 1 + sign);
        end += 1 + sign;
        take(is_digit);
      }
    }
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, digits);
    advance(end - position_);
    return {};
  }

  Status lex_string(char quote) {
    size_t end = position_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return wrong("a string has no end");
    const std::string_view body =
        std::string_view(source_).substr(position_ + 1, end - position_ - 1);
    ESP_ASSIGN_OR_RETURN(std::string text, decode_escapes(body));
    add(TokenKind::kString, std::move(text));
    advance(end + 1 - position_);
    return {};
  }

  // Python's escapes; one that it does not know stays as it is.
  Result<std::string> decode_escapes(std::string_view body) const {
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
        ESP_ASSIGN_OR_RETURN(const char32_t code, escaped_code(body.substr(i + 1, count), count));
        append_utf8(code, out);
        i += count;
      } else if (c >= '0' && c <= '7') {
        char32_t code = 0;
        size_t digits = 0;
        while (digits < 3 && i < body.size() && body[i] >= '0' && body[i] <= '7') {
          code = code * 8 + static_cast<char32_t>(body[i++] - '0');
          ++digits;
        }
        --i;
        append_utf8(code, out);
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  Result<char32_t> escaped_code(std::string_view digits, size_t count) const {
    char32_t code = 0;
    for (const char c : digits) {
      const size_t digit = std::string_view("0123456789abcdef")
                               .find(static_cast<char>(c >= 'A' && c <= 'F' ? c + 32 : c));
      if (digit == std::string_view::npos)
        return fail(wrong("a string's escape has a wrong digit"));
      code = code * 16 + static_cast<char32_t>(digit);
    }
    if (digits.size() < count || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      return fail(wrong("a string's escape is no character"));
    }
    return code;
  }

  const std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // nothing precedes position_ on its line
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize_template(std::string_view source) {
  return Lexer(normalize_newlines(to_valid_utf8(source))).run();
}

}  // namespace espalier::jinja
