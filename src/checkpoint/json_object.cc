#include "checkpoint/json_object.h"

#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <cmath>
#include <mutex>
#include <set>
#include <unordered_set>

#include "base/mapped_file.h"

namespace espalier {
namespace {

namespace json = boost::json;

// Takes a parse apart only to see whether an object holds a key twice.
struct KeyHandler {
  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = static_cast<size_t>(-1);
  static constexpr size_t max_string_size = static_cast<size_t>(-1);

  std::vector<std::unordered_set<std::string>> open_objects;
  std::string key;
  std::string duplicate;
  bool found = false;

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) {
    open_objects.emplace_back();
    return true;
  }
  bool on_object_end(size_t, json::error_code&) {
    open_objects.pop_back();
    return true;
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t, json::error_code&) { return true; }
  bool on_key_part(json::string_view part, size_t, json::error_code&) {
    key.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, size_t, json::error_code&) {
    key.append(part.data(), part.size());
    if (!found && !open_objects.back().insert(key).second) {
      found = true;
      duplicate = key;
    }
    key.clear();
    return true;
  }
  bool on_string_part(json::string_view, size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, size_t, json::error_code&) { return true; }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t, json::string_view, json::error_code&) { return true; }
  bool on_uint64(uint64_t, json::string_view, json::error_code&) { return true; }
  bool on_double(double, json::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }
};

std::optional<std::string> duplicate_key(std::string_view text) {
  json::basic_parser<KeyHandler> parser{json::parse_options{}};
  json::error_code failure;
  parser.write_some(false, text.data(), text.size(), failure);
  if (!parser.handler().found) return std::nullopt;
  return parser.handler().duplicate;
}

// The integer that `value` holds exactly, however it is written.
std::optional<int64_t> as_integer(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_double()) {
    const double number = value.get_double();
    if (std::trunc(number) == number && std::abs(number) < 0x1.0p62) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

void merge_into(json::object& to, const json::object& from) {
  for (const auto& member : from) {
    json::value& place = to[member.key()];
    if (place.is_object() && member.value().is_object()) {
      merge_into(place.get_object(), member.value().get_object());
    } else {
      place = member.value();
    }
  }
}

// A member counts as read where it was asked for; of an object its own members count.
void list_unread(const json::object& object, const std::string& prefix,
                 const std::set<std::string, std::less<>>& read, std::vector<std::string>& out) {
  for (const auto& member : object) {
    const std::string name = prefix + std::string(member.key().data(), member.key().size());
    if (!read.contains(name)) {
      out.push_back(name);
    } else if (const json::object* inside = member.value().if_object()) {
      list_unread(*inside, name + ".", read, out);
    }
  }
}

}  // namespace

Result<JsonObject> JsonObject::read(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  return parse(text, path.string());
}

Result<JsonObject> JsonObject::parse(std::string_view text, std::string name,
                                     DuplicateKeys duplicates) {
  json::error_code failure;
  json::value document;
  try {
    document = json::parse({text.data(), text.size()}, failure);
  } catch (const std::bad_alloc&) {
    return fail(error(StatusCode::kResourceExhausted, "{}: no memory to read it", name));
  }
  if (failure) {
    return fail(error(StatusCode::kDataLoss, "{} is not valid JSON: {}", name, failure.message()));
  }
  if (!document.is_object()) {
    return fail(invalid_argument("{}: the top level must be a JSON object", name));
  }
  if (duplicates == DuplicateKeys::kError) {
    if (const auto key = duplicate_key(text)) {
      return fail(
          error(StatusCode::kDataLoss, "{}: the key '{}' stands twice in one object", name, *key));
    }
  }
  JsonObject result;
  result.document_ = std::make_shared<const json::value>(std::move(document));
  result.object_ = &result.document_->get_object();
  result.name_ = std::move(name);
  return result;
}

Status JsonObject::field_error(std::string_view field, std::string_view message) const {
  return invalid_argument("{}: '{}{}' {}", name_, prefix_, field, message);
}

