#include "grammar/schema/compiler.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "grammar/automata/left_factoring.h"
#include "grammar/schema/formula_compiler.h"
#include "grammar/schema/json_values.h"
#include "grammar/schema/keywords.h"
#include "grammar/schema/objects.h"
#include "grammar/schema/values.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr size_t kRulesExactMax = 500;  // beyond it the compiler starts again, approximating early
constexpr size_t kRulesMax = 20'000;
constexpr int kDepthMax = 400;
// Of one schema in total, since the values of a formula may be formulas of their own without end.
constexpr int kFormulasMax = 60, kFormulaStepsMax = 1000;

}  // namespace

SchemaCompiler::SchemaCompiler(Ir& ir, std::shared_ptr<SchemaChecker> checker,
                               Whitespace whitespace, const SchemaOptions& options,
                               const GrammarLimits& limits)
    : ir_(ir),
      checker_(std::move(checker)),
      document_(checker_->document()),
      syntax_(ir, whitespace),
      options_(options),
      limits_(limits),
      patterns_(ir, limits),
      settler_(document_) {}

Result<ExprId> SchemaCompiler::compile() {
  const Conjunction root = {{&document_.root(), kNoScope, 0}};
  auto exact = compile(root);
  const auto wanted_again = [&] {
    return judged_items_ == JudgedItems::kStartAgain || (!exact && over_budget_);
  };
  for (int again = 0; again < 2 && wanted_again(); ++again) {
    approximate_early_ |= judged_items_ != JudgedItems::kStartAgain;
    if (judged_items_ == JudgedItems::kStartAgain) judged_items_ = JudgedItems::kYes;
    rules_.clear();
    open_rules_.clear();
    depth_ = 0;
    over_budget_ = needs_check_ = approximating_ = false;
    formulas_begun_ = formula_steps_ = 0;
    exact = compile(root);
  }
  return exact;
}

Status SchemaCompiler::judge_items() {
  if (judged_items_ == JudgedItems::kYes) return {};
  judged_items_ = JudgedItems::kStartAgain;  // commas are made in another way
  over_budget_ = true;
  return error(StatusCode::kResourceExhausted, "the schema is compiled again");
}

Result<ExprId> SchemaCompiler::distinct_item(ExprId item) {
  ESP_RETURN_IF_ERROR(judge_items());
  if (item == ir_.never()) return item;
  const RuleId rule = ir_.rules().add("distinct item");
  ir_.rules().set_body(rule, item);
  ir_.rules().set_check(rule, {checker_, checker_->add_distinct_item()});
  return ir_.rule(rule);
}

Result<bool> SchemaCompiler::settle(Conjunction& elements) {
  using Mode = ConjunctionSettler::Mode;
  ESP_ASSIGN_OR_RETURN(
      const auto outcome,
      settler_.settle(elements, approximating_ ? Mode::kApproximate : Mode::kExact));
  needs_check_ |= outcome.needs_check;
  return outcome.possible;
}

Status SchemaCompiler::too_large(const Element& element) const {
  const std::string where = document_.pointer_of(element.schema).substr(0, 200);
  if (depth_ >= kDepthMax) {
    return error(StatusCode::kResourceExhausted,
                 "{}: the schema nests deeper than {} there, references followed; make it "
                 "flatter, or let it refer to itself",
                 where, kDepthMax);
  }
  return error(StatusCode::kResourceExhausted,
               "{}: the schema needs more than {} rules by there: too many of its choices "
               "combine; say less with anyOf, oneOf, if and dependencies beside each other",
               where, kRulesMax);
}

Result<ExprId> SchemaCompiler::compile(Conjunction elements) {
  const Conjunction given = elements;
  ESP_ASSIGN_OR_RETURN(const bool possible, settle(elements));
  if (!possible || plain_types(document_, elements) == 0) return ir_.never();
  if (elements.empty()) return syntax_.value();
  // A lone schema is replaced by its representative; beside others its position orders properties.
  if (elements.size() == 1) elements[0].schema = document_.representative(elements[0].schema);
  if (const auto it = rules_.find(elements); it != rules_.end()) return ir_.rule(it->second);
  over_budget_ |= !approximate_early_ && !exact_only_ && rules_.size() >= kRulesExactMax;
  if (over_budget_ || rules_.size() >= kRulesMax || depth_ >= kDepthMax)
    return fail(too_large(elements[0]));
  ESP_RETURN_IF_ERROR(limits_.check_time());
  const RuleId rule = ir_.rules().add(document_.pointer_of(elements[0].schema));
  rules_.emplace(elements, rule);
  ++depth_;
  open_rules_.insert(rule);
  const bool outer_needs_check = std::exchange(needs_check_, false);
  const bool outer_approximating = std::exchange(approximating_, false);
  const auto body = lower_in_any_way(given, elements, rule);
  needs_check_ = outer_needs_check;
  approximating_ = outer_approximating;
  open_rules_.erase(rule);
  --depth_;
  if (!body) {
    // Rules added meanwhile may refer to this one.
    std::erase_if(rules_, [&](const auto& entry) { return entry.second >= rule; });
    return body;
  }
  ir_.rules().set_body(rule, *body);
  return *body == ir_.never() ? ir_.never() : ir_.rule(rule);
}

