#include "grammar/schema/json_text.h"

#include <boost/json.hpp>
#include <optional>
#include <string>

#include "grammar/schema/number_ranges.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr size_t kDoubleDigits = 15;  // decimals of so many digits survive a double

bool is_number_byte(char c) {
  return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

// Whether a double, or an integer of 64 bits, holds the number as it is written.
bool is_exact(std::string_view text) {
  boost::system::error_code failed;
  const json::value read = json::parse(text, failed);
  const auto written = Decimal::parse(text);
  const auto kept = failed ? std::nullopt : Decimal::of(read);
  return !written || (kept && compare(*written, *kept) == 0);
}

// The text with each number that a double would round replaced by an exact one; empty: there is
// none.
std::string with_exact_numbers(std::string_view text) {
  std::string out;
  size_t copied = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\' ? 1 : 0;
      continue;
    }
    if (text[at] != '-' && (text[at] < '0' || text[at] > '9')) continue;
    size_t end = at;
    while (end < text.size() && is_number_byte(text[end])) ++end;
    const std::string_view number = text.substr(at, end - at);
    const bool has_exponent = number.find_first_of("eE") != std::string_view::npos;
    if ((number.size() > kDoubleDigits || has_exponent) && !is_exact(number)) {
      out += text.substr(copied, at - copied);
      out += "{\"\\u0001number\":\"" + std::string(number) + "\"}";
      copied = end;
    }
    at = end - 1;
  }
  if (copied > 0) out += text.substr(copied);
  return out;
}

}  // namespace

Result<json::value> parse_exact_json_text(std::string_view text, std::string_view what) {
  ESP_ASSIGN_OR_RETURN(json::value rounded, parse_json_text(text, what));
  const std::string exact = with_exact_numbers(text);
  if (exact.empty()) return rounded;
  return parse_json_text(exact, what);
}

Result<json::value> parse_json_text(std::string_view text, std::string_view what) {
  json::parse_options options;
  options.max_depth = kJsonDepthMax;
  json::stream_parser parser({}, options);
  boost::system::error_code failed;
  const size_t read = parser.write(text.data(), text.size(), failed);
  if (!failed) parser.finish(failed);
  if (!failed) return parser.release();
  if (failed == json::error::too_deep) {
    return fail(invalid_argument("{} nests deeper than {} values at byte {}; make it flatter", what,
                                 kJsonDepthMax, read));
  }
  return fail(
      invalid_argument("{} is not valid JSON: {} at byte {}", what, failed.message(), read));
}

}  // namespace espalier::grammar
