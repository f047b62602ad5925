#include "grammar/schema/keyword_negation.h"

#include <algorithm>
#include <utility>

#include "grammar/schema/keywords.h"

namespace espalier::grammar {

namespace json = boost::json;

json::value NegationBuilder::negated(const json::value& schema) {
  return json::object{{"not", document_.at(schema)}};
}

namespace negation {
namespace {

json::value of_type(std::string_view type,
                    std::initializer_list<std::pair<std::string_view, json::value>> more) {
  json::object out;
  out["type"] = type;
  for (const auto& [key, value] : more) out[key] = value;
  return out;
}

template <typename Fn>
bool each(const json::value& list, Fn fn) {
  if (!list.is_array()) return false;
  for (const json::value& item : list.get_array()) fn(item);
  return true;
}

bool inexpressible(NegationBuilder& out, std::string_view type, std::string_view key) {
  out.add(
      of_type(type, {{kInexpressible, json::value(key)}, {"not", out.document().at(out.whole())}}));
  return true;
}

}  // namespace

bool type(NegationBuilder& out, std::string_view, const json::value& value) {
  std::vector<std::string_view> rest = {"null", "boolean", "number", "string", "array", "object"};
  bool integer_only = false;
  const auto drop = [&](const json::value& type) {
    if (!type.is_string()) return;
    integer_only |= type.get_string() == "integer";
    std::erase(rest, std::string_view(type.get_string()));
  };
  if (value.is_array()) {
    each(value, drop);
  } else {
    drop(value);
  }
  if (integer_only) std::ranges::replace(rest, std::string_view("number"), kFractionType);
  json::array types(rest.begin(), rest.end());
  out.add(json::object{{"type", std::move(types)}});
  return true;
}

bool enum_values(NegationBuilder& out, std::string_view, const json::value& value) {
  if (!value.is_array()) return false;
  out.add(json::object{{kNotEnum, value}});
  return true;
}

bool constant(NegationBuilder& out, std::string_view, const json::value& value) {
  out.add(json::object{{kNotEnum, json::array{value}}});
  return true;
}

bool negated(NegationBuilder& out, std::string_view, const json::value& value) {
  out.add(out.document().at(value));
  return true;
}

bool reference(NegationBuilder& out, std::string_view key, const json::value& value) {
  // With dynamic anchors the target depends on the dynamic scope, which a negation does not keep.
  if (out.document().has_dynamic() || !value.is_string()) return false;
  const auto target = out.document().resolve(&out.whole(), key, value.get_string(), kNoScope);
  if (!target) return false;
  out.add(out.negated(*target->schema));
  return true;
}

bool unavailable(NegationBuilder&, std::string_view, const json::value&) { return false; }

bool multiple_of(NegationBuilder& out, std::string_view, const json::value& value) {
  out.add(of_type("number", {{kNotMultipleOf, value}}));
  return true;
}

bool items(NegationBuilder& out, std::string_view key, const json::value& value) {
  if (value.is_array() || out.schema().contains("prefixItems")) return of_arrays(out, key, value);
  out.add(of_type("array", {{"contains", out.negated(value)}}));
  return true;
}

bool contains(NegationBuilder& out, std::string_view key, const json::value& value) {
  if (out.schema().contains("minContains") || out.schema().contains("maxContains"))
    return of_arrays(out, key, value);
  out.add(of_type("array", {{"items", out.negated(value)}}));
  return true;
}

bool unique_items(NegationBuilder& out, std::string_view key, const json::value& value) {
  return (value.is_bool() && !value.get_bool()) || of_arrays(out, key, value);
}

bool additional(NegationBuilder& out, std::string_view key, const json::value& value) {
  const bool allows_all =
      (value.is_bool() && value.get_bool()) || (value.is_object() && value.get_object().empty());
  if (allows_all) return true;
  return key == "additionalItems" ? of_arrays(out, key, value) : of_objects(out, key, value);
}

bool all_of(NegationBuilder& out, std::string_view, const json::value& value) {
  return each(value, [&](const json::value& s) { out.add(out.negated(s)); });
}

bool any_of(NegationBuilder& out, std::string_view, const json::value& list) {
  json::array all;
  if (!each(list, [&](const json::value& s) { all.push_back(out.negated(s)); })) return false;
  out.add(json::object{{"allOf", std::move(all)}});
  return true;
}

// None of them holds, or two of them do.
bool one_of(NegationBuilder& out, std::string_view key, const json::value& list) {
  constexpr size_t kMost = 8;
  if (!list.is_array() || list.get_array().size() > kMost || !any_of(out, key, list)) return false;
  const json::array& schemas = list.get_array();
  for (size_t i = 0; i < schemas.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      out.add(
          json::object{{"allOf", {out.document().at(schemas[i]), out.document().at(schemas[j])}}});
    }
  }
  return true;
}

bool condition(NegationBuilder& out, std::string_view, const json::value& condition) {
  if (!out.document().has_conditions(&out.whole())) return true;
  if (const json::value* then = out.schema().if_contains("then")) {
    out.add(json::object{{"allOf", {out.document().at(condition), out.negated(*then)}}});
  }
  if (const json::value* otherwise = out.schema().if_contains("else")) {
    out.add(json::object{{"allOf", {out.negated(condition), out.negated(*otherwise)}}});
  }
  return true;
}

bool numeric_bound(NegationBuilder& out, std::string_view key, const json::value& value) {
  constexpr std::pair<std::string_view, std::string_view> kNegations[] = {
      {"minimum", "exclusiveMaximum"},
      {"maximum", "exclusiveMinimum"},
      {"exclusiveMinimum", "maximum"},
      {"exclusiveMaximum", "minimum"}};
  // Draft 4's boolean exclusive forms change what the bound means.
  if (value.is_bool()) return true;
  for (const char* exclusive : {"exclusiveMinimum", "exclusiveMaximum"}) {
    const json::value* beside = out.schema().if_contains(exclusive);
    if (beside != nullptr && beside->is_bool()) return false;
  }
  for (const auto& [bound, negation] : kNegations) {
    if (key == bound) out.add(of_type("number", {{negation, value}}));
  }
  return true;
}

bool count_bound(NegationBuilder& out, std::string_view key, const json::value& value) {
  struct Bound {
    std::string_view key, type, negation;
    int step;
  };
  constexpr Bound kBounds[] = {{"minLength", "string", "maxLength", -1},
                               {"maxLength", "string", "minLength", 1},
                               {"minItems", "array", "maxItems", -1},
                               {"maxItems", "array", "minItems", 1},
                               {"minProperties", "object", "maxProperties", -1},
                               {"maxProperties", "object", "minProperties", 1}};
  if (!value.is_int64()) return false;
  const auto* row = std::ranges::find(kBounds, key, &Bound::key);
  const int64_t bound = value.get_int64() + row->step;
  if (bound >= 0) out.add(of_type(row->type, {{row->negation, bound}}));
  return true;
}

bool pattern(NegationBuilder& out, std::string_view, const json::value& value) {
  out.add(of_type("string", {{kNotPattern, value}}));
  return true;
}

bool format(NegationBuilder& out, std::string_view, const json::value& value) {
  out.add(of_type("string", {{kNotFormat, value}}));
  return true;
}

bool required(NegationBuilder& out, std::string_view, const json::value& names) {
  return each(names, [&](const json::value& name) {
    if (!name.is_string()) return;
    json::object absent;
    absent[name.get_string()] = false;
    out.add(of_type("object", {{"properties", absent}}));
  });
}

bool properties(NegationBuilder& out, std::string_view, const json::value& properties) {
  if (!properties.is_object()) return false;
  for (const auto& [name, schema] : properties.get_object()) {
    json::object wrong;
    wrong[name] = out.negated(schema);
    out.add(of_type("object", {{"properties", wrong}, {"required", json::array{name}}}));
  }
  return true;
}

bool internal(NegationBuilder& out, std::string_view key, const json::value& value) {
  if (key == kNotEnum) out.add(json::object{{"enum", value}});
  if (key == kNotPattern) out.add(of_type("string", {{"pattern", value}}));
  if (key == kNotFormat) out.add(of_type("string", {{"format", value}}));
  if (key == kNotMultipleOf) out.add(of_type("number", {{"multipleOf", value}}));
  return true;
}

bool of_arrays(NegationBuilder& out, std::string_view key, const json::value&) {
  return inexpressible(out, "array", key);
}

bool of_objects(NegationBuilder& out, std::string_view key, const json::value&) {
  return inexpressible(out, "object", key);
}

}  // namespace negation

