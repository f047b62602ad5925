#include "grammar/schema/number_ranges.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <vector>

#include "grammar/automata/regular_algebra.h"
#include "grammar/schema/json_values.h"

namespace espalier::grammar {
namespace {

constexpr int kExponentMax = 400;
constexpr uint64_t kDivisorStatesMax = 12'000;

ExprId digit(Ir& ir, char low, char high) {
  return ir.chars({{static_cast<uint32_t>(low), static_cast<uint32_t>(high)}});
}
ExprId digits(Ir& ir, int32_t min, int32_t max) { return ir.repeat(digit(ir, '0', '9'), min, max); }

// A whole part: 0, or digits without a leading 0.
ExprId any_whole(Ir& ir) {
  return ir.choice(
      {ir.literal("0"), ir.sequence({digit(ir, '1', '9'), digits(ir, 0, kUnbounded)})});
}
ExprId any_fraction(Ir& ir) {
  return ir.optional(ir.sequence({ir.literal("."), digits(ir, 1, kUnbounded)}));
}

// Digit strings of text.size() digits that are greater (or less) than `text`, excluding equality.
// `first`: a leading digit must not be 0.
ExprId digits_beyond(Ir& ir, std::string_view text, bool greater, bool first) {
  std::vector<ExprId> parts;
  for (size_t i = 0; i < text.size(); ++i) {
    const char floor = first && i == 0 ? '1' : '0';
    const char low = greater ? static_cast<char>(text[i] + 1) : floor;
    const char high = greater ? '9' : static_cast<char>(text[i] - 1);
    if (low > high) continue;
    const auto rest = static_cast<int32_t>(text.size() - i - 1);
    parts.push_back(
        ir.sequence({ir.literal(text.substr(0, i)), digit(ir, low, high), digits(ir, rest, rest)}));
  }
  return ir.choice(parts);
}

// Whole parts greater (or less) than `whole`, where "" is 0.
ExprId whole_beyond(Ir& ir, std::string_view whole, bool greater) {
  const auto length = static_cast<int32_t>(whole.size());
  std::vector<ExprId> parts;
  if (greater) {
    parts.push_back(ir.sequence({digit(ir, '1', '9'), digits(ir, length, kUnbounded)}));
    if (length > 0) parts.push_back(digits_beyond(ir, whole, true, true));
  } else if (length > 0) {
    parts.push_back(ir.literal("0"));
    if (length > 1) parts.push_back(ir.sequence({digit(ir, '1', '9'), digits(ir, 0, length - 2)}));
    parts.push_back(digits_beyond(ir, whole, false, true));
  }
  return ir.choice(parts);
}

// Fractions, including the point or empty, that are greater (or less) than `fraction`, or equal to
// it unless `open`.
ExprId fraction_beyond(Ir& ir, std::string_view fraction, bool greater, bool open) {
  const ExprId zeros = ir.star(ir.literal("0"));
  const ExprId any = digits(ir, 0, kUnbounded);
  std::vector<ExprId> after_point;
  for (size_t i = 0; i < fraction.size(); ++i) {
    const ExprId prefix = ir.literal(fraction.substr(0, i));
    if (greater && fraction[i] < '9') {
      after_point.push_back(
          ir.sequence({prefix, digit(ir, static_cast<char>(fraction[i] + 1), '9'), any}));
    }
    if (!greater) {
      if (fraction[i] > '0') {
        after_point.push_back(
            ir.sequence({prefix, digit(ir, '0', static_cast<char>(fraction[i] - 1)), any}));
      }
      // a proper prefix is less, as the last digit is not 0
      if (i > 0) after_point.push_back(prefix);
    }
  }
  const ExprId same = ir.literal(fraction);
  if (greater) {
    after_point.push_back(ir.sequence({same, zeros, digit(ir, '1', '9'), any}));
  }
  if (!open) {
    const ExprId tail = fraction.empty() ? ir.repeat(ir.literal("0"), 1, kUnbounded) : zeros;
    after_point.push_back(ir.sequence({same, tail}));
  }
  const ExprId pointed = ir.sequence({ir.literal("."), ir.choice(after_point)});
  // An absent fraction is 0.
  const bool bare = fraction.empty() ? !open : !greater;
  return bare ? ir.optional(pointed) : pointed;
}

// Magnitudes greater (or less) than that of `d`, whose sign is ignored.
ExprId magnitude_beyond(Ir& ir, const Decimal& d, bool greater, bool open, bool integers_only) {
  const ExprId whole = d.whole.empty() ? ir.literal("0") : ir.literal(d.whole);
  if (integers_only) {
    const bool equal_fits = d.fraction.empty() ? !open : !greater;
    const ExprId beyond = whole_beyond(ir, d.whole, greater);
    return equal_fits ? ir.choice({beyond, whole}) : beyond;
  }
  return ir.choice({ir.sequence({whole_beyond(ir, d.whole, greater), any_fraction(ir)}),
                    ir.sequence({whole, fraction_beyond(ir, d.fraction, greater, open)})});
}

// Signed numbers at least (or at most) `d`.
ExprId half_line(Ir& ir, const Decimal& d, bool at_least, bool open, bool integers_only) {
  const ExprId minus = ir.literal("-");
  const ExprId any = integers_only ? any_whole(ir) : ir.sequence({any_whole(ir), any_fraction(ir)});
  const bool negative = d.negative && !d.zero();
  const auto magnitude = [&](bool greater) {
    return magnitude_beyond(ir, d, greater, open, integers_only);
  };
  if (at_least) {
    if (!negative) {
      const ExprId up = magnitude(true);
      return d.zero() && !open ? ir.choice({up, ir.literal("-0")}) : up;
    }
    return ir.choice({any, ir.sequence({minus, magnitude(false)})});
  }
  if (negative) return ir.sequence({minus, magnitude(true)});
  if (d.zero()) {
    const ExprId below = ir.sequence({minus, magnitude(true)});
    return open ? below : ir.choice({below, magnitude(false)});
  }
  return ir.choice({magnitude(false), ir.sequence({minus, any})});
}

}  // namespace

std::optional<Decimal> Decimal::parse(std::string_view text) {
  Decimal d;
  if (text.starts_with("-")) {
    d.negative = true;
    text.remove_prefix(1);
  }
  const size_t mark = text.find_first_of("eE");
  int exponent = 0;
  if (mark != std::string_view::npos) {
    std::string_view power = text.substr(mark + 1);
    if (power.starts_with("+")) power.remove_prefix(1);
    const auto [end, failed] = std::from_chars(power.data(), power.data() + power.size(), exponent);
    if (failed != std::errc() || end != power.data() + power.size()) return std::nullopt;
    if (exponent > kExponentMax || exponent < -kExponentMax) return std::nullopt;
    text = text.substr(0, mark);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string all(text.substr(0, point));
  auto whole_digits = static_cast<int>(all.size()) + exponent;
  if (point < text.size()) all += text.substr(point + 1);
  if (all.empty() || all.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  if (whole_digits < 0) {
    all.insert(0, static_cast<size_t>(-whole_digits), '0');
    whole_digits = 0;
  }
  if (static_cast<size_t>(whole_digits) > all.size()) {
    all.append(static_cast<size_t>(whole_digits) - all.size(), '0');
  }
  d.whole = all.substr(0, static_cast<size_t>(whole_digits));
  d.fraction = all.substr(static_cast<size_t>(whole_digits));
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size()));
  const size_t last = d.fraction.find_last_not_of('0');
  d.fraction.resize(last == std::string::npos ? 0 : last + 1);
  return d;
}

std::optional<Decimal> Decimal::of(const boost::json::value& number) {
  if (number.is_int64()) return parse(std::to_string(number.get_int64()));
  if (number.is_uint64()) return parse(std::to_string(number.get_uint64()));
  if (number.is_object() && is_number(number)) return parse(number_text(number));
  if (!number.is_double()) return std::nullopt;
  char text[64];
  const auto [end, failed] = std::to_chars(text, text + sizeof(text), number.get_double());
  if (failed != std::errc()) return std::nullopt;
  return parse(std::string_view(text, static_cast<size_t>(end - text)));
}

std::optional<int64_t> count_of(const boost::json::value& bound) {
  const auto decimal = Decimal::of(bound);
  if (!decimal || decimal->negative || !decimal->fraction.empty()) return std::nullopt;
  if (decimal->whole.size() > 15) return int64_t{1} << 50;
  return decimal->whole.empty() ? 0 : std::stoll(decimal->whole);
}

bool is_multiple(const Decimal& value, const Decimal& divisor) {
  // Both are scaled to integers; long division keeps the remainder as digits.
  const size_t places = std::max(value.fraction.size(), divisor.fraction.size());
  const auto scaled = [&](const Decimal& d) {
    std::string digits = d.whole + d.fraction + std::string(places - d.fraction.size(), '0');
    return digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  };
  const std::string unit = scaled(divisor);
  if (unit.empty()) return false;
  const auto less = [&](const std::string& rest) {
    return rest.size() != unit.size() ? rest.size() < unit.size() : rest < unit;
  };
  std::string rest;
  for (char c : scaled(value)) {
    if (!rest.empty() || c != '0') rest += c;
    while (!less(rest)) {
      int borrow = 0;
      for (size_t i = 1; i <= rest.size(); ++i) {
        char& digit = rest[rest.size() - i];
        const int take = borrow + (i <= unit.size() ? unit[unit.size() - i] - '0' : 0);
        borrow = digit - '0' < take ? 1 : 0;
        digit = static_cast<char>(digit - take + 10 * borrow);
      }
      rest.erase(0, std::min(rest.find_first_not_of('0'), rest.size()));
    }
  }
  return rest.empty();
}

int compare(const Decimal& a, const Decimal& b) {
  const bool a_negative = a.negative && !a.zero(), b_negative = b.negative && !b.zero();
  if (a_negative != b_negative) return a_negative ? -1 : 1;
  int order = a.whole.size() != b.whole.size() ? (a.whole.size() < b.whole.size() ? -1 : 1)
                                               : a.whole.compare(b.whole);
  if (order == 0) order = a.fraction.compare(b.fraction);
  order = order < 0 ? -1 : order > 0 ? 1 : 0;
  return a_negative ? -order : order;
}

void NumberBounds::at_least(const Decimal& value, bool open) {
  const int order = low ? compare(value, *low) : 1;
  if (order > 0) {
    low = value;
    low_open = open;
  } else if (order == 0) {
    low_open |= open;
  }
}

void NumberBounds::at_most(const Decimal& value, bool open) {
  const int order = high ? compare(value, *high) : -1;
  if (order < 0) {
    high = value;
    high_open = open;
  } else if (order == 0) {
    high_open |= open;
  }
}

bool NumberBounds::contains(const Decimal& value) const {
  const int above = low ? compare(value, *low) : 1;
  const int below = high ? compare(value, *high) : -1;
  return (above > 0 || (above == 0 && !low_open)) && (below < 0 || (below == 0 && !high_open));
}

Result<ExprId> bounded_number(Ir& ir, const NumberBounds& bounds, bool integers_only,
                              const GrammarLimits& limits) {
  std::optional<ExprId> low, high;
  if (bounds.low) low = half_line(ir, *bounds.low, true, bounds.low_open, integers_only);
  if (bounds.high) high = half_line(ir, *bounds.high, false, bounds.high_open, integers_only);
  if (low && high) return intersection(ir, *low, *high, limits);
  if (low || high) return low ? *low : *high;
  return ir.sequence(
      {ir.optional(ir.literal("-")), any_whole(ir), integers_only ? ir.empty() : any_fraction(ir)});
}

ExprId exponent_within(Ir& ir, const NumberBounds& bounds) {
  const bool low_fits = !bounds.low || bounds.low->zero() || bounds.low->negative;
  const bool high_fits = !bounds.high || bounds.high->zero() || !bounds.high->negative;
  if (!low_fits || !high_fits) return ir.empty();
  const bool half_line =
      bounds.low ? bounds.low->zero() && !bounds.high : bounds.high && bounds.high->zero();
  ByteSet mark, plus_or_minus;
  mark.set('e').set('E');
  plus_or_minus.set('+').set('-');
  const ExprId sign = half_line ? ir.optional(ir.bytes(plus_or_minus)) : ir.literal("-");
  return ir.optional(ir.sequence({ir.bytes(mark), sign, digits(ir, 1, 2)}));
}

Result<ExprId> multiple_of(Ir& ir, const Decimal& divisor) {
  // divisor = unit / 10^places. A multiple has at most `places` significant digits after the point,
  // and its digits, read as an integer with `places` of them after the point, are divisible by
  // unit.
  const auto places = static_cast<uint32_t>(divisor.fraction.size());
  const std::string text = divisor.whole + divisor.fraction;
  uint64_t unit = 0;
  for (char c : text)
    unit = std::min(unit * 10 + static_cast<uint64_t>(c - '0'), uint64_t{1} << 40);
  if (unit == 0) return fail(invalid_argument("multipleOf must be greater than 0"));
  if (unit * (places + 2) > kDivisorStatesMax) {
    return fail(error(StatusCode::kUnimplemented,
                      "multipleOf {}.{} needs too many automaton states", divisor.whole,
                      divisor.fraction));
  }
  // States: 0 is the start; 1 follows a leading 0; then the remainders of the whole part; then the
  // remainders for each digit after the point; last, trailing zeros.
  const auto k = static_cast<uint32_t>(unit);
  const auto whole_state = [&](uint32_t r) { return 2 + r; };
  const auto place_state = [&](uint32_t place, uint32_t r) { return 2 + k * (1 + place) + r; };
  const uint32_t zeros_state = 2 + k * (places + 2);
  Ir::Graph graph{.num_states = zeros_state + 1, .edges = {}, .finals = {}};
  const auto scaled = [&](uint32_t r, uint32_t missing) {  // r * 10^missing mod k
    uint64_t value = r;
    for (uint32_t i = 0; i < missing; ++i) value = value * 10 % k;
    return value;
  };
  const auto digit_expr = [&](uint32_t d) { return ir.byte(static_cast<uint8_t>('0' + d)); };
  graph.edges.push_back({0, digit_expr(0), 1});
  for (uint32_t d = 1; d < 10; ++d) graph.edges.push_back({0, digit_expr(d), whole_state(d % k)});
  graph.finals.push_back(1);
  graph.edges.push_back({1, ir.literal("."), place_state(0, 0)});
  for (uint32_t r = 0; r < k; ++r) {
    for (uint32_t d = 0; d < 10; ++d) {
      graph.edges.push_back({whole_state(r), digit_expr(d), whole_state((r * 10 + d) % k)});
    }
    if (scaled(r, places) == 0) graph.finals.push_back(whole_state(r));
    graph.edges.push_back({whole_state(r), ir.literal("."), place_state(0, r)});
    for (uint32_t place = 0; place < places; ++place) {
      for (uint32_t d = 0; d < 10; ++d) {
        graph.edges.push_back(
            {place_state(place, r), digit_expr(d), place_state(place + 1, (r * 10 + d) % k)});
      }
      if (place > 0 && scaled(r, places - place) == 0) {
        graph.finals.push_back(place_state(place, r));
      }
    }
  }
  // After the last significant place only zeros may follow.
  graph.edges.push_back({place_state(places, 0), digit_expr(0), zeros_state});
  graph.edges.push_back({zeros_state, digit_expr(0), zeros_state});
  graph.finals.push_back(zeros_state);
  if (places > 0) graph.finals.push_back(place_state(places, 0));
  return ir.sequence({ir.optional(ir.literal("-")), ir.graph(std::move(graph))});
}

}  // namespace espalier::grammar
