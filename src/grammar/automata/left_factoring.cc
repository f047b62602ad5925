#include "grammar/automata/left_factoring.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace espalier::grammar {
namespace {

constexpr size_t kSharedMin = 8;      // parts; shorter common prefixes are not worth factoring
constexpr size_t kConstantMax = 256;  // bytes of a constant rule that is expanded
constexpr size_t kInlineMax = 4;      // parts that need no rule of their own

struct Way {
  ExprId whole = 0;
  std::vector<ExprId> parts;
  std::vector<size_t> cuts;  // after constants: where a rule for the rest may begin
};

class SharedPrefixes {
 public:
  SharedPrefixes(Ir& ir, const std::function<bool(RuleId)>& is_made) : ir_(ir), is_made_(is_made) {}

  // Returns false where the alternative is no sequence that may be factored.
  bool add(ExprId expr) {
    if (!is_plain_rule(expr)) return false;
    const ExprId body = ir_.rules()[ir_.node(expr).first].body;
    if (ir_.node(body).op != Ir::Op::kSequence) return false;
    Way alternative{.whole = expr, .parts = {}, .cuts = {}};
    for (const ExprId part : ir_.children(body)) {
      if (!is_constant(part)) {
        alternative.parts.push_back(part);
        continue;
      }
      const ExprId constant = ir_.rules()[ir_.node(part).first].body;
      const auto bytes = ir_.children(constant);
      alternative.parts.insert(alternative.parts.end(), bytes.begin(), bytes.end());
      alternative.cuts.push_back(alternative.parts.size());
    }
    ways_.push_back(std::move(alternative));
    return true;
  }

  ExprId choice() {
    if (ways_.empty()) return ir_.never();
    std::ranges::sort(ways_, {}, &Way::parts);
    return tree(0, ways_.size(), 0, 0);
  }

 private:
  bool is_plain_rule(ExprId expr) const {
    if (ir_.node(expr).op != Ir::Op::kRule) return false;
    const RuleId id = ir_.node(expr).first;
    const IrRules::Rule& rule = ir_.rules()[id];
    return rule.check < 0 && rule.counter < 0 && is_made_(id);
  }

  // Returns whether the expression is a rule that matches one constant string.
  bool is_constant(ExprId expr) const {
    if (!is_plain_rule(expr)) return false;
    const ExprId body = ir_.rules()[ir_.node(expr).first].body;
    return ir_.node(body).op == Ir::Op::kSequence && ir_.children(body).size() <= kConstantMax &&
           std::ranges::all_of(ir_.children(body),
                               [&](ExprId part) { return ir_.node(part).op == Ir::Op::kBytes; });
  }

  // Returns how many leading parts the alternatives [begin, end) share; they are sorted.
  size_t shared_by(size_t begin, size_t end) const {
    const std::vector<ExprId>& first = ways_[begin].parts;
    const std::vector<ExprId>& last = ways_[end - 1].parts;
    return static_cast<size_t>(std::ranges::mismatch(first, last).in1 - first.begin());
  }

  // Builds the alternatives [begin, end), of whose parts the first `written` are already emitted.
  // Alternatives that share few parts stay whole.
  ExprId tree(size_t begin, size_t end, size_t written, size_t depth) {
    const size_t shared = std::max(depth, shared_by(begin, end));
    const bool apart = written > 0 || shared >= kSharedMin;
    std::vector<ExprId> out;
    for (size_t i = begin; i < end;) {
      size_t next = i + 1;
      const auto part_of = [&](size_t alternative) {
        return shared < ways_[alternative].parts.size() ? ways_[alternative].parts[shared]
                                                        : ir_.empty();
      };
      while (next < end && part_of(next) == part_of(i)) ++next;
      if (next > i + 1 && shared < ways_[i].parts.size()) {
        out.push_back(tree(i, next, apart ? shared : 0, shared + 1));
      } else {
        out.push_back(apart ? rest(ways_[i], shared) : ways_[i].whole);
      }
      i = next;
    }
    const ExprId choice = ir_.choice(out);
    if (!apart) return choice;
    const std::vector<ExprId>& parts = ways_[begin].parts;
    std::vector<ExprId> all(parts.begin() + static_cast<std::ptrdiff_t>(written),
                            parts.begin() + static_cast<std::ptrdiff_t>(shared));
    all.push_back(choice);
    return ir_.sequence(all);
  }

  ExprId rest(const Way& alternative, size_t from) {
    const auto cut = std::ranges::lower_bound(alternative.cuts, from);
    const size_t begin = cut == alternative.cuts.end() ? from : *cut;
    const auto parts = std::span(alternative.parts);
    const ExprId behind = ir_.sequence(parts.subspan(begin));
    std::vector<ExprId> all(parts.begin() + static_cast<std::ptrdiff_t>(from),
                            parts.begin() + static_cast<std::ptrdiff_t>(begin));
    all.push_back(parts.size() - begin <= kInlineMax ? behind : rule_of(behind, alternative));
    return ir_.sequence(all);
  }

  ExprId rule_of(ExprId expr, const Way& alternative) {
    const auto [known, added] = rules_.try_emplace(expr, 0);
    if (added) {
      known->second = ir_.rules().add(ir_.rules()[ir_.node(alternative.whole).first].name);
      ir_.rules().set_body(known->second, expr);
    }
    return ir_.rule(known->second);
  }

  Ir& ir_;
  const std::function<bool(RuleId)>& is_made_;
  std::vector<Way> ways_;
  std::unordered_map<ExprId, RuleId> rules_;
};

}  // namespace

ExprId left_factored_choice(Ir& ir, std::span<const ExprId> alternatives,
                            const std::function<bool(RuleId)>& is_made) {
  SharedPrefixes shared(ir, is_made);
  std::vector<ExprId> out;
  for (const ExprId alternative : alternatives) {
    if (!shared.add(alternative)) out.push_back(alternative);
  }
  out.push_back(shared.choice());
  return ir.choice(out);
}

}  // namespace espalier::grammar
