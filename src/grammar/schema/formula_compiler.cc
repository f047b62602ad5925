// Objects and arrays whose choices combine (oneOf of overlapping ones, negations): what must hold
// is one formula over what properties or items say, and a state of the graph is what is left of the
// formula once some of them have come. From each state that stays a right end can be reached.
#include "grammar/schema/formula_compiler.h"

#include <algorithm>
#include <boost/json.hpp>
#include <map>
#include <set>
#include <utility>

#include "grammar/automata/lexeme.h"
#include "grammar/automata/regular_algebra.h"
#include "grammar/schema/arrays.h"
#include "grammar/schema/compiler.h"
#include "grammar/schema/formula.h"
#include "grammar/schema/json_values.h"
#include "grammar/schema/keywords.h"
#include "grammar/schema/objects.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr int kDepthMax = 60;  // schemas of one value in each other
constexpr size_t kStatesMax = 4000, kEdgesMax = 12'000, kFormulasMax = 100'000;
constexpr size_t kClassesMax = 64;    // of keys that are not declared
constexpr size_t kPairsMax = 20'000;  // of names and schemas that speak of them
constexpr size_t kPlacesMax = 64;     // of items that have a schema of their own
constexpr int64_t kCountedMax = 64;   // minProperties, maxProperties

// Whether it holds of every value, plainly.
bool says_nothing(const json::value& schema) {
  if (schema.is_bool()) return schema.get_bool();
  constexpr std::string_view kNotes[] = {"title",   "description", "default",
                                         "example", "examples",    "$comment"};
  return schema.is_object() && std::ranges::all_of(schema.get_object(), [&](const auto& member) {
           return std::ranges::find(kNotes, std::string_view(member.key())) != std::end(kNotes);
         });
}

}  // namespace

class FormulaCompiler::Impl {
 public:
  Impl(SchemaCompiler& compiler, Of of) : c_(compiler), objects_(of == Of::kObjects) {}

  // Those that satisfy all elements. kUnimplemented, kResourceExhausted: not in this way.
  Result<ExprId> lower(const Conjunction& elements) {
    if (const auto named = build_all(elements, 0); !named) return fail(named.error());
    formulas_ = Formulas();
    num_atoms_ = 0;
    built_.clear();
    ESP_RETURN_IF_ERROR(objects_ ? put_in_order() : find_places());
    for (size_t i = 0; i < names_.size(); ++i) presents_.push_back(new_atom());
    if (objects_) {
      ESP_RETURN_IF_ERROR(find_classes());
    } else {
      classes_ = {{.key = c_.ir().empty(), .patterns = {}, .named = {}}};
    }
    known_ = true;
    ESP_ASSIGN_OR_RETURN(const Id whole, build_all(elements, 0));
    const bool counts = !counts_.empty();
    const bool wary = std::ranges::any_of(
        rests_, [&](const auto& rest) { return !formulas_.only_wants(whole, rest.first); });
    // A key that is not declared may come twice, and then counts once.
    judged_ = objects_ && !classes_.empty() && (counts || wary);
    ESP_RETURN_IF_ERROR(make_graph(whole));
    if (judged_ && repeats_) c_.require_check();
    std::vector<ExprId> alternatives;
    const ExprId space = c_.syntax().space_inside();
    if (holds_of_rest(absent(whole, 0))) alternatives.push_back(space);
    if (!graph_.finals.empty())
      alternatives.push_back(c_.ir().sequence({space, c_.ir().graph(std::move(graph_)), space}));
    return c_.ir().sequence({c_.ir().literal(objects_ ? "{" : "["), c_.ir().choice(alternatives),
                             c_.ir().literal(objects_ ? "}" : "]")});
  }

 private:
  using Id = Formulas::Id;
  // What the keys of a kind, none of them declared, have in common.
  struct KeyClass {
    ExprId key = 0;
    std::set<std::string> patterns;      // those that they match
    std::set<const json::value*> named;  // schemas of propertyNames that they satisfy
  };
  struct Value {
    size_t name = 0;
    Element schema;
  };
  // What is said of the items or properties that have no place: all satisfy it, or some does.
  struct Rest {
    bool some = false;
    std::vector<Conjunction> said;  // [class]
    friend auto operator<=>(const Rest&, const Rest&) = default;
  };
  struct State {
    size_t place = 0;
    bool any = false;  // property so far
    int64_t count = 0;
    Id left = 0;
    friend auto operator<=>(const State&, const State&) = default;
  };

