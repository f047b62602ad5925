#include "naive.h"

#include <algorithm>
#include <deque>
#include <set>

namespace espalier::naive {
namespace {

constexpr Expr kUnknown = ~Expr{0};

bool within(const std::vector<CodePoints>& ranges, uint32_t low, uint32_t high) {
  if (low > high) return false;
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const CodePoints& r) { return r.low <= high && low <= r.high; });
}

// What a character's writing can still become.
enum class Read : uint8_t { kWrong, kPart, kWhole };

// UTF-8 of the characters of `ranges`, surrogates left out.
Read read_utf8(std::string_view bytes, const std::vector<CodePoints>& ranges, uint32_t floor,
               bool json) {
  const auto lead = static_cast<uint8_t>(bytes[0]);
  size_t size = 0;
  uint32_t value = 0, least = 0;
  if (lead < 0x80) {
    size = 1, value = lead;
  } else if (lead >= 0xc0 && lead < 0xe0) {
    size = 2, value = lead & 0x1fu, least = 0x80;
  } else if (lead >= 0xe0 && lead < 0xf0) {
    size = 3, value = lead & 0x0fu, least = 0x800;
  } else if (lead >= 0xf0 && lead < 0xf8) {
    size = 4, value = lead & 0x07u, least = 0x10000;
  } else {
    return Read::kWrong;
  }
  for (size_t i = 1; i < bytes.size(); ++i) {
    const auto b = static_cast<uint8_t>(bytes[i]);
    if ((b & 0xc0) != 0x80) return Read::kWrong;
    value = value << 6 | (b & 0x3fu);
  }
  const auto missing = static_cast<uint32_t>(6 * (size - bytes.size()));
  const uint32_t low = std::max({value << missing, least, floor});
  const uint32_t high = std::min((value << missing) + (1u << missing) - 1, 0x10ffffu);
  if (json && size == 1 && (value == '"' || value == '\\')) return Read::kWrong;
  const bool fits =
      within(ranges, low, std::min(high, 0xd7ffu)) || within(ranges, std::max(low, 0xe000u), high);
  if (!fits) return Read::kWrong;
  return missing == 0 ? Read::kWhole : Read::kPart;
}

constexpr std::pair<char, uint32_t> kShort[] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},
                                                {'b', '\b'}, {'f', '\f'},  {'n', '\n'},
                                                {'r', '\r'}, {'t', '\t'}};

bool has_short(uint32_t c) {
  return c != '/' && std::any_of(std::begin(kShort), std::end(kShort),
                                 [&](const auto& s) { return s.second == c; });
}

// Hexadecimal digits read so far, as the range of values they can become; false: not digits.
bool hex_range(std::string_view digits, uint32_t& low, uint32_t& high) {
  low = 0;
  for (const char c : digits) {
    const int v = c >= '0' && c <= '9'   ? c - '0'
                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                         : -1;
    if (v < 0) return false;
    low = low << 4 | static_cast<uint32_t>(v);
  }
  const auto missing = static_cast<uint32_t>(4 * (4 - digits.size()));
  low <<= missing;
  high = low + (1u << missing) - 1;
  return true;
}

