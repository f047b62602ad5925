#include "grammar/schema/json_schema.h"

#include <algorithm>
#include <boost/json.hpp>
#include <set>
#include <unordered_set>
#include <utility>

#include "grammar/automata/left_factoring.h"
#include "grammar/automata/regular_algebra.h"
#include "grammar/schema/compiler.h"
#include "grammar/schema/formats.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr size_t kRulesExactMax = 500;  // beyond it the compiler starts again, frugally
constexpr size_t kRulesMax = 20'000;
constexpr int kDepthMax = 400;

}  // namespace

Result<ExprId> parse_json_schema(Ir& ir, std::string_view schema, Whitespace whitespace,
                                 const SchemaOptions& options, const GrammarLimits& limits) {
  ESP_ASSIGN_OR_RETURN(auto document, SchemaDocument::parse(schema, options));
  auto checker = std::make_shared<SchemaChecker>(std::move(document));
  return SchemaCompiler(ir, std::move(checker), whitespace, options, limits).compile();
}

uint32_t SchemaChecker::add(std::vector<Part> all) {
  checks_.push_back(std::move(all));
  return static_cast<uint32_t>(checks_.size() - 1);
}

bool SchemaChecker::holds(uint32_t check, std::string_view value) {
  boost::system::error_code failed;
  json::parse_options options;
  options.max_depth = kDepthMax;
  const json::value parsed = json::parse(value, failed, {}, options);
  if (failed) return false;
  return std::ranges::all_of(checks_[check], [&](const Part& part) {
    const auto valid = validator_.valid(parsed, part.schema, part.scope);
    return valid && *valid;
  });
}

Result<ExprId> SchemaCompiler::compile() {
  const Conjunction root = {{&document_.root(), kNoScope, 0}};
  auto exact = compile(root);
  if (exact || !over_budget_) return exact;
  rules_.clear();
  open_.clear();
  depth_ = 0;
  over_budget_ = left_out_ = rough_ = false;
  formulas_begun_ = formula_steps_ = 0;
  frugal_ = true;
  return compile(root);
}

const json::value* SchemaCompiler::member(const Element& element, std::string_view key) const {
  const json::object* object = element.schema->if_object();
  return object == nullptr ? nullptr : object->if_contains(key);
}

Status SchemaCompiler::unsupported(const Element& element, std::string_view key) const {
  return error(StatusCode::kUnimplemented, "{}/{}: '{}' is not supported here",
               document_.pointer_of(element.schema), key, key);
}

Status SchemaCompiler::wrong(const Element& element, std::string_view key,
                             std::string_view expected) const {
  return invalid_argument("{}/{}: '{}' must be {}", document_.pointer_of(element.schema), key, key,
                          expected);
}

// The types that `type` leaves, looked at before anything is made of the rest.
uint8_t SchemaCompiler::plain_types(const Conjunction& elements) const {
  constexpr std::pair<std::string_view, uint8_t> kNames[] = {
      {"null", kNull},     {"boolean", kBoolean},     {"integer", kInteger},
      {"number", kNumber}, {"string", kString},       {"array", kArray},
      {"object", kObject}, {kFractionType, kFraction}};
  uint8_t left = kAllTypes;
  for (const Element& element : elements) {
    const json::value* type = member(element, "type");
    if (type == nullptr || !document_.asserts(element.schema)) continue;
    uint8_t own = 0;
    const auto add = [&](const json::value& name) {
      uint8_t types = kAllTypes;  // of a name that is none: said where keywords are gathered
      for (const auto& [known, bits] : kNames) {
        if (name.is_string() && name.get_string() == known) types = bits;
      }
      own |= types;
    };
    if (type->is_array()) {
      for (const json::value& name : type->get_array()) add(name);
    } else {
      add(*type);
    }
    left &= own;
  }
  return left;
}

