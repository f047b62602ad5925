#include "grammar/schema/json_values.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/schema/number_ranges.h"

namespace espalier::grammar {

namespace json = boost::json;

bool is_number(const json::value& v) {
  return v.is_number() || (v.is_object() && v.get_object().size() == 1 &&
                           v.get_object().begin()->key() == kExactNumber &&
                           v.get_object().begin()->value().is_string());
}

bool is_plain_object(const json::value& v) { return v.is_object() && !is_number(v); }

bool is_plain_structure(const json::value& v) { return v.is_array() || is_plain_object(v); }

std::string number_text(const json::value& number) {
  if (number.is_object()) return std::string(number.get_object().begin()->value().get_string());
  if (!number.is_double()) return json::serialize(number);
  char text[64];
  const auto [end, failed] = std::to_chars(text, text + sizeof(text), number.get_double());
  return failed == std::errc() ? std::string(text, end) : std::string();
}

namespace {

void append_canonical(const json::value& v, std::string& out) {
  if (const auto decimal = Decimal::of(v)) {
    out += decimal->negative && !decimal->zero() ? '-' : '+';
    out += decimal->whole + '.' + decimal->fraction;
  } else if (const json::array* items = v.if_array()) {
    out += '[';
    for (const json::value& item : *items) append_canonical(item, out);
    out += ']';
  } else if (const json::object* members = v.if_object()) {
    std::vector<std::pair<std::string_view, const json::value*>> sorted;
    for (const auto& [key, value] : *members) sorted.emplace_back(key, &value);
    std::ranges::sort(sorted);
    out += '{';
    for (const auto& [key, value] : sorted) {
      out += json::serialize(json::string(key));
      append_canonical(*value, out);
    }
    out += '}';
  } else {
    out += json::serialize(v);
  }
}

}  // namespace

std::string canonical_text(const json::value& v) {
  std::string out;
  append_canonical(v, out);
  return out;
}

bool equal_values(const json::value& a, const json::value& b) {
  if (is_number(a) || is_number(b)) {
    if (a.is_number() && a.kind() == b.kind()) return a == b;
    const auto x = Decimal::of(a), y = Decimal::of(b);
    return x && y && compare(*x, *y) == 0;
  }
  if (a.kind() != b.kind()) return false;
  if (const json::array* x = a.if_array()) {
    return std::ranges::equal(*x, b.get_array(), equal_values);
  }
  if (const json::object* x = a.if_object()) {
    const json::object& y = b.get_object();
    return x->size() == y.size() && std::ranges::all_of(*x, [&](const auto& entry) {
             const json::value* other = y.if_contains(entry.key());
             return other != nullptr && equal_values(entry.value(), *other);
           });
  }
  return a == b;
}

}  // namespace espalier::grammar
