#include "server/dialects/conversation_items.h"

#include <algorithm>
#include <set>

#include "server/dialects/response_request.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

void set_missing(json::object& item, json::string_view name, json::value value) {
  if (json::value& there = item[name]; there.is_null()) there = std::move(value);
}

// A message's content in parts, as an answer has it and as an input has it.
void complete_message(json::object& item) {
  json::value& content = item["content"];
  if (!content.is_string()) return;
  const bool answer = string_member(item, "role") == "assistant";
  json::object part{{"type", answer ? "output_text" : "input_text"}, {"text", std::move(content)}};
  if (answer) {
    part["annotations"] = json::array();
    part["logprobs"] = json::array();
  }
  content = json::array{std::move(part)};
}

void complete_item(json::object& item) {
  set_missing(item, "type", "message");
  set_missing(item, "status", "completed");
  const std::string_view type = string_member(item, "type");
  if (type == "message") complete_message(item);
  if (type == "reasoning") set_missing(item, "summary", json::array());
}

std::string_view id_prefix(const json::object& item) {
  const std::string_view type = string_member(item, "type");
  if (type == "function_call") return "fc_";
  if (type == "function_call_output") return "fco_";
  return type == "reasoning" ? "rs_" : "msg_";
}

}  // namespace

Result<json::array> read_conversation_items(const Json& value, std::string_view where) {
  if (!value.is_array()) return fail(wrong_type(where, "a list of items", value));
  json::array messages;
  ESP_RETURN_IF_ERROR(read_items(value.get_array(), where, messages));
  json::array items = value.get_array();
  for (json::value& item : items) complete_item(item.get_object());
  return items;
}

void append_conversation_items(json::array& conversation, json::array items,
                               const std::function<std::string()>& make_id) {
  std::set<std::string, std::less<>> ids;
  for (const json::value& item : conversation) ids.emplace(string_member(item.get_object(), "id"));
  for (json::value& item : items) {
    json::object& members = item.get_object();
    std::string id(string_member(members, "id"));
    if (id.empty() || ids.contains(id)) id = std::string(id_prefix(members)) + make_id();
    members["id"] = id;
    ids.insert(std::move(id));
    conversation.push_back(std::move(item));
  }
}

Status no_such_conversation(std::string_view id) {
  return error(StatusCode::kNotFound,
               "there is no conversation '{}': it was never made, was deleted, or has expired", id);
}

json::array::const_iterator find_conversation_item(const json::array& conversation,
                                                   std::string_view id) {
  return std::find_if(conversation.begin(), conversation.end(), [&](const json::value& item) {
    return string_member(item.get_object(), "id") == id;
  });
}

}  // namespace espalier::server
