#include "server/tracing/redact.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <string_view>

namespace espalier::server {

namespace json = boost::json;

namespace {

constexpr size_t kWordMax = 64;

bool is_one_of(std::string_view key, std::initializer_list<std::string_view> keys) {
  return std::ranges::find(keys, key) != keys.end();
}

// Fields whose texts are words of the API.
bool has_words(std::string_view key) {
  return is_one_of(key, {"model", "role", "type", "object", "detail", "encoding_format",
                         "reasoning_effort", "effort", "service_tier", "truncation", "mode"});
}

// Fields that hold texts and member names of the client's.
bool is_opaque(std::string_view key) {
  return is_one_of(key, {"tools",
                         "functions",
                         "tool_calls",
                         "function_call",
                         "tool_choice",
                         "json_schema",
                         "schema",
                         "parameters",
                         "input_schema",
                         "arguments",
                         "response_format",
                         "structural_tag",
                         "format",
                         "metadata",
                         "logit_bias",
                         "image_data",
                         "image_url",
                         "images",
                         "source",
                         "custom_params",
                         "session_params",
                         "documents",
                         "chat_template_kwargs",
                         "extra_body",
                         "output_config",
                         "output_format",
                         "guided_json",
                         "guided_choice",
                         "structured_outputs",
                         "response_schema",
                         "properties",
                         "patternProperties",
                         "$defs",
                         "definitions",
                         "enum",
                         "const"});
}

bool is_word(std::string_view text) {
  return text.size() <= kWordMax && std::ranges::all_of(text, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  std::string_view("._-/:").find(c) != std::string_view::npos;
         });
}

json::value mark(std::string_view what, size_t count) {
  json::object out;
  out[what] = count;
  return out;
}

// Also of a list that is refused, for it is wrong in part.
bool is_id_list(const json::array& array) {
  return std::ranges::any_of(array, [](const json::value& each) { return each.is_number(); });
}

void redact_member(std::string_view key, json::value& value) {
  const bool is_nested = value.is_object() || value.is_array();
  if (is_opaque(key) ? is_nested || value.is_string() : key == "input" && value.is_object()) {
    value = mark(kRedactedJson, json::serialize(value).size());
  } else if (const json::string* const text = value.if_string()) {
    if (!has_words(key) || !is_word({text->data(), text->size()}))
      value = mark(kRedactedText, text->size());
  } else if (json::array* const array = value.if_array()) {
    if (is_id_list(*array)) {
      if (key != "stop_token_ids") value = mark(kRedactedIds, array->size());
    } else {
      for (json::value& each : *array) redact_member(key, each);
    }
  } else if (json::object* const object = value.if_object()) {
    for (auto& [name, member] : *object)
      redact_member(std::string_view(name.data(), name.size()), member);
  }
}

}  // namespace

void redact(json::value& body) { redact_member("", body); }

}  // namespace espalier::server