Result<ExprId> SchemaCompiler::compile(Conjunction elements) {
  const Conjunction given = elements;
  ESP_ASSIGN_OR_RETURN(const bool possible, settle(elements));
  if (!possible || plain_types(elements) == 0) return ir_.never();
  if (elements.empty()) return syntax_.value();
  // Alone, a schema stands for all that say the same; beside others its place orders properties.
  if (elements.size() == 1) elements[0].schema = document_.representative(elements[0].schema);
  if (const auto it = rules_.find(elements); it != rules_.end()) return ir_.rule(it->second);
  over_budget_ |= !frugal_ && !numbers_only_ && rules_.size() >= kRulesExactMax;
  if (over_budget_ || rules_.size() >= kRulesMax || depth_ >= kDepthMax) {
    const std::string where = document_.pointer_of(elements[0].schema).substr(0, 200);
    if (depth_ >= kDepthMax) {
      return fail(error(StatusCode::kResourceExhausted,
                        "{}: the schema nests deeper than {} there, references followed; make it "
                        "flatter, or let it refer to itself",
                        where, kDepthMax));
    }
    return fail(error(StatusCode::kResourceExhausted,
                      "{}: the schema needs more than {} rules by there: too many of its choices "
                      "combine; say less with anyOf, oneOf, if and dependencies beside each other",
                      where, kRulesMax));
  }
  ESP_RETURN_IF_ERROR(limits_.check_time());
  const RuleId rule = ir_.add_rule(document_.pointer_of(elements[0].schema));
  rules_.emplace(elements, rule);
  ++depth_;
  open_.insert(rule);
  const bool outer_left_out = std::exchange(left_out_, false);
  const bool outer_rough = std::exchange(rough_, false);
  auto body = lower(elements);
  const auto may_be_made_otherwise = [&] {
    return !body && !over_budget_ && !numbers_only_ &&
           body.error().code() != StatusCode::kInvalidArgument;
  };
  if (may_be_made_otherwise()) {
    left_out_ = false;
    body = by_formula(given);
  }
  if (may_be_made_otherwise()) {
    body = approximate(given, rule);
  } else if (body && left_out_) {
    ESP_RETURN_IF_ERROR(add_check(given, rule));
  }
  left_out_ = outer_left_out;
  rough_ = outer_rough;
  open_.erase(rule);
  --depth_;
  if (!body) {
    // What was made meanwhile may refer to it.
    std::erase_if(rules_, [&](const auto& entry) { return entry.second >= rule; });
    return body;
  }
  ir_.set_body(rule, *body);
  return *body == ir_.never() ? ir_.never() : ir_.rule(rule);
}

Status SchemaCompiler::add_check(const Conjunction& elements, RuleId rule) {
  std::vector<SchemaChecker::Part> parts;
  for (const Element& element : elements) {
    ESP_RETURN_IF_ERROR(checker_->validator().admits(element.schema, element.scope, limits_));
    parts.push_back({element.schema, element.scope});
  }
  ir_.set_check(rule, {checker_, checker_->add(std::move(parts))});
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
  rough_ = false;
  const bool outer_numbers = std::exchange(numbers_only_, true);
  auto number_or = lower_some(std::move(numbers));
  numbers_only_ = outer_numbers;
  ESP_ASSIGN_OR_RETURN(const ExprId number, number_or);
  rough_ = true;
  ESP_ASSIGN_OR_RETURN(const ExprId other, lower_some(std::move(others)));
  rough_ = false;
  return ir_.choice({number, other});
}