Read read_escape(std::string_view bytes, const std::vector<CodePoints>& ranges, bool canonical) {
  const auto written_as_hex = [&](uint32_t low, uint32_t high) {
    if (!canonical) return within(ranges, low, high);
    for (uint32_t c = low; c <= std::min(high, 0x1fu); ++c)
      if (!has_short(c) && within(ranges, c, c)) return true;
    return false;
  };
  const bool any_hex =
      written_as_hex(0, 0xd7ff) || (!canonical && within(ranges, 0xe000, 0x10ffff));
  if (bytes.size() == 1) {
    const bool any_short = std::any_of(std::begin(kShort), std::end(kShort), [&](const auto& s) {
      return !(canonical && s.first == '/') && within(ranges, s.second, s.second);
    });
    return any_short || any_hex ? Read::kPart : Read::kWrong;
  }
  if (bytes[1] != 'u') {
    if (bytes.size() > 2) return Read::kWrong;
    for (const auto& [letter, c] : kShort)
      if (letter == bytes[1] && !(canonical && letter == '/') && within(ranges, c, c))
        return Read::kWhole;
    return Read::kWrong;
  }
  const std::string_view digits = bytes.substr(2, 4);
  uint32_t low = 0, high = 0;
  if (!hex_range(digits, low, high)) return Read::kWrong;
  const bool basic = written_as_hex(low, std::min(high, 0xd7ffu)) ||
                     (!canonical && within(ranges, std::max(low, 0xe000u), high));
  const auto pairs = [&](uint32_t lead_low, uint32_t lead_high, uint32_t trail_low,
                         uint32_t trail_high) {
    for (uint32_t lead = std::max(lead_low, 0xd800u); lead <= std::min(lead_high, 0xdbffu);
         ++lead) {
      const uint32_t base = 0x10000 + ((lead - 0xd800) << 10);
      const uint32_t from = std::max(trail_low, 0xdc00u), to = std::min(trail_high, 0xdfffu);
      if (from <= to && within(ranges, base + from - 0xdc00, base + to - 0xdc00)) return true;
    }
    return false;
  };
  if (bytes.size() < 6) {
    return basic || (!canonical && pairs(low, high, 0xdc00, 0xdfff)) ? Read::kPart : Read::kWrong;
  }
  if (bytes.size() == 6 && (low < 0xd800 || low > 0xdfff))
    return basic ? Read::kWhole : Read::kWrong;
  if (canonical || low < 0xd800 || low > 0xdbff) return Read::kWrong;
  const std::string_view trail = bytes.substr(6);
  uint32_t trail_low = 0, trail_high = 0xffff;
  if (!trail.empty() && trail[0] != '\\') return Read::kWrong;
  if (trail.size() > 1 && trail[1] != 'u') return Read::kWrong;
  if (trail.size() > 2 && !hex_range(trail.substr(2), trail_low, trail_high)) return Read::kWrong;
  if (!pairs(low, low, trail_low, trail_high)) return Read::kWrong;
  return trail.size() == 6 ? Read::kWhole : Read::kPart;
}

Read read_character(std::string_view bytes, const std::vector<CodePoints>& ranges,
                    Writing writing) {
  if (writing == Writing::kPlain) return read_utf8(bytes, ranges, 0, false);
  if (bytes[0] == '\\') return read_escape(bytes, ranges, writing == Writing::kJsonCanonical);
  return read_utf8(bytes, ranges, 0x20, true);
}

}  // namespace

Naive::Naive() {
  intern({.op = Op::kNever});
  intern({.op = Op::kEmpty});
}

Expr Naive::intern(Node node) {
  const auto it = index_.find(node);
  if (it != index_.end()) return it->second;
  const auto id = static_cast<Expr>(nodes_.size());
  index_.emplace(node, id);
  nodes_.push_back(std::move(node));
  after_.emplace_back();
  may_end_.push_back(-1);
  return id;
}

Expr Naive::text(std::string_view bytes) {
  return bytes.empty() ? kEmpty : intern({.op = Op::kText, .bytes = std::string(bytes)});
}

Expr Naive::one_of(std::vector<CodePoints> characters, Writing writing) {
  const bool some = within(characters, 0, 0xd7ff) || within(characters, 0xe000, 0x10ffff);
  if (!some) return kNever;
  characters_.push_back({std::move(characters), writing});
  return intern({.op = Op::kChar, .a = static_cast<Expr>(characters_.size() - 1)});
}

Expr Naive::sequence(std::vector<Expr> parts) {
  Expr out = kEmpty;
  for (size_t i = parts.size(); i-- > 0;) {
    const Expr part = parts[i];
    if (part == kNever) return kNever;
    if (part == kEmpty) continue;
    if (out == kEmpty) {
      out = part;
    } else if (nodes_[part].op == Op::kSequence) {  // to the right, so that equal rests are equal
      const Node first = nodes_[part];
      out = sequence({first.a, sequence({first.b, out})});
    } else {
      out = intern({.op = Op::kSequence, .a = part, .b = out});
    }
    if (out == kNever) return kNever;
  }
  return out;
}

Expr Naive::either(std::vector<Expr> parts) {
  std::set<Expr> all;
  for (const Expr part : parts) {
    if (nodes_[part].op == Op::kEither) {
      all.insert(nodes_[part].parts.begin(), nodes_[part].parts.end());
    } else if (part != kNever) {
      all.insert(part);
    }
  }
  if (all.empty()) return kNever;
  if (all.size() == 1) return *all.begin();
  return intern({.op = Op::kEither, .parts = {all.begin(), all.end()}});
}

Expr Naive::repeat(Expr part, int32_t min, int32_t max) {
  if (max == 0 || part == kEmpty) return kEmpty;
  if (part == kNever) return min == 0 ? kEmpty : kNever;
  if (min == 1 && max == 1) return part;
  return intern({.op = Op::kRepeat, .a = part, .min = min, .max = max});
}

Expr Naive::integer_between(std::optional<int64_t> low, std::optional<int64_t> high) {
  if (low && high && *low > *high) return kNever;
  bounds_.push_back({low, high});
  return intern({.op = Op::kInteger, .a = static_cast<Expr>(bounds_.size() - 1)});
}

