// Configuration files, JSON or TOML: flat lists of settings, read into text and handed to the
// table.
#include <boost/json.hpp>
#include <functional>
#include <map>
#include <sstream>

#include "apps/settings.h"
#include "apps/toml_values.h"
#include "base/mapped_file.h"
#include "checkpoint/json_object.h"

namespace espalier::apps {
namespace {

struct Entry {
  std::string key;
  std::vector<std::string> values;  // one, or an array's
};

// Of a setting whose text is JSON: there a table is its value.
using TakesJson = std::function<bool(std::string_view key)>;

Status nested(std::string_view key) {
  return invalid_argument(
      "'{}' holds a table; settings stand at the top level, by their flags' names", key);
}

Status no_setting(std::string_view key, std::string_view what) {
  return invalid_argument("'{}' holds {}; a setting is a text, a number, true or false", key, what);
}

Result<std::string> json_scalar(std::string_view key, const boost::json::value& value) {
  if (value.is_string()) return std::string(value.get_string());
  if (value.is_double()) return fmt::format("{}", value.get_double());
  if (value.is_bool() || value.is_number()) return boost::json::serialize(value);
  if (value.is_object()) return fail(nested(key));
  return fail(no_setting(key, value.is_null() ? "a null in a list" : "a list in a list"));
}

Result<std::vector<Entry>> read_json(std::string_view text, const TakesJson& takes_json) {
  boost::json::error_code problem;
  const boost::json::value root =
      boost::json::parse(boost::json::string_view(text.data(), text.size()), problem);
  if (problem) return fail(invalid_argument("it is no valid JSON: {}", problem.message()));
  if (!root.is_object()) return fail(invalid_argument("it must hold one JSON object"));
  // Of a key that stands twice the parser above keeps the last.
  const auto once = JsonObject::parse(text, "it is ambiguous", DuplicateKeys::kError);
  if (!once) return fail(once.error());
  std::vector<Entry> entries;
  for (const auto& [name, value] : root.get_object()) {
    if (value.is_null()) continue;
    Entry entry{std::string(name), {}};
    if (takes_json(entry.key) && !value.is_string()) {
      entry.values.push_back(boost::json::serialize(value));
    } else if (value.is_array()) {
      for (const boost::json::value& item : value.get_array()) {
        ESP_ASSIGN_OR_RETURN(std::string scalar, json_scalar(entry.key, item));
        entry.values.push_back(std::move(scalar));
      }
    } else {
      ESP_ASSIGN_OR_RETURN(std::string scalar, json_scalar(entry.key, value));
      entry.values.push_back(std::move(scalar));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

Result<std::string> toml_scalar(std::string_view key, const toml::node& value) {
  if (const auto* text = value.as_string()) return text->get();
  if (const auto* flag = value.as_boolean()) return std::string(flag->get() ? "true" : "false");
  if (const auto* whole = value.as_integer()) return fmt::format("{}", whole->get());
  if (const auto* number = value.as_floating_point()) return fmt::format("{}", number->get());
  if (value.is_table()) return fail(nested(key));
  return fail(no_setting(key, value.is_array() ? "a list in a list" : "a date or a time"));
}

Result<std::vector<Entry>> read_toml(std::string_view text, const TakesJson& takes_json) {
  try {
    const toml::table root = toml::parse(text);
    std::vector<Entry> entries;
    for (const auto& [name, value] : root) {
      Entry entry{std::string(name.str()), {}};
      ESP_ASSIGN_OR_RETURN(entry.values, toml_values(entry.key, value, takes_json(entry.key)));
      entries.push_back(std::move(entry));
    }
    return entries;
  } catch (const toml::parse_error& problem) {
    return fail(
        invalid_argument("line {}: {}", problem.source().begin.line, problem.description()));
  }
}

}  // namespace

Result<std::vector<std::string>> toml_values(std::string_view key, const toml::node& value,
                                             bool takes_json) {
  std::vector<std::string> out;
  if (const toml::table* object = value.as_table(); object && takes_json) {
    std::ostringstream json;
    json << toml::json_formatter(*object);
    out.push_back(json.str());
  } else if (const toml::array* items = value.as_array()) {
    for (const toml::node& item : *items) {
      ESP_ASSIGN_OR_RETURN(std::string scalar, toml_scalar(key, item));
      out.push_back(std::move(scalar));
    }
  } else {
    ESP_ASSIGN_OR_RETURN(std::string scalar, toml_scalar(key, value));
    out.push_back(std::move(scalar));
  }
  return out;
}

Status apply_config_file(SettingTable& table, const std::filesystem::path& path,
                         const SettingTable& known_elsewhere) {
  const std::string context = fmt::format("configuration file {}", path.string());
  Result<std::string> text = read_text_file(path);
  if (!text) return text.error().with_context(context);
  const std::string extension = path.extension().string();
  if (extension != ".json" && extension != ".toml")
    return invalid_argument("{}: its name must end in .json or .toml", context);
  const auto takes_json = [&table](std::string_view key) {
    const Setting* setting = table.find(key);
    return setting != nullptr && setting->value_name == "JSON";
  };
  Result<std::vector<Entry>> entries =
      extension == ".json" ? read_json(*text, takes_json) : read_toml(*text, takes_json);
  if (!entries) return entries.error().with_context(context);

  std::map<const Setting*, std::string> seen;  // by which of its spellings
  for (const Entry& entry : *entries) {
    Setting* setting = table.find(entry.key);
    if (setting != nullptr && setting->name == "config")
      return invalid_argument("{}: a configuration file names no other one; leave out '{}'",
                              context, entry.key);
    if (setting == nullptr) {
      if (known_elsewhere.find(entry.key) != nullptr) continue;
      const std::string near = table.nearest_name(entry.key);
      return invalid_argument("{}: there is no setting '{}'{}", context, entry.key,
                              near.empty() ? "" : fmt::format("; did you mean {}?", near));
    }
    if (const auto [other, is_first] = seen.emplace(setting, entry.key); !is_first)
      return invalid_argument("{}: '{}' and '{}' are one setting; leave one out", context,
                              other->second, entry.key);
    ESP_RETURN_IF_ERROR(
        assign(*setting, entry.values, fmt::format("{} in {}", entry.key, path.string())));
  }
  return {};
}

}  // namespace espalier::apps