Result<ExprId> SchemaCompiler::compile_uncounted(Conjunction elements) {
  const bool outer = std::exchange(counters_allowed_, false);
  auto made = compile(std::move(elements));
  counters_allowed_ = outer;
  return made;
}

// Tries the direct lowering, then formulas, then an approximation with a check.
Result<ExprId> SchemaCompiler::lower_in_any_way(const Conjunction& given,
                                                const Conjunction& settled, RuleId rule) {
  auto body = lower(settled);
  const auto try_another = [&] {
    return !body && !over_budget_ && !exact_only_ &&
           body.error().code() != StatusCode::kInvalidArgument;
  };
  if (try_another()) {
    needs_check_ = false;
    body = by_formula(given);
  }
  if (try_another()) {
    body = approximate(given, rule);
  } else if (body && needs_check_) {
    ESP_RETURN_IF_ERROR(add_check(given, rule));
  }
  return body;
}

bool SchemaCompiler::spend_formula_step() { return ++formula_steps_ <= kFormulaStepsMax; }

Status SchemaCompiler::add_check(const Conjunction& elements, RuleId rule) {
  std::vector<SchemaChecker::Part> parts;
  for (const Element& element : elements) {
    ESP_RETURN_IF_ERROR(checker_->validator().admits(element.schema, element.scope, limits_));
    parts.push_back({element.schema, element.scope});
  }
  ir_.rules().set_check(rule, {checker_, checker_->add(std::move(parts))});
  return {};
}

// Numbers have no certain end to check them at, so theirs is the exact way, or none.
Result<ExprId> SchemaCompiler::approximate(const Conjunction& elements, RuleId rule) {
  static const json::value kNumbers = json::object{{"type", "number"}};
  static const json::value kOthers =
      json::object{{"type", {"null", "boolean", "string", "array", "object"}}};
  ESP_RETURN_IF_ERROR(add_check(elements, rule));
  Conjunction numbers = elements, others = elements;
  numbers.push_back({&kNumbers, kNoScope, 0});
  others.push_back({&kOthers, kNoScope, 0});
  approximating_ = false;
  const bool outer_numbers = std::exchange(exact_only_, true);
  auto number_or = lower_settling(std::move(numbers));
  exact_only_ = outer_numbers;
  ESP_ASSIGN_OR_RETURN(const ExprId number, number_or);
  approximating_ = true;
  ESP_ASSIGN_OR_RETURN(const ExprId other, lower_settling(std::move(others)));
  approximating_ = false;
  return ir_.choice({number, other});
}

Result<ExprId> SchemaCompiler::lower_settling(Conjunction elements) {
  ESP_ASSIGN_OR_RETURN(const bool possible, settle(elements));
  if (!possible || plain_types(document_, elements) == 0) return ir_.never();
  return lower(elements);
}

// Whether a value satisfies all of them, by the validator.
Result<bool> SchemaCompiler::holds(const json::value& value, const Conjunction& elements) {
  for (const Element& element : elements) {
    ESP_ASSIGN_OR_RETURN(const bool valid, checker_->validator().valid(value, element.schema,
                                                                       element.scope, limits_));
    if (!valid) return false;
  }
  return true;
}