// Names of fields that were asked for, from any thread.
struct JsonObject::Reads {
  std::mutex mutex;
  std::set<std::string, std::less<>> names;
};

void JsonObject::note(std::string_view field) const {
  if (!reads_) return;
  std::lock_guard lock(reads_->mutex);
  reads_->names.insert(prefix_ + std::string(field));
}

JsonObject JsonObject::merged(const JsonObject& overrides) const {
  json::value document = *object_;
  merge_into(document.get_object(), *overrides.object_);
  JsonObject result;
  result.document_ = std::make_shared<const json::value>(std::move(document));
  result.object_ = &result.document_->get_object();
  result.name_ = name_;
  result.prefix_ = prefix_;
  result.reads_ = std::make_shared<Reads>();
  return result;
}

std::vector<std::string> JsonObject::never_read(const JsonObject& overrides) const {
  std::vector<std::string> names;
  std::lock_guard lock(reads_->mutex);
  list_unread(*overrides.object_, prefix_, reads_->names, names);
  return names;
}

bool JsonObject::has(std::string_view field) const {
  note(field);
  const json::value* value = object_->if_contains({field.data(), field.size()});
  return value != nullptr && !value->is_null();
}

std::vector<std::string_view> JsonObject::keys() const {
  std::vector<std::string_view> keys;
  for (const auto& member : *object_) keys.emplace_back(member.key().data(), member.key().size());
  return keys;
}

Result<const json::value*> JsonObject::find(std::string_view field) const {
  if (!has(field)) return fail(field_error(field, "is missing"));
  return object_->if_contains({field.data(), field.size()});
}

Result<int64_t> JsonObject::integer(std::string_view field, int64_t min, int64_t max) const {
  ESP_ASSIGN_OR_RETURN(const json::value* value, find(field));
  const std::optional<int64_t> number = as_integer(*value);
  if (!number) return fail(field_error(field, "must be an integer"));
  if (*number < min || *number > max) {
    return fail(field_error(
        field, fmt::format("is {}, which is not between {} and {}", *number, min, max)));
  }
  return *number;
}

Result<double> JsonObject::number(std::string_view field) const {
  ESP_ASSIGN_OR_RETURN(const json::value* value, find(field));
  if (!value->is_number()) return fail(field_error(field, "must be a number"));
  const double number = value->to_number<double>();
  if (!std::isfinite(number)) return fail(field_error(field, "must be finite"));
  return number;
}

Result<bool> JsonObject::boolean(std::string_view field) const {
  ESP_ASSIGN_OR_RETURN(const json::value* value, find(field));
  if (!value->is_bool()) return fail(field_error(field, "must be true or false"));
  return value->get_bool();
}

Result<std::string> JsonObject::string(std::string_view field) const {
  ESP_ASSIGN_OR_RETURN(const json::value* value, find(field));
  if (!value->is_string()) return fail(field_error(field, "must be a string"));
  return std::string(value->get_string().data(), value->get_string().size());
}

Result<JsonObject> JsonObject::object(std::string_view field) const {
  ESP_ASSIGN_OR_RETURN(const json::value* value, find(field));
  if (!value->is_object()) return fail(field_error(field, "must be an object"));
  JsonObject result = *this;
  result.object_ = &value->get_object();
  result.prefix_ = prefix_ + std::string(field) + ".";
  return result;
}

Result<std::vector<int64_t>> JsonObject::integers(std::string_view field) const {
  ESP_ASSIGN_OR_RETURN(const json::value* value, find(field));
  std::vector<int64_t> list;
  const auto add = [&](const json::value& item) {
    const std::optional<int64_t> number = as_integer(item);
    if (number) list.push_back(*number);
    return number.has_value();
  };
  bool good = true;
  if (const json::array* array = value->if_array()) {
    for (const json::value& item : *array) good = good && add(item);
  } else {
    good = add(*value);
  }
  if (!good) return fail(field_error(field, "must be an integer or a list of integers"));
  return list;
}

