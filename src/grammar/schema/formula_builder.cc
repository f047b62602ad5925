#include "grammar/schema/formula_builder.h"

#include <algorithm>
#include <utility>

#include "grammar/schema/arrays.h"
#include "grammar/schema/json_values.h"
#include "grammar/schema/keywords.h"
#include "grammar/schema/objects.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr int kElementDepthMax = 60;  // schemas of one value in each other
constexpr size_t kBuiltFormulasMax = 100'000;
constexpr int64_t kCountedMax = 64;  // minProperties, maxProperties

}  // namespace

Result<FormulaBuilder::Id> FormulaBuilder::build_all(const Conjunction& elements, int depth) {
  std::vector<Id> parts;
  for (const Element& element : elements) {
    ESP_ASSIGN_OR_RETURN(const Id part, build(element, depth));
    parts.push_back(part);
  }
  return formulas().all(std::move(parts));
}

Result<FormulaBuilder::Ids> FormulaBuilder::build_list(const Element& element, std::string_view key,
                                                       int depth) {
  const json::value* list = member(element, key);
  if (!list->is_array() || list->get_array().empty())
    return fail(wrong(c_.document(), element, key, "an array of schemas"));
  std::vector<Id> parts;
  for (const json::value& schema : list->get_array()) {
    ESP_ASSIGN_OR_RETURN(const Id part, build({&schema, element.scope, 0}, depth + 1));
    parts.push_back(part);
  }
  return parts;
}

// What an element says of an object. References may come to one by many ways.
Result<FormulaBuilder::Id> FormulaBuilder::build(Element element, int depth) {
  element.schema = c_.document().meant(element.schema);
  element.scope = c_.document().entered(element.scope, element.schema);
  if (const auto known = built_.find(element); known != built_.end()) return known->second;
  ESP_ASSIGN_OR_RETURN(const Id made, build_new(element, depth));
  built_.emplace(element, made);
  return made;
}

Result<FormulaBuilder::Id> FormulaBuilder::build_new(const Element& element, int depth) {
  ESP_RETURN_IF_ERROR(c_.limits().check_time());
  if (depth > kElementDepthMax || formulas().size() > kBuiltFormulasMax)
    return fail(too_large(element));
  if (element.schema->is_bool())
    return element.schema->get_bool() ? Formulas::kTrue : Formulas::kFalse;
  if (!element.schema->is_object()) {
    return fail(invalid_argument("{}: a schema is an object, or true or false",
                                 c_.document().pointer_of(element.schema)));
  }
  std::vector<Id> parts;
  bool alone = false;
  ESP_RETURN_IF_ERROR(build_references(element, depth, parts, alone));
  if (alone) return formulas().all(std::move(parts));
  ESP_RETURN_IF_ERROR(build_applicators(element, depth, parts));
  if (objects_) ESP_RETURN_IF_ERROR(build_dependencies(element, depth, parts));
  ESP_ASSIGN_OR_RETURN(const bool possible, build_assertions(element, parts));
  if (!possible) return Formulas::kFalse;
  ESP_RETURN_IF_ERROR(objects_ ? build_members(element, parts) : build_items(element, parts));
  return formulas().all(std::move(parts));
}

Status FormulaBuilder::build_references(const Element& element, int depth, Ids& parts,
                                        bool& alone) {
  for (const char* keyword : {"$ref", "$dynamicRef", "$recursiveRef"}) {
    const json::value* reference = member(element, keyword);
    if (reference == nullptr) continue;
    alone = c_.document().ref_hides_siblings(element.schema);
    if (element.done & kDoneRef) continue;
    if (!reference->is_string()) return wrong(c_.document(), element, keyword, "a string");
    ESP_ASSIGN_OR_RETURN(
        const auto target,
        c_.document().resolve(element.schema, keyword, reference->get_string(), element.scope));
    ESP_ASSIGN_OR_RETURN(const Id part, build({target.schema, target.scope, 0}, depth + 1));
    parts.push_back(part);
    if (alone) return {};
  }
  return {};
}

