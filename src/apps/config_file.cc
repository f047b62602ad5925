// Configuration files, JSON or TOML: flat lists of settings, read into text and handed to the
// table.
#include <toml++/toml.h>
#include <boost/json.hpp>
#include <sstream>

#include "apps/settings.h"
#include "base/mapped_file.h"

namespace espalier::apps {
namespace {

struct Entry {
  std::string key;
  std::vector<std::string> values;  // one, or an array's
};

Status nested(std::string_view key) {
  return invalid_argument(
      "'{}' holds a table; settings stand at the top level, by their flags' names", key);
}

Result<std::string> json_scalar(std::string_view key, const boost::json::value& value) {
  if (value.is_string()) return std::string(value.get_string());
  if (value.is_bool() || value.is_number()) return boost::json::serialize(value);
  return fail(nested(key));
}

Result<std::vector<Entry>> read_json(std::string_view text) {
  boost::json::error_code problem;
  const boost::json::value root =
      boost::json::parse(boost::json::string_view(text.data(), text.size()), problem);
  if (problem) return fail(invalid_argument("it is no valid JSON: {}", problem.message()));
  if (!root.is_object()) return fail(invalid_argument("it must hold one JSON object"));
  std::vector<Entry> entries;
  for (const auto& [name, value] : root.get_object()) {
    if (value.is_null()) continue;
    Entry entry{std::string(name), {}};
    if (value.is_array()) {
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
  return fail(nested(key));
}

Result<std::vector<Entry>> read_toml(std::string_view text) {
  try {
    const toml::table root = toml::parse(text);
    std::vector<Entry> entries;
    for (const auto& [name, value] : root) {
      Entry entry{std::string(name.str()), {}};
      if (const toml::array* items = value.as_array()) {
        for (const toml::node& item : *items) {
          ESP_ASSIGN_OR_RETURN(std::string scalar, toml_scalar(entry.key, item));
          entry.values.push_back(std::move(scalar));
        }
      } else {
        ESP_ASSIGN_OR_RETURN(std::string scalar, toml_scalar(entry.key, value));
        entry.values.push_back(std::move(scalar));
      }
      entries.push_back(std::move(entry));
    }
    return entries;
  } catch (const toml::parse_error& problem) {
    return fail(
        invalid_argument("line {}: {}", problem.source().begin.line, problem.description()));
  }
}

}  // namespace

Status apply_config_file(SettingTable& table, const std::filesystem::path& path,
                         const SettingTable& known_elsewhere) {
  const std::string context = fmt::format("configuration file {}", path.string());
  Result<std::string> text = read_text_file(path);
  if (!text) return text.error().with_context(context);
  const std::string extension = path.extension().string();
  if (extension != ".json" && extension != ".toml")
    return invalid_argument("{}: its name must end in .json or .toml", context);
  Result<std::vector<Entry>> entries = extension == ".json" ? read_json(*text) : read_toml(*text);
  if (!entries) return entries.error().with_context(context);

  for (const Entry& entry : *entries) {
    Setting* setting = table.find(entry.key);
    if (setting == nullptr || setting->name == "config") {
      if (known_elsewhere.find(entry.key) != nullptr) continue;
      const std::string near = table.nearest_name(entry.key);
      return invalid_argument("{}: there is no setting '{}'{}", context, entry.key,
                              near.empty() ? "" : fmt::format("; did you mean {}?", near));
    }
    ESP_RETURN_IF_ERROR(
        assign(*setting, entry.values, fmt::format("{} in {}", entry.key, path.string())));
  }
  return {};
}

}  // namespace espalier::apps
