// Which rules of a grammar match some text, and which match the empty one. Internal to automata/.
//
// Thread safety: none. Ownership: borrows the Ir, the plan and the limits.
#pragma once

#include <cstdint>
#include <vector>

#include "grammar/automata/rule_plan.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// See the head of this file. Both properties are least fixed points over the reached rules.
class RuleProperties {
 public:
  RuleProperties(const Ir& ir, const RulePlan& plan, const GrammarLimits& limits)
      : ir_(ir), plan_(plan), limits_(limits) {}

  // Each fails where the limits end the computation. find_nullable() comes second.
  Status find_productive();
  Status find_nullable();

  bool productive(RuleId rule) const { return productive_[rule]; }  // whether some text matches
  // Returns whether the empty text matches; counters are ignored.
  bool nullable(RuleId rule) const { return nullable_[rule]; }

 private:
  enum class Known : uint8_t { kNothing, kTrue, kFalse };

  template <typename Holds>
  Status find_in_rules(std::vector<bool>& rules, Holds holds);
  template <typename Find>
  bool remembered(ExprId expr, Find find);
  bool is_productive(ExprId expr);
  bool is_nullable(ExprId expr);

  const Ir& ir_;
  const RulePlan& plan_;
  const GrammarLimits& limits_;
  std::vector<bool> productive_, nullable_;  // [rule of the Ir]
  std::vector<Known> known_;                 // [expression], of the search in progress
};

}  // namespace espalier::grammar
