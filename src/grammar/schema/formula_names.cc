#include "grammar/schema/formula_names.h"

#include <algorithm>
#include <map>
#include <utility>

#include "grammar/automata/lexeme.h"
#include "grammar/automata/regular_algebra.h"
#include "grammar/schema/arrays.h"
#include "grammar/schema/keywords.h"
#include "grammar/schema/objects.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr size_t kClassesMax = 64;    // of keys that are not declared
constexpr size_t kPairsMax = 20'000;  // of names and schemas that mention them
constexpr size_t kPositionsMax = 64;  // of items that have a schema of their own

}  // namespace

bool says_nothing(const json::value& schema) {
  if (schema.is_bool()) return schema.get_bool();
  constexpr std::string_view kNotes[] = {"title",   "description", "default",
                                         "example", "examples",    "$comment"};
  return schema.is_object() && std::ranges::all_of(schema.get_object(), [&](const auto& member) {
           return std::ranges::find(kNotes, std::string_view(member.key())) != std::end(kNotes);
         });
}

Status FormulaNames::fix_objects() {
  ESP_RETURN_IF_ERROR(put_in_order());
  ESP_RETURN_IF_ERROR(find_classes());
  known_ = true;
  return {};
}

Status FormulaNames::fix_arrays() {
  ESP_RETURN_IF_ERROR(find_positions());
  classes_ = {{.key = c_.ir().empty(), .patterns = {}, .named = {}}};
  known_ = true;
  return {};
}

size_t FormulaNames::index_of(std::string_view name) const {
  return static_cast<size_t>(std::ranges::find(names_, name) - names_.begin());
}

Status FormulaNames::find_positions() {
  size_t positions = 0;
  for (const Element& speaker : speakers_)
    positions = std::max(positions, prefix_length({speaker}));
  if (positions > kPositionsMax) {
    return error(StatusCode::kResourceExhausted, "{}: too many choices combine",
                 c_.document().pointer_of(speakers_[0].schema));
  }
  for (size_t position = 0; position < positions; ++position)
    names_.push_back(std::to_string(position));
  return {};
}

// Puts the names in the order of the document, then those that are only needed. A schema that has
// them in another order is not supported.
Status FormulaNames::put_in_order() {
  std::ranges::stable_sort(speakers_, {},
                           [&](const Element& e) { return c_.document().position_of(e.schema); });
  std::map<std::string, size_t> order;
  std::set<std::string> patterns;
  for (const Element& speaker : speakers_) {
    if (const json::value* own = member(speaker, "patternProperties")) {
      for (const auto& [pattern, schema] : own->get_object()) patterns.emplace(pattern);
    }
    const json::value* properties = member(speaker, "properties");
    if (properties == nullptr) continue;
    size_t last = 0;
    for (const auto& [name, schema] : properties->get_object()) {
      const auto [it, added] = order.try_emplace(std::string(name), names_.size());
      if (added) names_.emplace_back(name);
      if (it->second < last) return unsupported(c_.document(), speaker, "properties");
      last = it->second;
    }
  }
  for (const std::string& name : needed_) {
    if (order.try_emplace(name, names_.size()).second) names_.push_back(name);
  }
  if (!speakers_.empty()) ESP_RETURN_IF_ERROR(ObjectCompiler(c_).bound_names(speakers_[0], names_));
  if (names_.size() * (speakers_.size() + name_schemas_.size() + 1) > kPairsMax)
    return error(StatusCode::kResourceExhausted, "too many choices combine");
  patterns_.assign(patterns.begin(), patterns.end());
  return {};
}

// Parts classes by a language: keys in it, and keys that are not.
template <typename Mark>
Status FormulaNames::part_by(ExprId language, Mark mark) {
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

Status FormulaNames::find_classes() {
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

}  // namespace espalier::grammar
