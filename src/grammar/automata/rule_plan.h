// Decides what becomes of each rule of a grammar before any automaton is built: inlined into its
// callers, or called. Internal to automata/.
//
// Thread safety: none. Ownership: borrows the Ir and the limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"

namespace espalier::grammar {

// See the head of this file. REQUIRES: the Ir does not change while the plan exists.
class RulePlan {
 public:
  // Plans everything reachable from `root`. Returns early once limits.interrupted(); the caller
  // then calls limits.check_time().
  RulePlan(const Ir& ir, RuleId root, const GrammarLimits& limits);

  // The called rules, the root first; the index is the rule's number in the network.
  const std::vector<RuleId>& called() const { return called_; }
  // All reached rules, callees first where they do not recurse.
  const std::vector<RuleId>& finished() const { return finished_; }
  const std::vector<ExprId>& reached() const { return reached_; }  // expressions, each once
  bool recursive() const { return recursive_; }                    // whether any rule recurses
  bool inlined(RuleId rule) const { return rules_[rule].treatment == Treatment::kInlined; }
  int32_t call_of(RuleId rule) const { return rules_[rule].call; }  // index in called(), or -1

  // Estimates the states that nfa_of() makes for `expr`, with room for its edges; saturating.
  int64_t size_of(ExprId expr);
  // Drops what only planning needed. Afterwards size_of() and reached() must not be called.
  void forget_searches();
  size_t num_bytes() const;  // held

 private:
  // What becomes of a rule: it is inlined into its callers, or has an automaton of its own that
  // they call.
  enum class Treatment : uint8_t { kUnreached, kInlined, kCalled };
  struct RuleInfo {
    Treatment treatment = Treatment::kUnreached;
    uint32_t index = 0, low = 0;  // Tarjan's algorithm
    bool on_stack = false;
    int32_t call = -1;  // index in called_ of a called rule
  };

  void plan(RuleId root);
  void references(ExprId expr, std::vector<RuleId>& out);
  void close_component(std::vector<RuleId>& stack, RuleId head, bool calls_itself);
  bool has_tags(RuleId rule) const;

  const Ir& ir_;
  const GrammarLimits& limits_;
  const RuleId root_;
  std::vector<RuleInfo> rules_;  // [rule of the Ir]
  std::vector<RuleId> called_, finished_;
  bool recursive_ = false;
  std::vector<ExprId> reached_;
  std::vector<int64_t> sizes_;  // [expression]; -1: not computed yet
  std::vector<uint32_t> seen_;  // [expression]: the last search that visited it
  uint32_t searches_ = 0;
};

}  // namespace espalier::grammar