Status FormulaBuilder::build_applicators(const Element& element, int depth, Ids& parts) {
  const auto inner = [&](std::string_view key) -> Result<FormulaBuilder::Id> {
    const json::value* schema = member(element, key);
    if (schema == nullptr) return Formulas::kTrue;
    return build({schema, element.scope, 0}, depth + 1);
  };
  if (member(element, "allOf") != nullptr && !(element.done & kDoneAllOf)) {
    ESP_ASSIGN_OR_RETURN(const auto all, build_list(element, "allOf", depth));
    parts.insert(parts.end(), all.begin(), all.end());
  }
  if (member(element, "anyOf") != nullptr && !(element.done & kDoneAnyOf)) {
    ESP_ASSIGN_OR_RETURN(auto any, build_list(element, "anyOf", depth));
    parts.push_back(formulas().any(std::move(any)));
  }
  if (member(element, "oneOf") != nullptr && !(element.done & kDoneOneOf)) {
    ESP_ASSIGN_OR_RETURN(auto one, build_list(element, "oneOf", depth));
    parts.push_back(formulas().one(std::move(one)));
  }
  // A negation that no keyword expresses stands beside its "not".
  const bool negation = member(element, kInexpressible) != nullptr;
  if (member(element, "not") != nullptr && (negation || !(element.done & kDoneNot))) {
    ESP_ASSIGN_OR_RETURN(const Id part, inner("not"));
    parts.push_back(formulas().negated(part));
  }
  if (member(element, "if") != nullptr && c_.document().has_conditions(element.schema) &&
      !(element.done & kDoneIf)) {
    ESP_ASSIGN_OR_RETURN(const Id condition, inner("if"));
    ESP_ASSIGN_OR_RETURN(const Id then, inner("then"));
    ESP_ASSIGN_OR_RETURN(const Id otherwise, inner("else"));
    parts.push_back(formulas().any({formulas().all({condition, then}),
                                    formulas().all({formulas().negated(condition), otherwise})}));
  }
  return {};
}

Status FormulaBuilder::build_dependencies(const Element& element, int depth, Ids& parts) {
  for (const char* key : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const json::value* dependencies = member(element, key);
    if (dependencies == nullptr || (element.done & kDoneDependent)) continue;
    if (!dependencies->is_object()) return wrong(c_.document(), element, key, "an object");
    for (const auto& [name, needed] : dependencies->get_object()) {
      Id then = Formulas::kTrue;
      if (needed.is_string()) {
        then = present(std::string(needed.get_string()));
      } else if (needed.is_array()) {
        std::vector<Id> all;
        for (const json::value& other : needed.get_array()) {
          if (!other.is_string()) return wrong(c_.document(), element, key, "an object of names");
          all.push_back(present(std::string(other.get_string())));
        }
        then = formulas().all(std::move(all));
      } else {
        ESP_ASSIGN_OR_RETURN(then, build({&needed, element.scope, 0}, depth + 1));
      }
      parts.push_back(formulas().any({formulas().negated(present(std::string(name))), then}));
    }
  }
  return {};
}

// False: no object satisfies the element.
Result<bool> FormulaBuilder::build_assertions(const Element& element, Ids& parts) {
  if (const json::value* excluded = member(element, kNotEnum))
    ESP_RETURN_IF_ERROR(build_among(element, excluded->get_array(), true, parts));
  if (!c_.document().asserts(element.schema)) return true;
  if (!(plain_types(c_.document(), {element}) & (objects_ ? kObject : kArray))) return false;
  for (const char* key : {"enum", "const"}) {
    const json::value* values = member(element, key);
    if (values == nullptr || (element.done & kDoneEnum)) continue;
    const bool list = key[0] == 'e';
    if (list && !values->is_array()) return fail(wrong(c_.document(), element, key, "an array"));
    ESP_RETURN_IF_ERROR(
        build_among(element, list ? values->get_array() : json::array{*values}, false, parts));
  }
  if (objects_) ESP_RETURN_IF_ERROR(build_required(element, parts));
  ESP_RETURN_IF_ERROR(build_bounds(element, parts));
  return true;
}