Result<const json::value*> SchemaDocument::negation(const json::value& schema) {
  const auto known = negations_.find(&schema);
  if (known != negations_.end()) return known->second;
  const json::value* made = nullptr;
  if (schema.is_bool()) {
    made = keep(!schema.get_bool(), &schema);
  } else if (!schema.is_object()) {
    return fail(
        invalid_argument("{}: a schema is an object, or true or false", pointer_of(&schema)));
  } else {
    NegationBuilder builder(*this, schema);
    const bool only_ref = ref_hides_siblings(&schema) && schema.get_object().contains("$ref");
    for (const auto& [key, value] : schema.get_object()) {
      if (only_ref && key != "$ref") continue;
      const Keyword* keyword = find_keyword(key);
      if (keyword == nullptr || keyword->negate == nullptr) continue;
      if (!keyword->negate(builder, key, value)) {
        return fail(error(StatusCode::kUnimplemented,
                          "{}: '{}' is not supported where its negation is needed (not, oneOf, if)",
                          pointer_of(&schema), std::string_view(key)));
      }
    }
    const json::array& any = builder.alternatives();
    made = any.empty() ? keep(false, &schema) : keep(json::object{{"anyOf", any}}, &schema);
  }
  negations_.emplace(&schema, made);
  return made;
}

}  // namespace espalier::grammar