Result<ExprId> SchemaCompiler::lower_some(Conjunction elements) {
  ESP_ASSIGN_OR_RETURN(const bool possible, settle(elements));
  if (!possible || plain_types(elements) == 0) return ir_.never();
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

Status SchemaCompiler::expand(const Element& element, Conjunction& out) {
  Element rest = element;
  const auto inner = [&](const json::value* schema) {
    return Element{document_.meant(schema), element.scope, 0};
  };
  for (const char* keyword : {"$ref", "$dynamicRef", "$recursiveRef"}) {
    const json::value* reference = member(element, keyword);
    if (reference == nullptr || (element.done & kDoneRef)) continue;
    if (!reference->is_string()) return wrong(element, keyword, "a string");
    ESP_ASSIGN_OR_RETURN(
        const auto target,
        document_.resolve(element.schema, keyword, reference->get_string(), element.scope));
    out.push_back({document_.meant(target.schema), target.scope, 0});
    if (document_.ref_hides_siblings(element.schema)) return {};
    rest.done |= kDoneRef;
  }
  if (const json::value* all = member(element, "allOf");
      all != nullptr && !(element.done & kDoneAllOf)) {
    if (!all->is_array()) return wrong(element, "allOf", "an array of schemas");
    for (const json::value& schema : all->get_array()) out.push_back(inner(&schema));
    rest.done |= kDoneAllOf;
  }
  const bool left_out =
      rough_ && (member(element, "not") != nullptr || member(element, "if") != nullptr);
  // An negation that no keyword says stands beside its "not", which then is for the check.
  if (member(element, kInexpressible) != nullptr) rest.done |= kDoneNot;
  if (left_out) {
    left_out_ = true;
    rest.done |= kDoneNot | kDoneIf;
  }
  if (const json::value* negated = member(element, "not");
      negated != nullptr && !(rest.done & kDoneNot)) {
    ESP_ASSIGN_OR_RETURN(const json::value* negation,
                         document_.negation(*document_.meant(negated)));
    out.push_back(inner(negation));
    rest.done |= kDoneNot;
  }
  if (!document_.has_conditions(element.schema)) rest.done |= kDoneIf;
  if (member(element, "if") != nullptr && !(rest.done & kDoneIf)) {
    if (const json::value* made = condition(element)) out.push_back(inner(made));
    rest.done |= kDoneIf;
  }
  for (const char* key : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const json::value* dependencies = member(element, key);
    if (dependencies == nullptr || (element.done & kDoneDependent)) continue;
    if (!dependencies->is_object()) return wrong(element, key, "an object");
    if (rough_) {
      left_out_ = true;
    } else {
      out.push_back(inner(dependency(*dependencies, element)));
    }
    rest.done |= kDoneDependent;
  }
  out.push_back(rest);
  return {};
}

// "if" as a choice: it holds and so does "then", or it does not and "else" does.
const json::value* SchemaCompiler::condition(const Element& element) {
  const json::value*& made = derived_[{element.schema, kDoneIf}];
  const json::value* then = member(element, "then");
  const json::value* otherwise = member(element, "else");
  if (made == nullptr && (then != nullptr || otherwise != nullptr)) {
    const json::value condition = document_.at(*member(element, "if"));
    json::array first = {condition}, second = {json::object{{"not", condition}}};
    if (then != nullptr) first.push_back(document_.at(*then));
    if (otherwise != nullptr) second.push_back(document_.at(*otherwise));
    made = document_.keep(
        json::object{{"anyOf", {json::object{{"allOf", first}}, json::object{{"allOf", second}}}}},
        element.schema);
  }
  return made;
}

// name -> what must hold where it is present: either it is absent, or that holds. Values that are
// no objects are free of it.
const json::value* SchemaCompiler::dependency(const json::value& dependencies,
                                              const Element& element) {
  const json::value*& made = derived_[{&dependencies, kDoneDependent}];
  if (made != nullptr) return made;
  json::array all;
  for (const auto& [name, needed] : dependencies.get_object()) {
    json::object absent;
    absent[name] = false;
    json::value then = document_.at(needed);
    if (needed.is_array()) then = json::object{{"required", needed}};
    if (needed.is_string()) then = json::object{{"required", json::array{needed}}};
    all.push_back(json::object{
        {"anyOf",
         {json::object{{"type", "object"}, {"properties", absent}},
          json::object{
              {"allOf", {json::object{{"type", "object"}, {"required", json::array{name}}}, then}}},
          json::object{{"type", {"null", "boolean", "number", "string", "array"}}}}}});
  }
  made = document_.keep(json::object{{"allOf", std::move(all)}}, element.schema);
  return made;
}

Result<bool> SchemaCompiler::settle(Conjunction& elements) {
  Conjunction work = std::move(elements);
  for (Element& element : work) element.schema = document_.meant(element.schema);
  std::set<Element> seen(work.begin(), work.end());
  elements.clear();
  while (!work.empty()) {
    Element element = work.back();
    work.pop_back();
    element.scope = document_.entered(element.scope, element.schema);
    if (element.schema->is_bool()) {
      if (!element.schema->get_bool()) return false;
      continue;
    }
    if (!element.schema->is_object()) {
      return fail(invalid_argument("{}: a schema is an object, or true or false",
                                   document_.pointer_of(element.schema)));
    }
    Conjunction made;
    ESP_RETURN_IF_ERROR(expand(element, made));
    for (const Element& next : made) {
      if (next == element) {
        elements.push_back(next);
      } else if (seen.insert(next).second) {
        work.push_back(next);
      }
    }
  }
  std::sort(elements.begin(), elements.end());
  elements.erase(std::unique(elements.begin(), elements.end()), elements.end());
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
    ESP_ASSIGN_OR_RETURN(const Facts facts, gather(elements));
    return lower_facts(elements, facts);
  }
  if (frugal_ && !rough_ && !numbers_only_ && (choices.size() > 1 || choices[0].second)) {
    return fail(error(StatusCode::kResourceExhausted, "{}: too many choices combine",
                      document_.pointer_of(elements[choices[0].first].schema)));
  }
  Conjunction rest = elements;
  if (rough_) {
    // The choice with the most to say stays: the one with the most alternatives.
    const auto size = [&](const std::pair<size_t, bool>& c) {
      const json::value* list = member(elements[c.first], c.second ? "oneOf" : "anyOf");
      return list->is_array() ? list->get_array().size() : 0;
    };
    std::ranges::stable_sort(choices, std::greater(), size);
    for (size_t i = 1; i < choices.size(); ++i) {
      rest[choices[i].first].done |= choices[i].second ? kDoneOneOf : kDoneAnyOf;
      left_out_ = true;
    }
  }
  return choices[0].second ? branch_one_of(rest, choices[0].first)
                           : branch_any_of(rest, choices[0].first);
}