Expr Naive::new_rule() {
  rules_.push_back(kNever);
  return intern({.op = Op::kRule, .a = static_cast<Expr>(rules_.size() - 1)});
}

void Naive::set_rule(Expr rule, Expr body) { rules_[nodes_[rule].a] = body; }

bool Naive::lives(Expr expr, const std::vector<bool>& rule_lives) const {
  const Node& node = nodes_[expr];
  switch (node.op) {
    case Op::kNever:
      return false;
    case Op::kSequence:
      return lives(node.a, rule_lives) && lives(node.b, rule_lives);
    case Op::kEither:
      return std::any_of(node.parts.begin(), node.parts.end(),
                         [&](Expr part) { return lives(part, rule_lives); });
    case Op::kRepeat:
      return node.min == 0 || lives(node.a, rule_lives);
    case Op::kRule:
      return rule_lives[node.a];
    default:
      return true;
  }
}

void Naive::settle() {
  std::vector<bool> rule_lives(rules_.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t r = 0; r < rules_.size(); ++r) {
      if (rule_lives[r] || !lives(rules_[r], rule_lives)) continue;
      rule_lives[r] = changed = true;
    }
  }
  // Bodies are written anew without what cannot match.
  std::map<Expr, Expr> made;
  const auto pruned = [&](auto&& self, Expr expr) -> Expr {
    const auto it = made.find(expr);
    if (it != made.end()) return it->second;
    const Node node = nodes_[expr];
    Expr out = expr;
    if (node.op == Op::kSequence) {
      const Expr a = self(self, node.a);
      out = sequence({a, self(self, node.b)});
    } else if (node.op == Op::kEither) {
      std::vector<Expr> parts;
      for (const Expr part : node.parts) parts.push_back(self(self, part));
      out = either(parts);
    } else if (node.op == Op::kRepeat) {
      out = repeat(self(self, node.a), node.min, node.max);
    } else if (node.op == Op::kRule && !rule_lives[node.a]) {
      out = kNever;
    }
    made.emplace(expr, out);
    return out;
  };
  for (size_t r = 0; r < rules_.size(); ++r) rules_[r] = pruned(pruned, rules_[r]);
}

bool Naive::product_lives(Expr a, Expr b, bool with_both) {
  const auto key = std::pair(std::pair(a, b), with_both);
  if (const auto it = product_lives_.find(key); it != product_lives_.end()) return it->second;
  std::set<std::pair<Expr, Expr>> seen = {{a, b}};
  std::deque<std::pair<Expr, Expr>> open = {{a, b}};
  bool found = false;
  while (!open.empty() && !found) {
    const auto [x, y] = open.front();
    open.pop_front();
    found = may_end(x) && may_end(y) == with_both;
    for (int byte = 0; byte < 256 && !found; ++byte) {
      const std::pair next(after(x, static_cast<uint8_t>(byte)),
                           after(y, static_cast<uint8_t>(byte)));
      if (next.first == kNever || (with_both && next.second == kNever)) continue;
      if (const auto known = product_lives_.find({next, with_both});
          known != product_lives_.end()) {
        found = known->second;
        if (!found) continue;
      }
      if (seen.insert(next).second) open.push_back(next);
    }
  }
  if (!found)
    for (const auto& pair : seen) product_lives_[{pair, with_both}] = false;
  return product_lives_[key] = found;
}

Expr Naive::product(Expr a, Expr b, bool with_both) {
  if (a == kNever || (with_both && b == kNever)) return kNever;
  if (b == kNever) return a;
  if (!product_lives(a, b, with_both)) return kNever;
  return intern({.op = with_both ? Op::kBoth : Op::kMinus, .a = a, .b = b});
}

bool Naive::may_end(Expr expr) {
  if (may_end_[expr] >= 0) return may_end_[expr] != 0;
  may_end_[expr] = 0;  // of a rule that leads to itself
  const Node node = nodes_[expr];
  bool out = false;
  switch (node.op) {
    case Op::kEmpty:
      out = true;
      break;
    case Op::kSequence:
      out = may_end(node.a) && may_end(node.b);
      break;
    case Op::kEither:
      out = std::any_of(node.parts.begin(), node.parts.end(), [&](Expr e) { return may_end(e); });
      break;
    case Op::kRepeat:
      out = node.min == 0 || may_end(node.a);
      break;
    case Op::kBoth:
      out = may_end(node.a) && may_end(node.b);
      break;
    case Op::kMinus:
      out = may_end(node.a) && !may_end(node.b);
      break;
    case Op::kRule:
      out = may_end(rules_[node.a]);
      break;
    case Op::kInteger: {
      if (node.bytes.empty() || node.bytes == "-") break;
      const Bounds& bounds = bounds_[node.a];
      // Exact up to 2^63, and no bound is beyond.
      const long double value = std::stold(node.bytes);
      out = (!bounds.low || value >= static_cast<long double>(*bounds.low)) &&
            (!bounds.high || value <= static_cast<long double>(*bounds.high));
      break;
    }
    default:
      break;
  }
  may_end_[expr] = out ? 1 : 0;
  return out;
}

