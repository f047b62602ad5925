#include "text/json_fields.h"

namespace espalier {

namespace json = boost::json;

Result<JsonFields> JsonFields::of(const json::value& value, std::string path) {
  if (const json::object* object = value.if_object()) return JsonFields(object, std::move(path));
  return fail(error(StatusCode::kDataLoss, "'{}' should be an object", path));
}

std::string JsonFields::path_to(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

Status JsonFields::wrong(std::string_view name, std::string_view wanted) const {
  return error(StatusCode::kDataLoss, "'{}' should be {}", path_to(name), wanted);
}

const json::value* JsonFields::find(std::string_view name) const {
  const json::value* value = object_->if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<std::string> JsonFields::string(std::string_view name) const {
  const json::value* value = find(name);
  const json::string* text = value != nullptr ? value->if_string() : nullptr;
  if (text == nullptr) return fail(wrong(name, "a string"));
  return std::string(*text);
}

Result<std::string> JsonFields::string_or(std::string_view name, std::string_view otherwise) const {
  if (find(name) == nullptr) return std::string(otherwise);
  return string(name);
}

Result<bool> JsonFields::boolean_or(std::string_view name, bool otherwise) const {
  const json::value* value = find(name);
  if (value == nullptr) return otherwise;
  if (const bool* flag = value->if_bool()) return *flag;
  return fail(wrong(name, "true or false"));
}

Result<int64_t> JsonFields::integer(std::string_view name) const {
  const json::value* value = find(name);
  if (value != nullptr) {
    if (const int64_t* number = value->if_int64()) return *number;
  }
  return fail(wrong(name, "an integer"));
}

Result<const json::array*> JsonFields::array(std::string_view name) const {
  const json::value* value = find(name);
  const json::array* array = value != nullptr ? value->if_array() : nullptr;
  if (array == nullptr) return fail(wrong(name, "an array"));
  return array;
}

Result<const json::object*> JsonFields::object(std::string_view name) const {
  const json::value* value = find(name);
  const json::object* object = value != nullptr ? value->if_object() : nullptr;
  if (object == nullptr) return fail(wrong(name, "an object"));
  return object;
}

}  // namespace espalier
