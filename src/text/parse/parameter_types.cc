#include "text/parse/parameter_types.h"

#include <algorithm>
#include <boost/json.hpp>
#include <set>

namespace espalier {
namespace {

namespace json = boost::json;

constexpr int kSchemaDepthMax = 16;  // of references and alternatives

// Collects the types of a schema whose references lie in `root`.
class SchemaTypes {
 public:
  explicit SchemaTypes(const json::value& root) : root_(root) {}

  void add(const json::value& schema, ParameterTypes& out, int depth = 0) {
    if (!schema.is_object() || depth > kSchemaDepthMax || !seen_.insert(&schema).second) return;
    const json::object& keywords = schema.get_object();
    if (const json::value* type = keywords.if_contains("type")) {
      if (type->is_string()) add_type(type->get_string(), out);
      if (type->is_array())
        for (const json::value& one : type->get_array())
          if (one.is_string()) add_type(one.get_string(), out);
    }
    for (const char* name : {"anyOf", "oneOf", "allOf"})
      if (const json::value* list = keywords.if_contains(name); list != nullptr && list->is_array())
        for (const json::value& one : list->get_array()) add(one, out, depth + 1);
    if (const json::value* list = keywords.if_contains("enum"); list != nullptr && list->is_array())
      add_enum(list->get_array(), out);
    if (const json::value* one = keywords.if_contains("const")) add_value(*one, out);
    const json::value* ref = keywords.if_contains("$ref");
    if (ref == nullptr || !ref->is_string() || !ref->get_string().starts_with("#")) return;
    json::error_code failed;
    const json::value* target = root_.find_pointer(ref->get_string().subview(1), failed);
    if (target != nullptr) add(*target, out, depth + 1);
  }

 private:
  static void add_type(const json::string& name, ParameterTypes& out) {
    out.typed = true;
    out.string |= name == "string";
    out.null |= name == "null";
    out.boolean |= name == "boolean";
  }
  static void add_enum(const json::array& values, ParameterTypes& out) {
    const auto num_strings = std::count_if(values.begin(), values.end(),
                                           [](const json::value& one) { return one.is_string(); });
    const bool mixed = num_strings != 0 && num_strings != std::ssize(values);
    for (const json::value& one : values) {
      if (mixed) out.mixed_enum.push_back(json::serialize(one));
      if (!mixed || !one.is_string()) add_value(one, out);
    }
  }
  static void add_value(const json::value& value, ParameterTypes& out) {
    out.typed = true;
    out.string |= value.is_string();
    out.null |= value.is_null();
    out.boolean |= value.is_bool();
  }

  const json::value& root_;
  std::set<const json::value*> seen_;
};

}  // namespace

ParameterTypes parameter_types(const json::value* tools, std::string_view tool,
                               std::string_view parameter) {
  ParameterTypes out;
  if (tools == nullptr || !tools->is_array()) return out;
  for (const json::value& one : tools->get_array()) {
    const json::object& function = one.at("function").get_object();
    if (function.at("name").get_string() != tool) continue;
    const json::value* schema = function.if_contains("parameters");
    if (schema == nullptr || !schema->is_object()) continue;
    const json::value* properties = schema->get_object().if_contains("properties");
    const json::value* declared = properties != nullptr && properties->is_object()
                                      ? properties->get_object().if_contains(parameter)
                                      : nullptr;
    if (declared == nullptr) {
      declared = schema->get_object().if_contains("additionalProperties");
      if (declared == nullptr || !declared->is_object()) continue;
    }
    out.known = true;
    SchemaTypes(*schema).add(*declared, out);
    return out;
  }
  return out;
}

}  // namespace espalier