Expr Naive::after(Expr expr, uint8_t byte) {
  if (expr == kNever || expr == kEmpty) return kNever;
  if (!after_[expr]) {
    after_[expr] = std::make_unique<std::array<Expr, 256>>();
    after_[expr]->fill(kUnknown);
  }
  if (const Expr known = (*after_[expr])[byte]; known != kUnknown) return known;
  const Expr made = derive(expr, byte);
  return (*after_[expr])[byte] = made;
}

Expr Naive::after(Expr expr, std::string_view bytes) {
  for (const char c : bytes) {
    expr = after(expr, static_cast<uint8_t>(c));
    if (expr == kNever) break;
  }
  return expr;
}

Expr Naive::derive_char(const Node& node, uint8_t byte) {
  const std::string read = node.bytes + static_cast<char>(byte);
  const Characters& set = characters_[node.a];
  switch (read_character(read, set.ranges, set.writing)) {
    case Read::kWrong:
      return kNever;
    case Read::kWhole:
      return kEmpty;
    case Read::kPart:
      break;
  }
  return intern({.op = Op::kChar, .a = node.a, .bytes = read});
}

// Texts that go on with the digits read: their values lie between read * 10^k and the last before
// (read + 1) * 10^k, for each k.
Expr Naive::derive_integer(const Node& node, uint8_t byte) {
  const std::string read = node.bytes + static_cast<char>(byte);
  const bool negative = read[0] == '-';
  const std::string digits = read.substr(negative ? 1 : 0);
  const bool is_digit = byte >= '0' && byte <= '9';
  if (!is_digit && !(byte == '-' && read.size() == 1)) return kNever;
  if (digits.size() > 1 && digits[0] == '0') return kNever;
  const Bounds& bounds = bounds_[node.a];
  const auto fits = [&](long double low, long double high) {
    if (negative) low = -std::exchange(high, -low);
    return (!bounds.low || high >= static_cast<long double>(*bounds.low)) &&
           (!bounds.high || low <= static_cast<long double>(*bounds.high));
  };
  bool possible = false;
  if (digits.empty()) {
    possible = !bounds.low || *bounds.low <= 0;
  } else if (digits == "0") {
    possible = fits(0, 0);
  } else {
    auto low = std::stold(digits), high = low;
    for (int k = 0; k < 19 && !possible; ++k, low *= 10, high = high * 10 + 9)
      possible = fits(low, high);
  }
  return possible ? intern({.op = Op::kInteger, .a = node.a, .bytes = read}) : kNever;
}

Expr Naive::derive(Expr expr, uint8_t byte) {
  const Node node = nodes_[expr];
  switch (node.op) {
    case Op::kNever:
    case Op::kEmpty:
      return kNever;
    case Op::kText: {
      if (static_cast<uint8_t>(node.bytes[node.a]) != byte) return kNever;
      if (node.a + 1 == node.bytes.size()) return kEmpty;
      return intern({.op = Op::kText, .a = node.a + 1, .bytes = node.bytes});
    }
    case Op::kChar:
      return derive_char(node, byte);
    case Op::kSequence: {
      const Expr head = after(node.a, byte);
      const Expr first = sequence({head, node.b});
      return may_end(node.a) ? either({first, after(node.b, byte)}) : first;
    }
    case Op::kEither: {
      std::vector<Expr> parts;
      for (const Expr part : node.parts)
        if (const Expr next = after(part, byte); next != kNever) parts.push_back(next);
      return either(std::move(parts));
    }
    case Op::kRepeat: {
      const Expr head = after(node.a, byte);
      if (head == kNever) return kNever;
      const int32_t max = node.max == kNoEnd ? kNoEnd : node.max - 1;
      return sequence({head, repeat(node.a, std::max(node.min - 1, 0), max)});
    }
    case Op::kBoth:
    case Op::kMinus: {
      const Expr a = after(node.a, byte);
      return product(a, after(node.b, byte), node.op == Op::kBoth);
    }
    case Op::kInteger:
      return derive_integer(node, byte);
    case Op::kRule:
      return after(rules_[node.a], byte);
  }
  return kNever;
}

}  // namespace espalier::naive
