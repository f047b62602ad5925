// Languages of JSON numbers within bounds, for minimum, maximum and multipleOf. Exact: decimals are
// strings of digits and are never rounded.
#pragma once

#include <boost/json/fwd.hpp>
#include <optional>
#include <string>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// A finite decimal: its sign, digits before the point without leading zeros ("" is 0), and digits
// after it without trailing zeros.
struct Decimal {
  bool negative = false;
  std::string whole, fraction;

  bool zero() const { return whole.empty() && fraction.empty(); }
  static std::optional<Decimal> parse(std::string_view text);  // "-12.5e3"; nothing beyond 10^±400
  static std::optional<Decimal> of(const boost::json::value& number);
};

// Returns the value of a keyword that counts, saturated at 2^50; nothing when it is no whole number
// of 0 or more.
std::optional<int64_t> count_of(const boost::json::value& bound);

// Returns whether value / divisor is an integer.
bool is_multiple(const Decimal& value, const Decimal& divisor);

int compare(const Decimal& a, const Decimal& b);  // -1, 0, 1

struct NumberBounds {
  std::optional<Decimal> low, high;
  bool low_open = false, high_open = false;  // whether the bound itself is excluded

  void at_least(const Decimal& value, bool open);  // keep the tighter bound
  void at_most(const Decimal& value, bool open);
  bool any() const { return low || high; }
  bool contains(const Decimal& value) const;
};

// Returns what may follow a plain decimal within the bounds: nothing, or an exponent that keeps it
// within. Exponents towards 0 are allowed where 0 is within the bounds or is one of them (no
// exponent reaches it); every exponent is allowed where 0 is the only bound.
ExprId exponent_within(Ir& ir, const NumberBounds& bounds);

// Returns plain decimals, without exponent, within `bounds`; integers only or with fractions.
Result<ExprId> bounded_number(Ir& ir, const NumberBounds& bounds, bool integers_only,
                              const GrammarLimits& limits);

// Returns plain decimals that are a multiple of `divisor` > 0. kUnimplemented when the automaton
// would need more than a few thousand states.
Result<ExprId> multiple_of(Ir& ir, const Decimal& divisor);

}  // namespace espalier::grammar