Status FormulaBuilder::build_required(const Element& element, Ids& parts) {
  const json::value* names = member(element, "required");
  if (names == nullptr || names->is_bool()) return {};
  if (!names->is_array()) return wrong(c_.document(), element, "required", "an array of names");
  for (const json::value& name : names->get_array()) {
    if (!name.is_string()) return wrong(c_.document(), element, "required", "an array of names");
    parts.push_back(present(std::string(name.get_string())));
  }
  return {};
}

Status FormulaBuilder::build_bounds(const Element& element, Ids& parts) {
  int64_t least = 0, most = kUnbounded;
  for (const char* key : {"minProperties", "maxProperties", "minItems", "maxItems"}) {
    const json::value* bound = member(element, key);
    if (bound == nullptr) continue;
    const auto count = count_of(*bound);
    if (!count) return wrong(c_.document(), element, key, "a whole number of 0 or more");
    if (objects_ != std::string_view(key).ends_with("Properties")) continue;
    (std::string_view(key).starts_with("min") ? least : most) = *count;
  }
  if (least > kCountedMax || most > kCountedMax) return too_large(element);
  if (least > 0) parts.push_back(at_least(least));
  if (most != kUnbounded) parts.push_back(formulas().negated(at_least(most + 1)));
  return {};
}

Status FormulaBuilder::build_members(const Element& element, Ids& parts) {
  const json::value* unevaluated = member(element, "unevaluatedProperties");
  if (unevaluated != nullptr && !says_nothing(*unevaluated))
    return unsupported(c_.document(), element, "unevaluatedProperties");
  bool members = member(element, "additionalProperties") != nullptr;
  for (const char* key : {"properties", "patternProperties"}) {
    const json::value* own = member(element, key);
    if (own == nullptr) continue;
    if (!own->is_object()) return wrong(c_.document(), element, key, "an object of schemas");
    members = true;
  }
  const json::value* names = member(element, "propertyNames");
  if (!names_.known()) {
    if (members) names_.add_speaker(element);
    if (names != nullptr) names_.add_name_schema({c_.document().meant(names), element.scope, 0});
    return {};
  }
  if (names != nullptr) ESP_RETURN_IF_ERROR(build_names(element, *names, parts));
  return members ? build_values(element, parts) : Status();
}

Status FormulaBuilder::build_items(const Element& element, Ids& parts) {
  const json::value* unevaluated = member(element, "unevaluatedItems");
  if (unevaluated != nullptr && !says_nothing(*unevaluated))
    return unsupported(c_.document(), element, "unevaluatedItems");
  const json::value* unique = member(element, "uniqueItems");
  if (unique != nullptr && unique->is_bool() && unique->get_bool())
    return unsupported(c_.document(), element, "uniqueItems");
  const json::value* contains = member(element, "contains");
  for (const char* key : {"minContains", "maxContains"}) {
    const json::value* bound = member(element, key);
    if (contains != nullptr && bound != nullptr && !(key[1] == 'i' && *bound == 1))
      return unsupported(c_.document(), element, key);
  }
  if (!names_.known()) {
    names_.add_speaker(element);
    return {};
  }
  for (size_t name = 0; name <= names_.size(); ++name) {
    Conjunction rest;
    for (const Element& schema : ArrayCompiler(c_).item_conjunction({element}, name)) {
      if (name < names_.size()) {
        parts.push_back(atoms_.value(name, schema));
      } else if (!says_nothing(*c_.document().meant(schema.schema))) {
        rest.push_back({c_.document().meant(schema.schema), schema.scope, 0});
      }
    }
    if (name == names_.size()) parts.push_back(atoms_.rest({.some = false, .said = {rest}}));
  }
  if (contains == nullptr) return {};
  const Element wanted{c_.document().meant(contains), element.scope, 0};
  std::vector<Id> alternatives = {atoms_.rest({.some = true, .said = {{wanted}}})};
  for (size_t name = 0; name < names_.size(); ++name)
    alternatives.push_back(formulas().all({present(names_[name]), atoms_.value(name, wanted)}));
  parts.push_back(formulas().any(std::move(alternatives)));
  return {};
}