Result<ExprId> SchemaCompiler::lower(const Conjunction& elements) {
  // Where it must be frugal, the second choice of a conjunction and what is exclusive are left out.
  std::vector<std::pair<size_t, bool>> choices;  // element, whether oneOf
  for (size_t i = 0; i < elements.size(); ++i) {
    if (member(elements[i], "anyOf") != nullptr && !(elements[i].done & kDoneAnyOf)) {
      choices.emplace_back(i, false);
    }
    if (member(elements[i], "oneOf") != nullptr && !(elements[i].done & kDoneOneOf)) {
      choices.emplace_back(i, true);
    }
  }
  if (choices.empty()) {
    ESP_ASSIGN_OR_RETURN(const Constraints constraints, collect_constraints(document_, elements));
    needs_check_ |= constraints.needs_check;
    return ValueCompiler(*this).lower(elements, constraints);
  }
  if (approximate_early_ && !approximating_ && !exact_only_ &&
      (choices.size() > 1 || choices[0].second)) {
    return fail(error(StatusCode::kResourceExhausted, "{}: too many choices combine",
                      document_.pointer_of(elements[choices[0].first].schema)));
  }
  Conjunction rest = elements;
  if (approximating_) {
    // The choice with the most to say stays: the one with the most alternatives.
    const auto size = [&](const std::pair<size_t, bool>& c) {
      const json::value* list = member(elements[c.first], c.second ? "oneOf" : "anyOf");
      return list->is_array() ? list->get_array().size() : 0;
    };
    std::ranges::stable_sort(choices, std::greater(), size);
    for (size_t i = 1; i < choices.size(); ++i) {
      rest[choices[i].first].done |= choices[i].second ? kDoneOneOf : kDoneAnyOf;
      needs_check_ = true;
    }
  }
  return choices[0].second ? branch_one_of(rest, choices[0].first)
                           : branch_any_of(rest, choices[0].first);
}

Result<ExprId> SchemaCompiler::branch_any_of(const Conjunction& elements, size_t index) {
  const json::value* list = member(elements[index], "anyOf");
  if (!list->is_array() || list->get_array().empty()) {
    return fail(wrong(document_, elements[index], "anyOf", "an array of schemas"));
  }
  Conjunction common = elements;
  common[index].done |= kDoneAnyOf;
  std::vector<ExprId> alternatives;
  for (const json::value& schema : list->get_array()) {
    Conjunction alternative = common;
    alternative.push_back({&schema, elements[index].scope, 0});
    ESP_ASSIGN_OR_RETURN(const ExprId expr, compile(std::move(alternative)));
    alternatives.push_back(expr);
  }
  return left_factored_choice(ir_, alternatives,
                              [&](RuleId rule) { return !open_rules_.contains(rule); });
}

// oneOf: each alternative together with the negations of those that it might overlap.
Result<ExprId> SchemaCompiler::branch_one_of(const Conjunction& elements, size_t index) {
  const json::value* list = member(elements[index], "oneOf");
  if (!list->is_array() || list->get_array().empty()) {
    return fail(wrong(document_, elements[index], "oneOf", "an array of schemas"));
  }
  Conjunction common = elements;
  common[index].done |= kDoneOneOf;
  const json::array& schemas = list->get_array();
  const ScopeId scope = elements[index].scope;
  std::vector<ExprId> alternatives;
  for (size_t i = 0; i < schemas.size(); ++i) {
    Conjunction alternative = common;
    alternative.push_back({&schemas[i], scope, 0});
    for (size_t j = 0; j < schemas.size(); ++j) {
      if (i == j) continue;
      ESP_ASSIGN_OR_RETURN(const bool overlap,
                           may_match({{&schemas[i], scope, 0}, {&schemas[j], scope, 0}}, 0));
      if (!overlap) continue;
      if (approximating_) {
        needs_check_ = true;
        break;
      }
      ESP_ASSIGN_OR_RETURN(const json::value* negation,
                           document_.negation(*document_.meant(&schemas[j])));
      alternative.push_back({negation, scope, 0});
    }
    ESP_ASSIGN_OR_RETURN(const ExprId expr, compile(std::move(alternative)));
    alternatives.push_back(expr);
  }
  return left_factored_choice(ir_, alternatives,
                              [&](RuleId rule) { return !open_rules_.contains(rule); });
}

// False only where it is plain that no value matches all: types, constants, or a required property
// that cannot be both.
Result<bool> SchemaCompiler::may_match(Conjunction elements, int depth) {
  ESP_RETURN_IF_ERROR(limits_.check_time());
  ESP_ASSIGN_OR_RETURN(const bool possible, settle(elements));
  if (!possible) return false;
  const auto constraints = collect_constraints(document_, elements);
  if (!constraints) return true;
  if (constraints->types == 0) return false;
  if (const auto values = allowed_values(*constraints)) return !values->empty();
  if (constraints->types != kObject || depth > 3) return true;
  for (const std::string& name : constraints->required) {
    ESP_ASSIGN_OR_RETURN(Conjunction inner,
                         ObjectCompiler(*this).property_conjunction(elements, name));
    ESP_ASSIGN_OR_RETURN(const bool inner_possible, may_match(std::move(inner), depth + 1));
    if (!inner_possible) return false;
  }
  return true;
}

