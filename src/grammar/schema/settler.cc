#include "grammar/schema/settler.h"

#include <algorithm>
#include <set>

#include "grammar/schema/keywords.h"

namespace espalier::grammar {

namespace json = boost::json;

Status ConjunctionSettler::expand_references(const Element& element, Element& rest,
                                             Conjunction& out, bool& alone) {
  for (const char* keyword : {"$ref", "$dynamicRef", "$recursiveRef"}) {
    const json::value* reference = member(element, keyword);
    if (reference == nullptr || (element.done & kDoneRef)) continue;
    if (!reference->is_string()) return wrong(document_, element, keyword, "a string");
    ESP_ASSIGN_OR_RETURN(
        const auto target,
        document_.resolve(element.schema, keyword, reference->get_string(), element.scope));
    out.push_back({document_.meant(target.schema), target.scope, 0});
    alone = document_.ref_hides_siblings(element.schema);
    if (alone) return {};
    rest.done |= kDoneRef;
  }
  return {};
}

Status ConjunctionSettler::expand_negation(const Element& element, Element& rest,
                                           Conjunction& out) {
  // A negation that no keyword expresses stands beside its "not", which the check judges.
  if (member(element, kInexpressible) != nullptr) rest.done |= kDoneNot;
  const json::value* negated = member(element, "not");
  if (negated == nullptr || (rest.done & kDoneNot)) return {};
  ESP_ASSIGN_OR_RETURN(const json::value* negation, document_.negation(*document_.meant(negated)));
  out.push_back({document_.meant(negation), element.scope, 0});
  rest.done |= kDoneNot;
  return {};
}

Status ConjunctionSettler::expand(const Element& element, Mode mode, Conjunction& out,
                                  bool& needs_check) {
  Element rest = element;
  const auto inner = [&](const json::value* schema) {
    return Element{document_.meant(schema), element.scope, 0};
  };
  bool alone = false;
  ESP_RETURN_IF_ERROR(expand_references(element, rest, out, alone));
  if (alone) return {};
  if (const json::value* all = member(element, "allOf");
      all != nullptr && !(element.done & kDoneAllOf)) {
    if (!all->is_array()) return wrong(document_, element, "allOf", "an array of schemas");
    for (const json::value& schema : all->get_array()) out.push_back(inner(&schema));
    rest.done |= kDoneAllOf;
  }
  const bool approximate = mode == Mode::kApproximate;
  if (approximate && (member(element, "not") != nullptr || member(element, "if") != nullptr)) {
    needs_check = true;
    rest.done |= kDoneNot | kDoneIf;
  }
  ESP_RETURN_IF_ERROR(expand_negation(element, rest, out));
  if (!document_.has_conditions(element.schema)) rest.done |= kDoneIf;
  if (member(element, "if") != nullptr && !(rest.done & kDoneIf)) {
    if (const json::value* made = condition(element)) out.push_back(inner(made));
    rest.done |= kDoneIf;
  }
  for (const char* key : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const json::value* dependencies = member(element, key);
    if (dependencies == nullptr || (element.done & kDoneDependent)) continue;
    if (!dependencies->is_object()) return wrong(document_, element, key, "an object");
    needs_check |= approximate;
    if (!approximate) out.push_back(inner(dependency(*dependencies, element)));
    rest.done |= kDoneDependent;
  }
  out.push_back(rest);
  return {};
}

// "if" as a choice: the condition and "then" hold, or its negation and "else" do.
const json::value* ConjunctionSettler::condition(const Element& element) {
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

// For each name: the property is absent, or what depends on it holds. Values that are no objects
// satisfy it.
const json::value* ConjunctionSettler::dependency(const json::value& dependencies,
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

Result<ConjunctionSettler::Outcome> ConjunctionSettler::settle(Conjunction& elements, Mode mode) {
  Outcome outcome;
  Conjunction work = std::move(elements);
  for (Element& element : work) element.schema = document_.meant(element.schema);
  std::set<Element> seen(work.begin(), work.end());
  elements.clear();
  while (!work.empty()) {
    Element element = work.back();
    work.pop_back();
    element.scope = document_.entered(element.scope, element.schema);
    if (element.schema->is_bool()) {
      if (!element.schema->get_bool()) {
        outcome.possible = false;
        return outcome;
      }
      continue;
    }
    if (!element.schema->is_object()) {
      return fail(invalid_argument("{}: a schema is an object, or true or false",
                                   document_.pointer_of(element.schema)));
    }
    Conjunction made;
    ESP_RETURN_IF_ERROR(expand(element, mode, made, outcome.needs_check));
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
  return outcome;
}

Result<Element> ConjunctionSettler::negation_of(const Element& element) {
  const json::value* schema = document_.meant(element.schema);
  const auto known = document_.negation(*schema);
  if (known) return Element{*known, element.scope, 0};
  if (known.error().code() == StatusCode::kInvalidArgument) return fail(known.error());
  const json::value*& made = derived_[{schema, kDoneNot}];
  if (made == nullptr) made = document_.keep(json::object{{"not", document_.at(*schema)}}, schema);
  return Element{made, element.scope, 0};
}

}  // namespace espalier::grammar
