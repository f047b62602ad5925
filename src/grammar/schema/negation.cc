// What a schema's negation is, keyword by keyword.
#include <algorithm>
#include <array>
#include <utility>

#include "grammar/schema/document.h"

namespace espalier::grammar {
namespace {

namespace json = boost::json;

// Keywords that say nothing about what is valid.
constexpr std::array<std::string_view, 21> kAnnotations = {
    "title",           "description",      "default",       "examples",    "example",
    "$comment",        "$schema",          "$id",           "id",          "$anchor",
    "$defs",           "definitions",      "readOnly",      "writeOnly",   "deprecated",
    "contentEncoding", "contentMediaType", "contentSchema", "$vocabulary", "$dynamicAnchor",
    "$recursiveAnchor"};

// Keywords of arrays and objects whose negation is not written here.
constexpr std::array<std::string_view, 8> kOfArrays = {
    "items",       "additionalItems", "prefixItems", "contains",
    "minContains", "maxContains",     "uniqueItems", "unevaluatedItems"};
constexpr std::array<std::string_view, 7> kOfObjects = {
    "patternProperties", "propertyNames",    "dependencies",         "additionalProperties",
    "dependentRequired", "dependentSchemas", "unevaluatedProperties"};

json::value type_and(std::string_view type,
                     std::initializer_list<std::pair<std::string_view, json::value>> more) {
  json::object out;
  out["type"] = type;
  for (const auto& [key, value] : more) out[key] = value;
  return out;
}

// The negations of one keyword: a list of schemas any of which makes it fail; nothing when there is
// no such list.
class Opposites {
 public:
  Opposites(SchemaDocument& document, const json::value& schema, std::vector<json::value>& out)
      : document_(document), whole_(schema), schema_(schema.get_object()), out_(out) {}

  // False: this keyword has no negation here.
  bool add(std::string_view key, const json::value& value) {
    if (std::ranges::find(kAnnotations, key) != kAnnotations.end()) return true;
    if (key == "type") return add_type(value);
    if (key == "enum") {
      if (!value.is_array()) return false;
      return out_.push_back(json::object{{kNotEnum, value}}), true;
    }
    if (key == "const") return out_.push_back(json::object{{kNotEnum, json::array{value}}}), true;
    if (key == "not") return out_.push_back(document_.at(value)), true;
    if (key == "$ref") {
      // Where it leads does not depend on the way there, or it has no negation here.
      if (document_.has_dynamic() || !value.is_string()) return false;
      const auto target = document_.resolve(&whole_, key, value.get_string(), kNoScope);
      return target && (out_.push_back(negated(*target->schema)), true);
    }
    if (key == "multipleOf") {
      return out_.push_back(type_and("number", {{kNotMultipleOf, value}})), true;
    }
    if (key == "items" && !value.is_array() && !schema_.contains("prefixItems")) {
      return out_.push_back(type_and("array", {{"contains", negated(value)}})), true;
    }
    if (key == "contains" && !schema_.contains("minContains") && !schema_.contains("maxContains")) {
      return out_.push_back(type_and("array", {{"items", negated(value)}})), true;
    }
    if (key == "then" || key == "else") return true;
    if (key == "uniqueItems" && value.is_bool() && !value.get_bool()) return true;
    if (key == "additionalProperties" || key == "additionalItems") {
      const bool all = (value.is_bool() && value.get_bool()) ||
                       (value.is_object() && value.get_object().empty());
      if (all) return true;
    }
    if (key == "allOf")
      return each(value, [&](const json::value& s) { out_.push_back(negated(s)); });
    if (key == "anyOf") return all_fail(value);
    if (key == "minimum") return number("exclusiveMaximum", value);
    if (key == "maximum") return number("exclusiveMinimum", value);
    if (key == "exclusiveMinimum" && value.is_number()) return number("maximum", value);
    if (key == "exclusiveMaximum" && value.is_number()) return number("minimum", value);
    if (key == "minLength") return count("string", "maxLength", value, -1);
    if (key == "maxLength") return count("string", "minLength", value, 1);
    if (key == "minItems") return count("array", "maxItems", value, -1);
    if (key == "maxItems") return count("array", "minItems", value, 1);
    if (key == "minProperties") return count("object", "maxProperties", value, -1);
    if (key == "maxProperties") return count("object", "minProperties", value, 1);
    if (key == "pattern") return out_.push_back(type_and("string", {{kNotPattern, value}})), true;
    if (key == "format") return out_.push_back(type_and("string", {{kNotFormat, value}})), true;
    if (key == "required") return add_required(value);
    if (key == "properties") return add_properties(value);
    if (key == "oneOf") return add_one_of(value);
    if (key == "if") return !document_.has_conditions(&whole_) || add_if(value);
    if (key == "$dynamicRef" || key == "$recursiveRef") return false;
    // What is wrong with an array or an object in a way that no keyword says matters to those only.
    if (std::ranges::find(kOfArrays, key) != kOfArrays.end()) {
      return out_.push_back(type_and(
                 "array", {{kInexpressible, json::value(key)}, {"not", document_.at(whole_)}})),
             true;
    }
    if (std::ranges::find(kOfObjects, key) != kOfObjects.end()) {
      return out_.push_back(type_and(
                 "object", {{kInexpressible, json::value(key)}, {"not", document_.at(whole_)}})),
             true;
    }
    return true;  // words that are no keywords annotate
  }