// Operations on regular languages write rules out, which must end: no rule may lead to itself or to
// one that is still being made.
Status SchemaCompiler::require_regular(const Element& element, std::string_view key,
                                       ExprId expr) const {
  std::set<RuleId> path;
  const auto ends = [&](auto&& self, ExprId id) -> bool {
    const Ir::Node& node = ir_.node(id);
    if (node.op == Ir::Op::kBytes) return true;
    if (node.op == Ir::Op::kTick || node.op == Ir::Op::kEnough) return false;
    if (node.op == Ir::Op::kRule) {
      if (ir_.rules()[node.first].check >= 0) return false;
      if (open_rules_.contains(node.first) || !path.insert(node.first).second) return false;
      const bool inner = self(self, ir_.rules()[node.first].body);
      path.erase(node.first);
      return inner;
    }
    return std::ranges::all_of(ir_.children(id), [&](ExprId child) { return self(self, child); });
  };
  return ends(ends, expr) ? Status() : unsupported(document_, element, key);
}

// A check of a value may refuse its end: white space before the comma must not leave the
// end as the only continuation.
ExprId SchemaCompiler::comma() {
  const bool judged = approximating_ || judged_items_ == JudgedItems::kYes || options_.any_order;
  return judged ? ir_.sequence({syntax_.space_inside(), syntax_.comma()}) : syntax_.comma();
}

// Scalars as exactly as objects; arrays by themselves, since only they may need a check.
Result<ExprId> SchemaCompiler::by_formula(const Conjunction& elements) {
  static const json::value kNumbers = json::object{{"type", "number"}};
  static const json::value kScalars =
      json::object{{"type", {"null", "boolean", "number", "string"}}};
  static const json::value kWords = json::object{{"type", {"null", "boolean", "string"}}};
  static const json::value kArrays = json::object{{"type", "array"}};
  // Scalars are made as before, but that choices may combine.
  const bool scalars_only = !(plain_types(document_, elements) & (kObject | kArray));
  if (options_.any_order || (scalars_only && !approximate_early_) ||
      ++formulas_begun_ > kFormulasMax)
    return fail(unsupported(document_, elements[0], "properties"));
  ExprId objects = ir_.never();
  if (plain_types(document_, elements) & kObject) {
    ESP_ASSIGN_OR_RETURN(objects,
                         FormulaCompiler(*this, FormulaCompiler::Of::kObjects).lower(elements));
  }
  const auto of_type = [&](const json::value& type) {
    Conjunction some = elements;
    some.push_back({&type, kNoScope, 0});
    return some;
  };
  const auto exactly = [&](const json::value& type) {
    const bool outer = std::exchange(exact_only_, true);
    auto made = lower_settling(of_type(type));
    exact_only_ = outer;
    return made;
  };
  const auto roughly = [&](const json::value& type) {
    const bool left_out = needs_check_;
    approximating_ = true;
    auto made = lower_settling(of_type(type));
    approximating_ = false;
    needs_check_ = left_out || !made || *made != ir_.never();
    return made;
  };
  std::vector<ExprId> alternatives = {objects};
  if (const auto scalars = exactly(kScalars)) {
    alternatives.push_back(*scalars);
  } else {
    ESP_ASSIGN_OR_RETURN(const ExprId numbers, exactly(kNumbers));
    ESP_ASSIGN_OR_RETURN(const ExprId words, roughly(kWords));
    alternatives.insert(alternatives.end(), {numbers, words});
  }
  const bool left_out = needs_check_;
  auto arrays = lower_settling(of_type(kArrays));
  if (!arrays && !over_budget_ && arrays.error().code() != StatusCode::kInvalidArgument) {
    needs_check_ = left_out;
    arrays = FormulaCompiler(*this, FormulaCompiler::Of::kArrays).lower(of_type(kArrays));
  }
  if (!arrays && !over_budget_ && arrays.error().code() != StatusCode::kInvalidArgument) {
    needs_check_ = left_out;
    arrays = roughly(kArrays);
  }
  if (!arrays) return arrays;
  alternatives.push_back(*arrays);
  return ir_.choice(alternatives);
}

}  // namespace espalier::grammar