Result<ExprId> SchemaCompiler::branch_any_of(const Conjunction& elements, size_t index) {
  const json::value* list = member(elements[index], "anyOf");
  if (!list->is_array() || list->get_array().empty()) {
    return fail(wrong(elements[index], "anyOf", "an array of schemas"));
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
                              [&](RuleId rule) { return !open_.contains(rule); });
}

// oneOf: each alternative together with the negations of those that it might overlap.
Result<ExprId> SchemaCompiler::branch_one_of(const Conjunction& elements, size_t index) {
  const json::value* list = member(elements[index], "oneOf");
  if (!list->is_array() || list->get_array().empty()) {
    return fail(wrong(elements[index], "oneOf", "an array of schemas"));
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
      if (rough_) {
        left_out_ = true;
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
                              [&](RuleId rule) { return !open_.contains(rule); });
}

// False only where it is plain that no value matches all: types, constants, or a required property
// that cannot be both.
Result<bool> SchemaCompiler::may_match(Conjunction elements, int depth) {
  ESP_RETURN_IF_ERROR(limits_.check_time());
  ESP_ASSIGN_OR_RETURN(const bool possible, settle(elements));
  if (!possible) return false;
  const auto facts = gather(elements);
  if (!facts) return true;
  if (facts->types == 0) return false;
  if (const auto values = allowed_values(*facts)) return !values->empty();
  if (facts->types != kObject || depth > 3) return true;
  for (const std::string& name : facts->required) {
    ESP_ASSIGN_OR_RETURN(Conjunction inner, property_conjunction(elements, name));
    ESP_ASSIGN_OR_RETURN(const bool inner_possible, may_match(std::move(inner), depth + 1));
    if (!inner_possible) return false;
  }
  return true;
}

// The values that all enums and constants share; nothing when there are none of these keywords.
std::optional<std::vector<const json::value*>> SchemaCompiler::allowed_values(
    const Facts& facts) const {
  std::optional<std::vector<const json::value*>> allowed;
  const auto meet = [&](const std::vector<const json::value*>& list) {
    if (!allowed) {
      allowed = list;
      return;
    }
    std::unordered_set<std::string> texts;
    for (const json::value* w : list) texts.insert(canonical_text(*w));
    std::erase_if(*allowed,
                  [&](const json::value* v) { return !texts.contains(canonical_text(*v)); });
  };
  for (const json::value* constant : facts.constants) meet({constant});
  for (const json::value* values : facts.enums) {
    std::vector<const json::value*> list;
    for (const json::value& v : values->get_array()) list.push_back(&v);
    meet(list);
  }
  return allowed;
}

}  // namespace espalier::grammar
