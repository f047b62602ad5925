#include "grammar/json_schema.h"

#include <algorithm>
#include <boost/json.hpp>
#include <set>
#include <utility>

#include "grammar/json_format.h"
#include "grammar/machine.h"
#include "grammar/regular.h"
#include "grammar/schema_compiler.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr size_t kRulesMax = 20'000;
constexpr int kDepthMax = 400;

}  // namespace

Result<ExprId> parse_json_schema(Ir& ir, std::string_view schema, Whitespace whitespace,
                                 const GrammarLimits& limits) {
  ESP_ASSIGN_OR_RETURN(const auto document, SchemaDocument::parse(schema));
  return SchemaCompiler(ir, *document, whitespace, limits).compile();
}

Result<ExprId> SchemaCompiler::compile() { return compile(Conjunction{{&document_.root(), 0}}); }

const json::value* SchemaCompiler::member(const Element& element, std::string_view key) const {
  const json::object* object = element.schema->if_object();
  if (object == nullptr) return nullptr;
  const auto it = object->find(key);
  return it == object->end() ? nullptr : &it->value();
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

Result<ExprId> SchemaCompiler::compile(Conjunction elements) {
  ESP_ASSIGN_OR_RETURN(const bool possible, settle(elements));
  if (!possible) return ir_.never();
  if (elements.empty()) return pieces_.value();
  if (const auto it = rules_.find(elements); it != rules_.end()) return ir_.rule(it->second);
  if (rules_.size() >= kRulesMax || depth_ >= kDepthMax) {
    return fail(
        error(StatusCode::kResourceExhausted,
              "the schema needs more than {} rules or nests deeper than {}: too many of its "
              "choices combine",
              kRulesMax, kDepthMax));
  }
  ESP_RETURN_IF_ERROR(limits_.check_time());
  const RuleId rule = ir_.add_rule(document_.pointer_of(elements[0].schema));
  rules_.emplace(elements, rule);
  ++depth_;
  open_.insert(rule);
  const auto body = lower(elements);
  open_.erase(rule);
  --depth_;
  if (!body) return body;
  ir_.set_body(rule, *body);
  return *body == ir_.never() ? ir_.never() : ir_.rule(rule);
}

Status SchemaCompiler::expand(const Element& element, Conjunction& out) {
  Element rest = element;
  if (const json::value* reference = member(element, "$ref");
      reference != nullptr && !(element.done & kDoneRef)) {
    if (!reference->is_string()) return wrong(element, "$ref", "a string");
    ESP_ASSIGN_OR_RETURN(const json::value* target, document_.resolve(reference->get_string()));
    out.push_back({target, 0});
    if (document_.ref_hides_siblings()) return {};
    rest.done |= kDoneRef;
  }
  if (const json::value* all = member(element, "allOf");
      all != nullptr && !(element.done & kDoneAllOf)) {
    if (!all->is_array()) return wrong(element, "allOf", "an array of schemas");
    for (const json::value& schema : all->get_array()) out.push_back({&schema, 0});
    rest.done |= kDoneAllOf;
  }
  if (const json::value* negated = member(element, "not");
      negated != nullptr && !(element.done & kDoneNot)) {
    ESP_ASSIGN_OR_RETURN(const json::value* opposite, document_.opposite(*negated));
    out.push_back({opposite, 0});
    rest.done |= kDoneNot;
  }
  if (const json::value* condition = member(element, "if");
      condition != nullptr && !(element.done & kDoneIf)) {
    const json::value*& made = derived_[{element.schema, kDoneIf}];
    const json::value* then = member(element, "then");
    const json::value* otherwise = member(element, "else");
    if (made == nullptr && (then != nullptr || otherwise != nullptr)) {
      json::array first = {*condition}, second = {json::object{{"not", *condition}}};
      if (then != nullptr) first.push_back(*then);
      if (otherwise != nullptr) second.push_back(*otherwise);
      made = document_.keep(json::object{
          {"anyOf", {json::object{{"allOf", first}}, json::object{{"allOf", second}}}}});
    }
    if (made != nullptr) out.push_back({made, 0});
    rest.done |= kDoneIf;
  }
  for (const char* key : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const json::value* dependencies = member(element, key);
    if (dependencies == nullptr || (element.done & kDoneDependent)) continue;
    if (!dependencies->is_object()) return wrong(element, key, "an object");
    const json::value*& made = derived_[{dependencies, kDoneDependent}];
    if (made == nullptr) {
      // name -> what must hold where it is present: either it is absent, or that holds. Values that
      // are no objects are free of it.
      json::array all;
      for (const auto& [name, needed] : dependencies->get_object()) {
        json::object absent;
        absent[name] = false;
        const json::value then =
            needed.is_array() ? json::value(json::object{{"required", needed}}) : needed;
        all.push_back(json::object{
            {"anyOf",
             {json::object{{"type", "object"}, {"properties", absent}},
              json::object{
                  {"allOf", {json::object{{"type", "object"}, {"required", {name}}}, then}}},
              json::object{{"type", {"null", "boolean", "number", "string", "array"}}}}}});
      }
      made = document_.keep(json::object{{"allOf", std::move(all)}});
    }
    out.push_back({made, 0});
    rest.done |= kDoneDependent;
  }
  out.push_back(rest);
  return {};
}

Result<bool> SchemaCompiler::settle(Conjunction& elements) {
  Conjunction work = std::move(elements);
  std::set<Element> seen(work.begin(), work.end());
  elements.clear();
  while (!work.empty()) {
    const Element element = work.back();
    work.pop_back();
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
  for (size_t i = 0; i < elements.size(); ++i) {
    if (member(elements[i], "anyOf") != nullptr && !(elements[i].done & kDoneAnyOf)) {
      return branch_any_of(elements, i);
    }
  }
  for (size_t i = 0; i < elements.size(); ++i) {
    if (member(elements[i], "oneOf") != nullptr && !(elements[i].done & kDoneOneOf)) {
      return branch_one_of(elements, i);
    }
  }
  ESP_ASSIGN_OR_RETURN(const Facts facts, gather(elements));
  return lower_facts(elements, facts);
}

Result<ExprId> SchemaCompiler::branch_any_of(const Conjunction& elements, size_t index) {
  const json::value* list = member(elements[index], "anyOf");
  if (!list->is_array() || list->get_array().empty()) {
    return fail(wrong(elements[index], "anyOf", "an array of schemas"));
  }
  Conjunction common = elements;
  common[index].done |= kDoneAnyOf;
  std::vector<ExprId> ways;
  for (const json::value& schema : list->get_array()) {
    Conjunction way = common;
    way.push_back({&schema, 0});
    ESP_ASSIGN_OR_RETURN(const ExprId expr, compile(std::move(way)));
    ways.push_back(expr);
  }
  return ir_.choice(ways);
}

// oneOf: each alternative together with the opposites of those that it might overlap.
Result<ExprId> SchemaCompiler::branch_one_of(const Conjunction& elements, size_t index) {
  const json::value* list = member(elements[index], "oneOf");
  if (!list->is_array() || list->get_array().empty()) {
    return fail(wrong(elements[index], "oneOf", "an array of schemas"));
  }
  Conjunction common = elements;
  common[index].done |= kDoneOneOf;
  const json::array& schemas = list->get_array();
  std::vector<ExprId> ways;
  for (size_t i = 0; i < schemas.size(); ++i) {
    Conjunction way = common;
    way.push_back({&schemas[i], 0});
    for (size_t j = 0; j < schemas.size(); ++j) {
      if (i == j) continue;
      ESP_ASSIGN_OR_RETURN(const bool overlap, may_match({{&schemas[i], 0}, {&schemas[j], 0}}, 0));
      if (!overlap) continue;
      ESP_ASSIGN_OR_RETURN(const json::value* opposite, document_.opposite(schemas[j]));
      way.push_back({opposite, 0});
    }
    ESP_ASSIGN_OR_RETURN(const ExprId expr, compile(std::move(way)));
    ways.push_back(expr);
  }
  return ir_.choice(ways);
}

// False only where it is plain that no value matches all: types, constants, or a required property
// that cannot be both.
Result<bool> SchemaCompiler::may_match(Conjunction elements, int depth) {
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
    std::erase_if(*allowed, [&](const json::value* v) {
      return std::ranges::none_of(list, [&](const json::value* w) { return *v == *w; });
    });
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
