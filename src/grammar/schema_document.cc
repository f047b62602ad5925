#include "grammar/schema_document.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

namespace espalier::grammar {
namespace {

namespace json = boost::json;

constexpr int kDepthMax = 500;
constexpr size_t kTextBytesMax = 16u << 20;

std::string escaped(std::string_view key) {
  std::string out;
  for (char c : key) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

std::string percent_decoded(std::string_view text) {
  const auto hex = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
      out += static_cast<char>(hex(text[i + 1]) * 16 + hex(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// Keywords that say nothing about what is valid.
constexpr std::array<std::string_view, 17> kAnnotations = {
    "title",    "description", "default",    "examples",        "example",         "$comment",
    "$schema",  "$id",         "id",         "$anchor",         "$defs",           "definitions",
    "readOnly", "writeOnly",   "deprecated", "contentEncoding", "contentMediaType"};

// Keywords that assert something and whose opposite is not written here.
constexpr std::array<std::string_view, 22> kOtherKeywords = {"items",
                                                             "additionalItems",
                                                             "prefixItems",
                                                             "contains",
                                                             "minContains",
                                                             "maxContains",
                                                             "uniqueItems",
                                                             "patternProperties",
                                                             "propertyNames",
                                                             "dependencies",
                                                             "additionalProperties",
                                                             "dependentRequired",
                                                             "oneOf",
                                                             "dependentSchemas",
                                                             "unevaluatedProperties",
                                                             "unevaluatedItems",
                                                             "if",
                                                             "then",
                                                             "else",
                                                             "multipleOf",
                                                             "$dynamicRef",
                                                             "$recursiveRef"};

json::value type_and(std::string_view type,
                     std::initializer_list<std::pair<std::string_view, json::value>> more) {
  json::object out;
  out["type"] = type;
  for (const auto& [key, value] : more) out[key] = value;
  return out;
}

json::value negated(const json::value& schema) { return json::object{{"not", schema}}; }

// The opposites of one keyword: a list of schemas any of which makes it fail; nothing when there is
// no such list.
class Opposites {
 public:
  Opposites(const json::object& schema, std::vector<json::value>& out)
      : schema_(schema), out_(out) {}

  // False: this keyword has no opposite here.
  bool add(std::string_view key, const json::value& value) {
    if (std::ranges::find(kAnnotations, key) != kAnnotations.end()) return true;
    if (key == "type") return add_type(value);
    if (key == "enum") return out_.push_back(json::object{{kNotEnum, value}}), true;
    if (key == "const") return out_.push_back(json::object{{kNotEnum, json::array{value}}}), true;
    if (key == "not") return out_.push_back(value), true;
    if (key == "$ref")
      return out_.push_back(json::object{{"not", json::object{{"$ref", value}}}}), true;
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
    // Words that are no keywords annotate; a keyword that is not above has no opposite here.
    return std::ranges::find(kOtherKeywords, key) == kOtherKeywords.end();
  }

 private:
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

  const json::object& schema_;
  std::vector<json::value>& out_;
};

}  // namespace

Result<std::unique_ptr<SchemaDocument>> SchemaDocument::parse(std::string_view text) {
  if (text.size() > kTextBytesMax) {
    return fail(
        invalid_argument("the schema has {} bytes; the most is {}", text.size(), kTextBytesMax));
  }
  boost::system::error_code failed;
  json::parse_options options;
  options.max_depth = kDepthMax;
  json::value root = json::parse(text, failed, {}, options);
  if (failed) return fail(invalid_argument("the schema is not valid JSON: {}", failed.message()));
  if (!root.is_object() && !root.is_bool()) {
    return fail(invalid_argument("a schema is an object, or true or false"));
  }
  std::unique_ptr<SchemaDocument> document(new SchemaDocument);
  document->root_ = std::move(root);
  if (const auto* object = document->root_.if_object()) {
    const auto it = object->find("$schema");
    if (it != object->end() && it->value().is_string()) {
      const std::string_view draft = it->value().get_string();
      for (const char* old : {"draft-03", "draft-04", "draft-05", "draft-06", "draft-07"}) {
        document->ref_hides_siblings_ |= draft.find(old) != std::string_view::npos;
      }
    }
  }
  document->index(document->root_, "#", 0);
  return document;
}

void SchemaDocument::index(const json::value& value, const std::string& pointer, int depth) {
  pointers_.emplace(&value, pointer);
  if (depth > kDepthMax) return;
  if (const auto* object = value.if_object()) {
    for (const char* key : {"$id", "id"}) {
      const auto it = object->find(key);
      if (it != object->end() && it->value().is_string()) {
        by_name_.emplace(std::string(it->value().get_string()), &value);
      }
    }
    for (const char* key : {"$anchor", "$dynamicAnchor"}) {
      const auto it = object->find(key);
      if (it != object->end() && it->value().is_string()) {
        by_name_.emplace("#" + std::string(it->value().get_string()), &value);
      }
    }
    for (const auto& [key, child] : *object) {
      if (key == "enum" || key == "const") continue;
      index(child, pointer + "/" + escaped(key), depth + 1);
    }
  } else if (const auto* array = value.if_array()) {
    for (size_t i = 0; i < array->size(); ++i) {
      index((*array)[i], pointer + "/" + std::to_string(i), depth + 1);
    }
  }
}

Result<const json::value*> SchemaDocument::resolve(std::string_view reference) {
  const auto named = by_name_.find(std::string(reference));
  if (named != by_name_.end()) return named->second;
  const json::value* base = &root_;
  std::string_view fragment = reference;
  if (const size_t hash = reference.find('#'); hash != 0) {
    // Another document, unless it is this one or a part of it by its $id.
    const auto document = by_name_.find(std::string(reference.substr(0, hash)));
    const auto with_hash = by_name_.find(std::string(reference.substr(0, hash)) + "#");
    if (document != by_name_.end()) {
      base = document->second;
    } else if (with_hash != by_name_.end()) {
      base = with_hash->second;
    } else {
      return fail(error(StatusCode::kUnimplemented,
                        "$ref '{}' leads out of this schema; put it under $defs", reference));
    }
    fragment = hash == std::string_view::npos ? "" : reference.substr(hash);
  }
  if (fragment.starts_with("#")) fragment.remove_prefix(1);
  if (fragment.empty()) return base;
  if (!fragment.starts_with("/")) {
    const auto anchor = by_name_.find("#" + std::string(fragment));
    if (anchor != by_name_.end()) return anchor->second;
    return fail(invalid_argument("$ref '{}' leads nowhere", reference));
  }
  boost::system::error_code failed;
  const json::value* found = base->find_pointer(percent_decoded(fragment), failed);
  if (found == nullptr || failed) {
    return fail(invalid_argument("$ref '{}' leads nowhere", reference));
  }
  return found;
}

const json::value* SchemaDocument::keep(json::value schema) {
  derived_.push_back(std::move(schema));
  return &derived_.back();
}

std::string SchemaDocument::pointer_of(const json::value* schema) const {
  const auto it = pointers_.find(schema);
  return it != pointers_.end() ? it->second : "(derived)";
}

Result<const json::value*> SchemaDocument::opposite(const json::value& schema) {
  const auto known = opposites_.find(&schema);
  if (known != opposites_.end()) return known->second;
  const std::string where = pointer_of(&schema);
  const json::value* made = nullptr;
  if (schema.is_bool()) {
    made = keep(!schema.get_bool());
  } else if (!schema.is_object()) {
    return fail(invalid_argument("{}: a schema is an object, or true or false", where));
  } else {
    const json::object& object = schema.get_object();
    std::vector<json::value> ways;
    Opposites opposites(object, ways);
    const bool only_ref = ref_hides_siblings_ && object.contains("$ref");
    for (const auto& [key, value] : object) {
      if (only_ref && key != "$ref") continue;
      if (!opposites.add(key, value)) {
        return fail(error(StatusCode::kUnimplemented,
                          "{}: '{}' is not supported where its opposite is needed (not, oneOf, if)",
                          where, std::string_view(key)));
      }
    }
    json::array any(ways.begin(), ways.end());
    made = any.empty() ? keep(false) : keep(json::object{{"anyOf", std::move(any)}});
  }
  if (!pointers_.contains(made)) pointers_.emplace(made, "not of " + where);
  opposites_.emplace(&schema, made);
  return made;
}

}  // namespace espalier::grammar