Result<std::vector<std::vector<int64_t>>> JsonObject::integer_lists(std::string_view field) const {
  ESP_ASSIGN_OR_RETURN(const json::value* value, find(field));
  std::vector<std::vector<int64_t>> lists;
  const json::array* array = value->if_array();
  bool good = array != nullptr;
  for (size_t i = 0; good && i < array->size(); ++i) {
    const json::array* items = (*array)[i].if_array();
    good = items != nullptr;
    lists.emplace_back();
    for (size_t j = 0; good && j < items->size(); ++j) {
      const std::optional<int64_t> number = as_integer((*items)[j]);
      good = number.has_value();
      lists.back().push_back(number.value_or(0));
    }
  }
  if (!good) return fail(field_error(field, "must be a list of lists of integers"));
  return lists;
}

Result<std::vector<std::pair<int32_t, int32_t>>> JsonObject::pairs(std::string_view field) const {
  ESP_ASSIGN_OR_RETURN(const json::value* value, find(field));
  std::vector<std::pair<int32_t, int32_t>> list;
  const auto side = [](const json::value& item) {
    const std::optional<int64_t> number = as_integer(item);
    const bool good = number && *number > 0 && *number <= std::numeric_limits<int32_t>::max();
    return good ? static_cast<int32_t>(*number) : 0;
  };
  const json::array* array = value->if_array();
  bool good = array != nullptr;
  for (size_t i = 0; good && i < array->size(); ++i) {
    const json::array* pair = (*array)[i].if_array();
    good = pair != nullptr && pair->size() == 2;
    if (!good) break;
    list.emplace_back(side((*pair)[0]), side((*pair)[1]));
    good = list.back().first > 0 && list.back().second > 0;
  }
  if (!good) return fail(field_error(field, "must be a list of pairs of positive integers"));
  return list;
}

Result<std::vector<double>> JsonObject::numbers(std::string_view field) const {
  ESP_ASSIGN_OR_RETURN(const json::value* value, find(field));
  std::vector<double> list;
  const json::array* array = value->if_array();
  if (array == nullptr) return fail(field_error(field, "must be a list of numbers"));
  for (const json::value& item : *array) {
    if (!item.is_number()) return fail(field_error(field, "must be a list of numbers"));
    list.push_back(item.to_number<double>());
  }
  return list;
}

Result<std::vector<std::string>> JsonObject::strings(std::string_view field) const {
  ESP_ASSIGN_OR_RETURN(const json::value* value, find(field));
  std::vector<std::string> list;
  const json::array* array = value->if_array();
  if (array == nullptr) return fail(field_error(field, "must be a list of strings"));
  for (const json::value& item : *array) {
    if (!item.is_string()) return fail(field_error(field, "must be a list of strings"));
    list.emplace_back(item.get_string().data(), item.get_string().size());
  }
  return list;
}

Result<std::vector<JsonObject>> JsonObject::objects(std::string_view field) const {
  ESP_ASSIGN_OR_RETURN(const json::value* value, find(field));
  std::vector<JsonObject> list;
  const json::array* array = value->if_array();
  if (array == nullptr) return fail(field_error(field, "must be a list of objects"));
  for (const json::value& item : *array) {
    if (!item.is_object()) return fail(field_error(field, "must be a list of objects"));
    JsonObject& object = list.emplace_back(*this);
    object.object_ = &item.get_object();
    object.prefix_ = fmt::format("{}{}[{}].", prefix_, field, list.size() - 1);
  }
  return list;
}

Result<int64_t> JsonObject::integer_or(std::string_view field, int64_t otherwise, int64_t min,
                                       int64_t max) const {
  if (!has(field)) return otherwise;
  return integer(field, min, max);
}

Result<double> JsonObject::number_or(std::string_view field, double otherwise) const {
  if (!has(field)) return otherwise;
  return number(field);
}

Result<bool> JsonObject::boolean_or(std::string_view field, bool otherwise) const {
  if (!has(field)) return otherwise;
  return boolean(field);
}

Result<std::string> JsonObject::string_or(std::string_view field, std::string otherwise) const {
  if (!has(field)) return otherwise;
  return string(field);
}

}  // namespace espalier
