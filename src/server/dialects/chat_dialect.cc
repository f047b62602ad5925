#include "server/dialects/chat_dialect.h"

#include <algorithm>
#include <cctype>

namespace espalier::server {

namespace json = boost::json;

std::string_view string_member(const json::object& object, std::string_view name) {
  const Json* value = object.if_contains(json::string_view(name.data(), name.size()));
  return value != nullptr && value->is_string() ? view(value->get_string()) : std::string_view();
}

Status wrong_type(std::string_view where, std::string_view expected, const Json& found) {
  return invalid_argument("{} must be {}, but it is {}", where, expected, describe(found));
}

json::object function_tool(std::string_view name, const Json* description, const Json* parameters) {
  json::object function{{"name", json::string(name.data(), name.size())}};
  if (description != nullptr) function["description"] = *description;
  function["parameters"] = parameters != nullptr && parameters->is_object()
                               ? *parameters
                               : Json(json::object{{"type", "object"}});
  return {{"type", "function"}, {"function", std::move(function)}};
}

json::object function_call(std::string_view id, std::string_view name, std::string_view arguments) {
  return {
      {"id", json::string(id.data(), id.size())},
      {"type", "function"},
      {"function", json::object{{"name", json::string(name.data(), name.size())},
                                {"arguments", json::string(arguments.data(), arguments.size())}}}};
}

Status finish_chat(json::array messages, ChatRequest& request) {
  if (messages.empty()) return invalid_argument("messages or input: there is no message");
  request.messages = std::make_shared<const Json>(std::move(messages));
  request.sampling.to_context = !request.sampling.max_new_tokens;
  const bool needs_call = request.tool_choice == ChatRequest::ToolChoice::kRequired ||
                          request.tool_choice == ChatRequest::ToolChoice::kNamed;
  if (needs_call && request.tools == nullptr)
    return invalid_argument("tool_choice asks for a call, but there are no tools");
  return {};
}

Json arguments_value(std::string_view text) {
  if (text.empty()) return json::object();
  json::error_code ec;
  Json value = json::parse(json::string_view(text.data(), text.size()), ec);
  return ec ? Json(json::string(text.data(), text.size())) : value;
}

ChatDialectGeneration::ChatDialectGeneration(ContextPtr context, net::ResponsePtr response,
                                             GenerationItem item, const ChatRequest& request,
                                             const AnswerFormat& format)
    : Generation(context, std::move(response), {std::move(item)}, request.stream),
      model_(request.model.empty() ? context->model_name : request.model),
      answer_(format) {}

const std::string& ChatDialectGeneration::call_id(size_t index, std::string_view prefix) {
  while (call_ids_.size() <= index)
    call_ids_.push_back(std::string(prefix) + context().make_rid().substr(0, 24));
  return call_ids_[index];
}

bool ChatDialectGeneration::waits_for_results(const Sample& sample) const {
  return !answer_.calls().empty() && sample.finish &&
         sample.finish->type == FinishReason::Type::kStop;
}

bool is_blank(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; });
}

}  // namespace espalier::server
