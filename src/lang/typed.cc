#include "lang/typed.h"

#include <boost/json.hpp>
#include <cerrno>
#include <cstdlib>

namespace espalier::lang {
namespace {

Status wrong(const std::string& where, std::string_view wanted, const JsonValue& value) {
  return invalid_argument("{} must be {}, but it is {}", where, wanted,
                          boost::json::serialize(value).substr(0, 60));
}

}  // namespace

Status read_json(const JsonValue& value, const std::string& where, bool& out) {
  if (!value.is_bool()) return wrong(where, "true or false", value);
  out = value.get_bool();
  return {};
}

Status read_json(const JsonValue& value, const std::string& where, int64_t& out) {
  boost::json::error_code failed;
  const auto number = value.to_number<int64_t>(failed);
  if (failed) return wrong(where, "a whole number", value);
  out = number;
  return {};
}

Status read_json(const JsonValue& value, const std::string& where, double& out) {
  boost::json::error_code failed;
  const auto number = value.to_number<double>(failed);
  if (failed) return wrong(where, "a number", value);
  out = number;
  return {};
}

Status read_json(const JsonValue& value, const std::string& where, std::string& out) {
  if (!value.is_string()) return wrong(where, "a string", value);
  out = value.get_string();
  return {};
}

namespace internal {

Result<JsonDocument> JsonDocument::parse(std::string_view text) {
  boost::json::error_code failed;
  auto root = std::make_unique<JsonValue>(boost::json::parse(text, failed));
  if (failed)
    return fail(
        invalid_argument("the text is no JSON ({}): {}", failed.message(), text.substr(0, 80)));
  return JsonDocument(std::move(root));
}
JsonDocument::JsonDocument(std::unique_ptr<JsonValue> root) : root_(std::move(root)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

const JsonValue* json_member(const JsonValue& value, std::string_view name) {
  return value.is_object() ? value.get_object().if_contains(name) : nullptr;
}

Result<std::vector<const JsonValue*>> json_items(const JsonValue& value, const std::string& where) {
  if (!value.is_array()) return fail(wrong(where, "a list", value));
  std::vector<const JsonValue*> items;
  for (const JsonValue& item : value.get_array()) items.push_back(&item);
  return items;
}

bool json_is_null(const JsonValue* value) { return value->is_null(); }

Status read_text(const std::string& text, bool& out) {
  out = text == "True" || text == "true";
  if (out || text == "False" || text == "false") return {};
  return invalid_argument("\"{}\" is neither True nor False", text);
}

Status read_text(const std::string& text, int64_t& out) {
  char* end = nullptr;
  errno = 0;
  out = std::strtoll(text.c_str(), &end, 10);
  if (end == text.c_str() || *end != '\0' || errno == ERANGE)
    return invalid_argument("\"{}\" is no whole number", text);
  return {};
}

Status read_text(const std::string& text, double& out) {
  char* end = nullptr;
  out = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0') return invalid_argument("\"{}\" is no number", text);
  return {};
}

}  // namespace internal
}  // namespace espalier::lang
