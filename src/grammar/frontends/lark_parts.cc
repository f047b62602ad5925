#include "grammar/frontends/lark_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <string>

#include "grammar/schema/json_schema.h"

namespace espalier::grammar {
namespace {

namespace json = boost::json;

Status not_supported(const GrammarText& text, std::string_view what) {
  return error(StatusCode::kUnimplemented, "grammar, line {}: {} not supported", text.line(), what);
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool is_number(char c) { return (c >= '0' && c <= '9') || c == '.' || c == '-' || c == 'e'; }

// The bytes of a string or an expression from its opening mark to its closing one, or of a comment
// to the end of its line; 1 where neither begins. `left` is not empty.
size_t piece(std::string_view left, bool lark) {
  const char mark = left[0];
  if (lark && (mark == '#' || left.starts_with("//")))
    return std::min(left.find('\n'), left.size());
  if (mark != '"' && !(lark && mark == '/')) return 1;
  for (size_t i = 1; i < left.size(); ++i) {
    if (left[i] == '\\') {
      ++i;
    } else if (left[i] == mark) {
      return i + 1;
    }
  }
  return left.size();
}

// Takes what stands from an opening brace to the one that closes it.
Result<std::string_view> braced(GrammarText& text, bool lark) {
  text.take_while(is_space);
  const std::string_view all = text.rest();
  size_t length = 0;
  int depth = 0;
  while (length < all.size()) {
    const char c = all[length];
    if (c == '{') ++depth;
    if (depth == 0) return fail(text.wrong("'{' is expected"));
    length += piece(all.substr(length), lark);
    if (c == '}' && --depth == 0) {
      text.skip(length);
      return all.substr(0, length);
    }
  }
  return fail(text.wrong("a part in braces does not end: '}' is expected"));
}

Result<json::value> object(GrammarText& text, std::string_view source) {
  json::error_code failed;
  json::parse_options options;
  options.max_depth = 500;
  json::value value =
      json::parse(json::string_view(source.data(), source.size()), failed, {}, options);
  if (failed || !value.is_object())
    return fail(text.wrong(fmt::format("a JSON object is expected: {}", failed.message())));
  return value;
}

}  // namespace

Status take_options(GrammarText& text) {
  ESP_ASSIGN_OR_RETURN(const std::string_view source, braced(text, false));
  ESP_ASSIGN_OR_RETURN(const json::value value, object(text, source));
  for (const auto& [name, option] : value.get_object())
    if (name != "no_forcing" && !(option.is_bool() && !option.get_bool()))
      return not_supported(text, fmt::format("the option {} of %llguidance is",
                                             std::string_view(name.data(), name.size())));
  return {};
}

Status take_attributes(GrammarText& text) {
  text.skip(1);
  do {
    text.take_while(is_space);
    const std::string_view name = text.take_while(is_word);
    text.take_while(is_space);
    if (name != "capture" && name != "temperature")
      return error(StatusCode::kUnimplemented,
                   "grammar, line {}: the attribute '{}' of a rule is not supported: leave it out, "
                   "and bound the rule by its expression, or the answer by the request's fields",
                   text.line(), name);
    if (!text.take("=")) continue;
    text.take_while(is_space);
    if (text.take("\"")) {
      const auto value = text.quoted();
      if (!value) return value.error();
    } else if (text.take_while(is_number).empty()) {
      return text.wrong(fmt::format("a string or a number is expected behind '{}='", name));
    }
    text.take_while(is_space);
  } while (text.take(","));
  return text.take("]") ? Status() : text.wrong("the attributes do not end: ']' is expected");
}

Result<ExprId> take_json(Ir& ir, GrammarText& text, const GrammarLimits& limits) {
  const int line = text.line();
  ESP_ASSIGN_OR_RETURN(const std::string_view source, braced(text, false));
  ESP_ASSIGN_OR_RETURN(const json::value schema, object(text, source));
  auto made = parse_json_schema(ir, source, Whitespace::kBounded, {}, limits);
  if (!made) return fail(made.error().with_context(fmt::format("grammar, line {}", line)));
  return made;
}

Result<std::string_view> take_braces(GrammarText& text) {
  ESP_ASSIGN_OR_RETURN(const std::string_view all, braced(text, true));
  return all.substr(1, all.size() - 2);
}

}  // namespace espalier::grammar