 private:
  json::value negated(const json::value& schema) {
    return json::object{{"not", document_.at(schema)}};
  }
  template <typename Fn>
  static bool each(const json::value& list, Fn fn) {
    if (!list.is_array()) return false;
    for (const json::value& item : list.get_array()) fn(item);
    return true;
  }
  bool add_type(const json::value& value) {
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
    out_.push_back(json::object{{"type", std::move(types)}});
    return true;
  }
  bool all_fail(const json::value& list) {
    json::array all;
    if (!each(list, [&](const json::value& s) { all.push_back(negated(s)); })) return false;
    out_.push_back(json::object{{"allOf", std::move(all)}});
    return true;
  }
  // None of them, or two.
  bool add_one_of(const json::value& list) {
    constexpr size_t kMost = 8;
    if (!list.is_array() || list.get_array().size() > kMost || !all_fail(list)) return false;
    const json::array& schemas = list.get_array();
    for (size_t i = 0; i < schemas.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        out_.push_back(
            json::object{{"allOf", {document_.at(schemas[i]), document_.at(schemas[j])}}});
      }
    }
    return true;
  }
  bool add_if(const json::value& condition) {
    if (const json::value* then = schema_.if_contains("then")) {
      out_.push_back(json::object{{"allOf", {document_.at(condition), negated(*then)}}});
    }
    if (const json::value* otherwise = schema_.if_contains("else")) {
      out_.push_back(json::object{{"allOf", {negated(condition), negated(*otherwise)}}});
    }
    return true;
  }
  bool number(std::string_view keyword, const json::value& value) {
    // Draft 4's boolean exclusives change what the bound means.
    for (const char* exclusive : {"exclusiveMinimum", "exclusiveMaximum"}) {
      const auto it = schema_.find(exclusive);
      if (it != schema_.end() && it->value().is_bool()) return false;
    }
    out_.push_back(type_and("number", {{keyword, value}}));
    return true;
  }
  bool count(std::string_view type, std::string_view keyword, const json::value& value, int step) {
    if (!value.is_int64()) return false;
    const int64_t bound = value.get_int64() + step;
    if (bound >= 0) out_.push_back(type_and(type, {{keyword, bound}}));
    return true;
  }
  bool add_required(const json::value& names) {
    return each(names, [&](const json::value& name) {
      if (!name.is_string()) return;
      json::object absent;
      absent[name.get_string()] = false;
      out_.push_back(type_and("object", {{"properties", absent}}));
    });
  }
  bool add_properties(const json::value& properties) {
    if (!properties.is_object()) return false;
    for (const auto& [name, schema] : properties.get_object()) {
      json::object wrong;
      wrong[name] = negated(schema);
      out_.push_back(type_and("object", {{"properties", wrong}, {"required", json::array{name}}}));
    }
    return true;
  }

  SchemaDocument& document_;
  const json::value& whole_;
  const json::object& schema_;
  std::vector<json::value>& out_;
};

}  // namespace

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
    const json::object& object = schema.get_object();
    std::vector<json::value> alternatives;
    Opposites opposites(*this, schema, alternatives);
    const bool only_ref = ref_hides_siblings(&schema) && object.contains("$ref");
    for (const auto& [key, value] : object) {
      if (only_ref && key != "$ref") continue;
      if (!opposites.add(key, value)) {
        return fail(error(StatusCode::kUnimplemented,
                          "{}: '{}' is not supported where its opposite is needed (not, oneOf, if)",
                          pointer_of(&schema), std::string_view(key)));
      }
    }
    json::array any(alternatives.begin(), alternatives.end());
    made =
        any.empty() ? keep(false, &schema) : keep(json::object{{"anyOf", std::move(any)}}, &schema);
  }
  negations_.emplace(&schema, made);
  return made;
}

}  // namespace espalier::grammar