Status FormulaBuilder::build_names(const Element& element, const json::value& names, Ids& parts) {
  const json::value* schema = c_.document().meant(&names);
  for (size_t i = 0; i < names_.size(); ++i) {
    const std::string& name = names_[i];
    ESP_ASSIGN_OR_RETURN(const bool fits,
                         c_.holds(json::string(name), {{schema, element.scope, 0}}));
    if (!fits) parts.push_back(formulas().negated(present(name)));
  }
  static const json::value kNone = false;
  std::vector<Conjunction> rest(names_.classes().size());
  for (size_t k = 0; k < names_.classes().size(); ++k) {
    if (!names_.classes()[k].named.contains(schema)) rest[k].push_back({&kNone, kNoScope, 0});
  }
  parts.push_back(atoms_.rest({.some = false, .said = std::move(rest)}));
  return {};
}

Status FormulaBuilder::build_values(const Element& element, Ids& parts) {
  for (size_t name = 0; name < names_.size(); ++name) {
    ESP_ASSIGN_OR_RETURN(const Conjunction value,
                         ObjectCompiler(c_).property_conjunction({element}, names_[name]));
    for (const Element& schema : value) parts.push_back(atoms_.value(name, schema));
  }
  const json::value* own = member(element, "patternProperties");
  const json::value* additional = member(element, "additionalProperties");
  std::vector<Conjunction> rest(names_.classes().size());
  for (size_t k = 0; k < names_.classes().size(); ++k) {
    bool evaluated = false;
    const auto add = [&](const json::value& schema) {
      if (!says_nothing(*c_.document().meant(&schema)))
        rest[k].push_back({c_.document().meant(&schema), element.scope, 0});
    };
    if (own != nullptr) {
      for (const auto& [pattern, schema] : own->get_object()) {
        if (!names_.classes()[k].patterns.contains(std::string(pattern))) continue;
        add(schema);
        evaluated = true;
      }
    }
    if (!evaluated && additional != nullptr) add(*additional);
  }
  parts.push_back(atoms_.rest({.some = false, .said = std::move(rest)}));
  return {};
}

// The value is one of these objects, or it is none of them.
Status FormulaBuilder::build_among(const Element& element, const json::array& values, bool excluded,
                                   Ids& parts) {
  std::vector<Id> alternatives;
  for (const json::value& v : values) {
    if (v.is_array() && !objects_)
      return unsupported(c_.document(), element, excluded ? "not" : "enum");
    if (is_plain_object(v) && objects_) alternatives.push_back(equal_to(v.get_object()));
  }
  const Id among = formulas().any(std::move(alternatives));
  parts.push_back(excluded ? formulas().negated(among) : among);
  return {};
}

FormulaBuilder::Id FormulaBuilder::equal_to(const json::object& object) {
  static const json::value kNone = false;
  std::vector<Id> parts;
  if (!names_.known()) {
    for (const auto& [name, value] : object) names_.add_needed(std::string(name));
    return Formulas::kTrue;
  }
  for (size_t name = 0; name < names_.size(); ++name) {
    const json::value* value = object.if_contains(names_[name]);
    const Id here = present(names_[name]);
    parts.push_back(value != nullptr ? here : formulas().negated(here));
    if (value == nullptr) continue;
    const json::value* same = c_.document().keep(json::object{{"const", *value}});
    parts.push_back(atoms_.value(name, {same, kNoScope, 0}));
  }
  std::vector<Conjunction> none(names_.classes().size(), {{&kNone, kNoScope, 0}});
  parts.push_back(atoms_.rest({.some = false, .said = std::move(none)}));
  return formulas().all(std::move(parts));
}

FormulaBuilder::Id FormulaBuilder::present(const std::string& name) {
  if (names_.known()) return atoms_.present(names_.index_of(name));
  names_.add_needed(name);
  return Formulas::kTrue;
}

FormulaBuilder::Id FormulaBuilder::at_least(int64_t count) {
  return names_.known() ? atoms_.at_least(count) : atoms_.any();
}

Status FormulaBuilder::too_large(const Element& element) const {
  return error(StatusCode::kResourceExhausted, "{}: too many choices combine",
               c_.document().pointer_of(element.schema));
}

}  // namespace espalier::grammar