  Status too_large(const Element& element) const {
    return error(StatusCode::kResourceExhausted, "{}: too many choices combine",
                 c_.document().pointer_of(element.schema));
  }

  Result<Id> build_all(const Conjunction& elements, int depth) {
    std::vector<Id> parts;
    for (const Element& element : elements) {
      ESP_ASSIGN_OR_RETURN(const Id part, build(element, depth));
      parts.push_back(part);
    }
    return formulas_.all(std::move(parts));
  }

  Result<std::vector<Id>> build_list(const Element& element, std::string_view key, int depth) {
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
  Result<Id> build(Element element, int depth) {
    element.schema = c_.document().meant(element.schema);
    element.scope = c_.document().entered(element.scope, element.schema);
    if (const auto known = built_.find(element); known != built_.end()) return known->second;
    ESP_ASSIGN_OR_RETURN(const Id made, build_new(element, depth));
    built_.emplace(element, made);
    return made;
  }

  Result<Id> build_new(const Element& element, int depth) {
    ESP_RETURN_IF_ERROR(c_.limits().check_time());
    if (depth > kDepthMax || formulas_.size() > kFormulasMax) return fail(too_large(element));
    if (element.schema->is_bool())
      return element.schema->get_bool() ? Formulas::kTrue : Formulas::kFalse;
    if (!element.schema->is_object()) {
      return fail(invalid_argument("{}: a schema is an object, or true or false",
                                   c_.document().pointer_of(element.schema)));
    }
    std::vector<Id> parts;
    bool alone = false;
    ESP_RETURN_IF_ERROR(build_references(element, depth, parts, alone));
    if (alone) return formulas_.all(std::move(parts));
    ESP_RETURN_IF_ERROR(build_applicators(element, depth, parts));
    if (objects_) ESP_RETURN_IF_ERROR(build_dependencies(element, depth, parts));
    ESP_ASSIGN_OR_RETURN(const bool possible, build_assertions(element, parts));
    if (!possible) return Formulas::kFalse;
    ESP_RETURN_IF_ERROR(objects_ ? build_members(element, parts) : build_items(element, parts));
    return formulas_.all(std::move(parts));
  }

  Status build_references(const Element& element, int depth, std::vector<Id>& parts, bool& alone) {
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

  Status build_applicators(const Element& element, int depth, std::vector<Id>& parts) {
    const auto inner = [&](std::string_view key) -> Result<Id> {
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
      parts.push_back(formulas_.any(std::move(any)));
    }
    if (member(element, "oneOf") != nullptr && !(element.done & kDoneOneOf)) {
      ESP_ASSIGN_OR_RETURN(auto one, build_list(element, "oneOf", depth));
      parts.push_back(formulas_.one(std::move(one)));
    }
    // A negation that no keyword expresses stands beside its "not".
    const bool negation = member(element, kInexpressible) != nullptr;
    if (member(element, "not") != nullptr && (negation || !(element.done & kDoneNot))) {
      ESP_ASSIGN_OR_RETURN(const Id part, inner("not"));
      parts.push_back(formulas_.negated(part));
    }
    if (member(element, "if") != nullptr && c_.document().has_conditions(element.schema) &&
        !(element.done & kDoneIf)) {
      ESP_ASSIGN_OR_RETURN(const Id condition, inner("if"));
      ESP_ASSIGN_OR_RETURN(const Id then, inner("then"));
      ESP_ASSIGN_OR_RETURN(const Id otherwise, inner("else"));
      parts.push_back(formulas_.any({formulas_.all({condition, then}),
                                     formulas_.all({formulas_.negated(condition), otherwise})}));
    }
    return {};
  }

  Status build_dependencies(const Element& element, int depth, std::vector<Id>& parts) {
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
          then = formulas_.all(std::move(all));
        } else {
          ESP_ASSIGN_OR_RETURN(then, build({&needed, element.scope, 0}, depth + 1));
        }
        parts.push_back(formulas_.any({formulas_.negated(present(std::string(name))), then}));
      }
    }
    return {};
  }

  // False: no object satisfies the element.
  Result<bool> build_assertions(const Element& element, std::vector<Id>& parts) {
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
    if (const json::value* names = member(element, "required"); objects_ && names != nullptr) {
      if (names->is_array()) {
        for (const json::value& name : names->get_array()) {
          if (!name.is_string())
            return fail(wrong(c_.document(), element, "required", "an array of names"));
          parts.push_back(present(std::string(name.get_string())));
        }
      } else if (!names->is_bool()) {
        return fail(wrong(c_.document(), element, "required", "an array of names"));
      }
    }
    int64_t least = 0, most = kUnbounded;
    for (const char* key : {"minProperties", "maxProperties", "minItems", "maxItems"}) {
      const json::value* bound = member(element, key);
      if (bound == nullptr) continue;
      const auto count = count_of(*bound);
      if (!count) return fail(wrong(c_.document(), element, key, "a whole number of 0 or more"));
      if (objects_ != std::string_view(key).ends_with("Properties")) continue;
      (std::string_view(key).starts_with("min") ? least : most) = *count;
    }
    if (least > kCountedMax || most > kCountedMax) return fail(too_large(element));
    if (least > 0) parts.push_back(at_least(least));
    if (most != kUnbounded) parts.push_back(formulas_.negated(at_least(most + 1)));
    return true;
  }

  Status build_members(const Element& element, std::vector<Id>& parts) {
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
    if (!known_) {
      if (members) speakers_.push_back(element);
      if (names != nullptr) name_schemas_.insert({c_.document().meant(names), element.scope, 0});
      return {};
    }
    if (names != nullptr) ESP_RETURN_IF_ERROR(build_names(element, *names, parts));
    return members ? build_values(element, parts) : Status();
  }

  Status build_items(const Element& element, std::vector<Id>& parts) {
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
    if (!known_) {
      speakers_.push_back(element);
      return {};
    }
    for (size_t place = 0; place <= names_.size(); ++place) {
      Conjunction rest;
      for (const Element& schema : ArrayCompiler(c_).item_conjunction({element}, place)) {
        if (place < names_.size()) {
          parts.push_back(value_atom(place, schema));
        } else if (!says_nothing(*c_.document().meant(schema.schema))) {
          rest.push_back({c_.document().meant(schema.schema), schema.scope, 0});
        }
      }
      if (place == names_.size()) parts.push_back(rest_atom({.some = false, .said = {rest}}));
    }
    if (contains == nullptr) return {};
    const Element wanted{c_.document().meant(contains), element.scope, 0};
    std::vector<Id> alternatives = {rest_atom({.some = true, .said = {{wanted}}})};
    for (size_t place = 0; place < names_.size(); ++place)
      alternatives.push_back(formulas_.all({present(names_[place]), value_atom(place, wanted)}));
    parts.push_back(formulas_.any(std::move(alternatives)));
    return {};
  }

  Status build_names(const Element& element, const json::value& names, std::vector<Id>& parts) {
    const json::value* schema = c_.document().meant(&names);
    for (const std::string& name : names_) {
      ESP_ASSIGN_OR_RETURN(const bool fits,
                           c_.holds(json::string(name), {{schema, element.scope, 0}}));
      if (!fits) parts.push_back(formulas_.negated(present(name)));
    }
    static const json::value kNone = false;
    std::vector<Conjunction> rest(classes_.size());
    for (size_t k = 0; k < classes_.size(); ++k) {
      if (!classes_[k].named.contains(schema)) rest[k].push_back({&kNone, kNoScope, 0});
    }
    parts.push_back(rest_atom({.some = false, .said = std::move(rest)}));
    return {};
  }

  Status build_values(const Element& element, std::vector<Id>& parts) {
    for (size_t name = 0; name < names_.size(); ++name) {
      ESP_ASSIGN_OR_RETURN(const Conjunction value,
                           ObjectCompiler(c_).property_conjunction({element}, names_[name]));
      for (const Element& schema : value) parts.push_back(value_atom(name, schema));
    }
    const json::value* own = member(element, "patternProperties");
    const json::value* additional = member(element, "additionalProperties");
    std::vector<Conjunction> rest(classes_.size());
    for (size_t k = 0; k < classes_.size(); ++k) {
      bool evaluated = false;
      const auto add = [&](const json::value& schema) {
        if (!says_nothing(*c_.document().meant(&schema)))
          rest[k].push_back({c_.document().meant(&schema), element.scope, 0});
      };
      if (own != nullptr) {
        for (const auto& [pattern, schema] : own->get_object()) {
          if (!classes_[k].patterns.contains(std::string(pattern))) continue;
          add(schema);
          evaluated = true;
        }
      }
      if (!evaluated && additional != nullptr) add(*additional);
    }
    parts.push_back(rest_atom({.some = false, .said = std::move(rest)}));
    return {};
  }

  // The value is one of these objects, or it is none of them.
  Status build_among(const Element& element, const json::array& values, bool excluded,
                     std::vector<Id>& parts) {
    std::vector<Id> alternatives;
    for (const json::value& v : values) {
      if (v.is_array() && !objects_)
        return unsupported(c_.document(), element, excluded ? "not" : "enum");
      if (is_plain_object(v) && objects_) alternatives.push_back(equal_to(v.get_object()));
    }
    const Id among = formulas_.any(std::move(alternatives));
    parts.push_back(excluded ? formulas_.negated(among) : among);
    return {};
  }
  Id equal_to(const json::object& object) {
    static const json::value kNone = false;
    std::vector<Id> parts;
    if (!known_) {
      for (const auto& [name, value] : object) needed_.emplace(name);
      return Formulas::kTrue;
    }
    for (size_t name = 0; name < names_.size(); ++name) {
      const json::value* value = object.if_contains(names_[name]);
      const Id here = present(names_[name]);
      parts.push_back(value != nullptr ? here : formulas_.negated(here));
      if (value == nullptr) continue;
      const json::value* same = c_.document().keep(json::object{{"const", *value}});
      parts.push_back(value_atom(name, {same, kNoScope, 0}));
    }
    std::vector<Conjunction> none(classes_.size(), {{&kNone, kNoScope, 0}});
    parts.push_back(rest_atom({.some = false, .said = std::move(none)}));
    return formulas_.all(std::move(parts));
  }

  uint32_t new_atom() { return num_atoms_++; }

  Id present(const std::string& name) {
    if (!known_) {
      needed_.insert(name);
      return Formulas::kTrue;
    }
    return formulas_.atom(
        presents_[static_cast<size_t>(std::ranges::find(names_, name) - names_.begin())]);
  }

  Id at_least(int64_t count) {
    if (!known_) return formulas_.atom(new_atom());
    const auto it = counts_.find(count);
    if (it != counts_.end()) return formulas_.atom(it->second);
    return formulas_.atom(counts_[count] = new_atom());
  }

  // The property is absent, or its value satisfies the schema.
  Id value_atom(size_t name, Element schema) {
    schema.schema = c_.document().meant(schema.schema);
    if (says_nothing(*schema.schema)) return Formulas::kTrue;
    if (schema.schema->is_bool()) return formulas_.negated(present(names_[name]));
    // The same text says the same, unless it names what lies elsewhere.
    std::string text = json::serialize(*schema.schema);
    if (text.find("\"$") != std::string::npos || text.find("\"id\"") != std::string::npos ||
        text.find("\\u0001") != std::string::npos) {
      text = std::to_string(reinterpret_cast<uintptr_t>(schema.schema)) + " " +
             std::to_string(schema.scope);
    }
    const auto [it, added] = value_index_.try_emplace({name, text}, num_atoms_);
    if (added) values_.emplace(new_atom(), Value{name, schema});
    return formulas_.atom(it->second);
  }

  Id rest_atom(Rest rest) {
    const auto empty = [](const Conjunction& c) { return c.empty(); };
    if (!rest.some && std::ranges::all_of(rest.said, empty)) return Formulas::kTrue;
    for (Conjunction& conjunction : rest.said) std::ranges::sort(conjunction);
    const auto [it, added] = rest_index_.try_emplace(rest, num_atoms_);
    if (added) rests_.emplace(new_atom(), std::move(rest));
    return formulas_.atom(it->second);
  }

  Status find_places() {
    size_t places = 0;
    for (const Element& speaker : speakers_) places = std::max(places, prefix_length({speaker}));
    if (places > kPlacesMax) return too_large(speakers_[0]);
    for (size_t place = 0; place < places; ++place) names_.push_back(std::to_string(place));
    return {};
  }

  // Names in the order of the document, then those that are only needed. No schema that speaks of
  // them may have them in another order.
  Status put_in_order() {
    std::ranges::stable_sort(speakers_, {},
                             [&](const Element& e) { return c_.document().position_of(e.schema); });
    std::map<std::string, size_t> places;
    std::set<std::string> patterns;
    for (const Element& speaker : speakers_) {
      if (const json::value* own = member(speaker, "patternProperties")) {
        for (const auto& [pattern, schema] : own->get_object()) patterns.emplace(pattern);
      }
      const json::value* properties = member(speaker, "properties");
      if (properties == nullptr) continue;
      size_t last = 0;
      for (const auto& [name, schema] : properties->get_object()) {
        const auto [it, added] = places.try_emplace(std::string(name), names_.size());
        if (added) names_.emplace_back(name);
        if (it->second < last) return unsupported(c_.document(), speaker, "properties");
        last = it->second;
      }
    }
    for (const std::string& name : needed_) {
      if (places.try_emplace(name, names_.size()).second) names_.push_back(name);
    }
    if (!speakers_.empty())
      ESP_RETURN_IF_ERROR(ObjectCompiler(c_).bound_names(speakers_[0], names_));
    if (names_.size() * (speakers_.size() + name_schemas_.size() + 1) > kPairsMax)
      return error(StatusCode::kResourceExhausted, "too many choices combine");
    patterns_.assign(patterns.begin(), patterns.end());
    return {};
  }

  // Parts classes by a language: keys in it, and keys that are not.
  template <typename Mark>
  Status part_by(ExprId language, Mark mark) {
    std::vector<KeyClass> parted;
    for (const KeyClass& one : classes_) {
      KeyClass in = one, out = one;
      ESP_ASSIGN_OR_RETURN(in.key, intersection(c_.ir(), one.key, language, c_.limits()));
      ESP_ASSIGN_OR_RETURN(out.key, difference(c_.ir(), one.key, language, c_.limits()));
      mark(in);
      for (KeyClass* part : {&in, &out}) {
        if (part->key != c_.ir().never()) parted.push_back(std::move(*part));
      }
    }
    classes_ = std::move(parted);
    return classes_.size() > kClassesMax
               ? error(StatusCode::kResourceExhausted, "too many patterns of names overlap")
               : Status();
  }

  Status find_classes() {
    std::vector<std::string> literals;
    for (const std::string& name : names_) literals.push_back(json::serialize(json::string(name)));
    classes_ = {{.key = other_keys(c_.ir(), literals), .patterns = {}, .named = {}}};
    for (const std::string& pattern : patterns_) {
      ESP_ASSIGN_OR_RETURN(const ExprId written, c_.patterns().quoted_strings(pattern));
      ESP_ASSIGN_OR_RETURN(const ExprId language, c_.patterns().deterministic(written));
      ESP_RETURN_IF_ERROR(part_by(language, [&](KeyClass& in) { in.patterns.insert(pattern); }));
    }
    for (const Element& names : name_schemas_) {
      static const json::value kStrings = json::object{{"type", "string"}};
      const auto allowed = c_.compile_uncounted({names, {&kStrings, kNoScope, 0}});
      if (!allowed) return allowed.error();
      ESP_RETURN_IF_ERROR(c_.require_regular(names, "propertyNames", *allowed));
      ESP_RETURN_IF_ERROR(part_by(*allowed, [&](KeyClass& in) { in.named.insert(names.schema); }));
    }
    for (KeyClass& one : classes_) one.key = ObjectCompiler(c_).own_rule(one.key, "other key");
    return {};
  }

  // Without the properties from `place` on.
  Id absent(Id left, size_t place) {
    for (; place < names_.size(); ++place) left = without(left, place);
    return left;
  }
  Id without(Id left, size_t place) {
    left = formulas_.settled(left, presents_[place], false);
    for (const uint32_t atom : std::vector<uint32_t>(formulas_.atoms(left))) {
      const auto it = values_.find(atom);
      if (it != values_.end() && it->second.name == place)
        left = formulas_.settled(left, atom, true);
    }
    return left;
  }
  bool holds_of_rest(Id left) {
    for (const auto& [atom, rest] : rests_) left = formulas_.settled(left, atom, !rest.some);
    for (const auto& [count, atom] : counts_) left = formulas_.settled(left, atom, false);
    return left == Formulas::kTrue;
  }

  uint32_t state(State s) {
    const bool counted = std::ranges::any_of(
        counts_, [&](const auto& count) { return formulas_.mentions(s.left, count.second); });
    if (!counted) s.count = 0;
    const auto [it, added] = index_.try_emplace(s, static_cast<uint32_t>(states_.size()));
    if (added) states_.push_back(s);
    return it->second;
  }

  // The state behind one more property.
  uint32_t behind(const State& from, size_t place, Id left) {
    State to{place, true, from.count + 1, left};
    const auto it = counts_.find(to.count);
    if (it != counts_.end()) to.left = formulas_.settled(left, it->second, true);
    return to.left == Formulas::kFalse ? kNowhere : state(to);
  }

  Status make_graph(Id whole) {
    if (whole == Formulas::kFalse) return {};
    state({0, false, 0, whole});
    for (uint32_t at = 0; at < states_.size(); ++at) {
      ESP_RETURN_IF_ERROR(c_.limits().check_time());
      const State from = states_[at];
      if (states_.size() > kStatesMax || graph_.edges.size() > kEdgesMax ||
          formulas_.size() > kFormulasMax) {
        return error(StatusCode::kResourceExhausted, "too many choices combine");
      }
      // An array may end anywhere; of an object all names have had their turn.
      const bool may_end = from.any && (!objects_ || from.place == names_.size());
      if (may_end && holds_of_rest(absent(from.left, from.place))) graph_.finals.push_back(at);
      if (from.place < names_.size()) {
        const Id left = objects_ ? without(from.left, from.place) : Formulas::kFalse;
        if (left != Formulas::kFalse) {
          graph_.edges.push_back(
              {at, c_.ir().empty(), state({from.place + 1, from.any, from.count, left})});
        }
        ESP_RETURN_IF_ERROR(
            take(at, formulas_.settled(from.left, presents_[from.place], true), {}));
        continue;
      }
      for (size_t k = 0; k < classes_.size(); ++k) {
        std::vector<uint32_t> open;
        for (const uint32_t atom : formulas_.atoms(from.left)) {
          const auto it = rests_.find(atom);
          if (it != rests_.end() && !it->second.said[k].empty()) open.push_back(atom);
        }
        ESP_RETURN_IF_ERROR(take_other(at, k, from.left, open, {}));
      }
    }
    graph_.num_states = static_cast<uint32_t>(states_.size());
    return {};
  }

  // Edges for the property whose turn it is: for each way that what is left depends on its value.
  Status take(uint32_t at, Id left, Conjunction value) {
    if (left == Formulas::kFalse) return {};
    const State from = states_[at];
    for (const uint32_t atom : std::vector<uint32_t>(formulas_.atoms(left))) {
      const auto it = values_.find(atom);
      if (it == values_.end() || it->second.name != from.place) continue;
      Conjunction with = value;
      with.push_back(it->second.schema);
      ESP_RETURN_IF_ERROR(
          possible(with, [&] { return take(at, formulas_.settled(left, atom, true), with); }));
      const Id otherwise = formulas_.settled(left, atom, false);
      if (otherwise == Formulas::kFalse) return {};
      if (!formulas_.only_wants(left, atom)) {
        ESP_ASSIGN_OR_RETURN(const Element wrong, c_.settler().negation_of(it->second.schema));
        value.push_back(wrong);
      }
      return possible(value, [&] { return take(at, otherwise, value); });
    }
    const uint32_t to = behind(from, from.place + 1, left);
    return to == kNowhere ? Status() : add_edge(at, key_of(from.place), std::move(value), to);
  }

  // The same for a key of a class; `open`: atoms that its value may settle.
  Status take_other(uint32_t at, size_t k, Id left, std::vector<uint32_t> open,
                    const Conjunction& value) {
    if (left == Formulas::kFalse) return {};
    while (!open.empty() && !formulas_.mentions(left, open.back())) open.pop_back();
    if (open.empty()) {
      const uint32_t to = behind(states_[at], names_.size(), left);
      if (to == kNowhere) return {};
      repeats_ |= states_[at].any;
      const ExprId key =
          objects_ ? c_.ir().sequence({classes_[k].key, c_.syntax().colon()}) : c_.ir().empty();
      return add_edge(at, key, value, to);
    }
    const uint32_t atom = open.back();
    open.pop_back();
    const Rest& rest = rests_.at(atom);
    const Conjunction& said = rest.said[k];
    Conjunction with = value;
    with.insert(with.end(), said.begin(), said.end());
    const Id met = rest.some ? formulas_.settled(left, atom, true) : left;
    ESP_RETURN_IF_ERROR(possible(with, [&] { return take_other(at, k, met, open, with); }));
    const Id otherwise = rest.some ? left : formulas_.settled(left, atom, false);
    if (otherwise == Formulas::kFalse) return {};
    if (formulas_.only_wants(left, atom)) return take_other(at, k, otherwise, open, value);
    for (const Element& schema : said) {
      ESP_ASSIGN_OR_RETURN(const Element wrong, c_.settler().negation_of(schema));
      Conjunction against = value;
      against.push_back(wrong);
      ESP_RETURN_IF_ERROR(
          possible(against, [&] { return take_other(at, k, otherwise, open, against); }));
    }
    return {};
  }

  // What follows, unless it is plain that no value satisfies the conjunction.
  template <typename Then>
  Status possible(const Conjunction& value, Then then) {
    if (graph_.edges.size() > kEdgesMax || !c_.spend_formula_step())
      return error(StatusCode::kResourceExhausted, "too many choices combine");
    ESP_ASSIGN_OR_RETURN(const bool may, c_.may_match(value, 0));
    return may ? then() : Status();
  }

  ExprId key_of(size_t place) {
    return objects_ ? c_.ir().sequence({quoted(c_.ir(), names_[place]), c_.syntax().colon()})
                    : c_.ir().empty();
  }

  Status add_edge(uint32_t at, ExprId key, Conjunction value, uint32_t to) {
    ESP_ASSIGN_OR_RETURN(const ExprId expr, c_.compile(std::move(value)));
    if (expr == c_.ir().never()) return {};
    const ExprId pair = c_.ir().sequence({key, expr});
    graph_.edges.push_back({at, states_[at].any ? c_.ir().sequence({comma(), pair}) : pair, to});
    return {};
  }

  ExprId comma() {
    return judged_ ? c_.ir().sequence({c_.syntax().space_inside(), c_.syntax().comma()})
                   : c_.syntax().comma();
  }

  static constexpr uint32_t kNowhere = ~uint32_t{0};

  SchemaCompiler& c_;
  const bool objects_;
  Formulas formulas_;
  uint32_t num_atoms_ = 0;
  bool known_ = false;  // names and classes
  std::map<Element, Id> built_;
  std::vector<Element> speakers_;
  std::set<Element> name_schemas_;
  std::set<std::string> needed_;
  std::vector<std::string> names_, patterns_;
  std::vector<KeyClass> classes_;
  std::vector<uint32_t> presents_;    // [name] its atom
  std::map<uint32_t, Value> values_;  // by atom
  std::map<std::pair<size_t, std::string>, uint32_t> value_index_;
  std::map<uint32_t, Rest> rests_;  // by atom: what is said of each class
  std::map<Rest, uint32_t> rest_index_;
  std::map<int64_t, uint32_t> counts_;  // at least so many: its atom
  std::map<State, uint32_t> index_;
  std::vector<State> states_;
  Ir::Graph graph_;
  bool judged_ = false, repeats_ = false;
};

Result<ExprId> FormulaCompiler::lower(const Conjunction& elements) {
  return Impl(compiler_, of_).lower(elements);
}

}  // namespace espalier::grammar
