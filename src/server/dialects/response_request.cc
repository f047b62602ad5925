#include "server/dialects/response_request.h"

#include "server/images.h"

#include <algorithm>

namespace espalier::server {
namespace {

namespace json = boost::json;

// Appends items to a list of messages: an assistant's reasoning, text and calls are one message.
class ItemReader {
 public:
  explicit ItemReader(json::array& out) : out_(out) {}

  Status read(const Json& item, const std::string& where) {
    const json::object* members = item.if_object();
    if (members == nullptr) return wrong_type(where, "an item", item);
    const std::string_view type = string_member(*members, "type");
    if (type.empty() || type == "message") return read_message(*members, where);
    if (type == "function_call") return read_call(*members, where);
    if (type == "function_call_output") return read_result(*members, where);
    if (type == "reasoning") return read_reasoning(*members);
    return error(StatusCode::kUnimplemented,
                 "{}.type is \"{}\": message, reasoning, function_call and function_call_output "
                 "are supported",
                 where, type);
  }

 private:
  Status read_message(const json::object& item, const std::string& where) {
    const std::string_view role = string_member(item, "role");
    if (role != "user" && role != "assistant" && role != "system" && role != "developer")
      return invalid_argument("{}.role must be user, assistant, system or developer", where);
    const Json* content = item.if_contains("content");
    if (content == nullptr) return invalid_argument("{}.content is missing", where);
    std::string text;
    json::array parts;
    ESP_RETURN_IF_ERROR(read_content(*content, where + ".content", text, &parts));
    if (!parts.empty() && role != "assistant") {
      if (!text.empty()) parts.push_back(text_part(text));
      out_.push_back(json::object{{"role", json::string(role.data(), role.size())},
                                  {"content", std::move(parts)}});
      return {};
    }
    if (role == "assistant") {
      assistant()["content"] = text;
      return {};
    }
    out_.push_back(json::object{{"role", json::string(role.data(), role.size())},
                                {"content", std::move(text)}});
    return {};
  }

  static json::object text_part(const std::string& text) {
    return {{"type", "text"}, {"text", text}};
  }

  // The text behind the last picture; pictures, and the texts before them, become parts where they
  // are taken.
  static Status read_content(const Json& content, const std::string& where, std::string& text,
                             json::array* parts = nullptr) {
    if (content.is_string()) {
      text = view(content.get_string());
      return {};
    }
    if (!content.is_array()) return wrong_type(where, "a string or a list of parts", content);
    for (size_t i = 0; i < content.get_array().size(); ++i) {
      const Json& part = content.get_array()[i];
      const json::object* members = part.if_object();
      if (members == nullptr) return wrong_type(fmt::format("{}[{}]", where, i), "a part", part);
      const std::string_view type = string_member(*members, "type");
      if (type == "refusal") {
        text += string_member(*members, "refusal");
      } else if (type == "input_text" || type == "output_text" || type == "text") {
        text += string_member(*members, "text");
      } else if (parts != nullptr && is_picture_part(part)) {
        ESP_ASSIGN_OR_RETURN(const std::string source,
                             picture_source(part, fmt::format("{}[{}]", where, i)));
        if (!text.empty()) parts->push_back(text_part(std::exchange(text, {})));
        parts->push_back(picture_part(source));
      } else {
        return error(StatusCode::kUnimplemented,
                     "{}[{}] is of type {}, which is not supported: only text and pictures are",
                     where, i, type);
      }
    }
    return {};
  }

  Status read_call(const json::object& item, const std::string& where) {
    const std::string_view name = string_member(item, "name");
    if (name.empty()) return invalid_argument("{}.name is missing", where);
    Json& calls = assistant()["tool_calls"];
    if (!calls.is_array()) calls = json::array();
    calls.get_array().push_back(
        function_call(string_member(item, "call_id"), name, string_member(item, "arguments")));
    return {};
  }

  Status read_result(const json::object& item, const std::string& where) {
    const std::string_view id = string_member(item, "call_id");
    if (id.empty()) return invalid_argument("{}.call_id is missing", where);
    const Json* output = item.if_contains("output");
    std::string text;
    if (output != nullptr && !output->is_null())
      ESP_RETURN_IF_ERROR(read_content(*output, where + ".output", text));
    out_.push_back(json::object{{"role", "tool"},
                                {"tool_call_id", json::string(id.data(), id.size())},
                                {"content", std::move(text)}});
    return {};
  }

  Status read_reasoning(const json::object& item) {
    std::string text;
    const Json* content = item.if_contains("content");
    if (content != nullptr && content->is_array())
      for (const Json& part : content->get_array())
        if (const json::object* members = part.if_object()) text += string_member(*members, "text");
    if (!text.empty()) begin_assistant()["reasoning_content"] = text;
    return {};
  }

  // The message that the assistant's last items belong to.
  json::object& assistant() {
    const bool continues =
        !out_.empty() && out_.back().at("role") == "assistant" && out_.back().at("content") == "";
    return continues ? out_.back().get_object() : begin_assistant();
  }
  json::object& begin_assistant() {
    out_.push_back(json::object{{"role", "assistant"}, {"content", ""}});
    return out_.back().get_object();
  }

  json::array& out_;
};

Status read_response_input(const Json& value, std::string_view where, ResponseRequest& out) {
  if (value.is_string()) {
    out.turns = {json::object{{"role", "user"}, {"content", value}}};
    out.input = json::serialize(json::array{json::object{
        {"type", "message"},
        {"role", "user"},
        {"content", json::array{json::object{{"type", "input_text"}, {"text", value}}}}}});
    return {};
  }
  if (!value.is_array()) return wrong_type(where, "a string or a list of items", value);
  ESP_RETURN_IF_ERROR(read_items(value.get_array(), where, out.turns));
  out.input = json::serialize(value);
  return {};
}

// {"type": "function", "name", "description", "parameters", "strict"}
Status read_flat_tools(const Json& value, std::string_view where, ResponseRequest& out) {
  if (!value.is_array()) return wrong_type(where, "a list of tools", value);
  json::array tools;
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    const Json& tool = value.get_array()[i];
    const std::string at = fmt::format("{}[{}]", where, i);
    const json::object* members = tool.if_object();
    if (members == nullptr) return wrong_type(at, "a tool", tool);
    const std::string_view type = string_member(*members, "type");
    if (type != "function")
      return error(StatusCode::kUnimplemented,
                   "{}.type is \"{}\": only functions are called, since no tool runs in the server",
                   at, type);
    if (string_member(*members, "name").empty())
      return invalid_argument("{}.name must be a string, not empty", at);
    json::object translated =
        function_tool(string_member(*members, "name"), members->if_contains("description"),
                      members->if_contains("parameters"));
    if (const Json* strict = members->if_contains("strict"))
      translated["function"].get_object()["strict"] = *strict;
    tools.push_back(std::move(translated));
  }
  out.tools_echo = json::serialize(value);
  return read_tools(Json(std::move(tools)), where, out.tools);
}

// "auto", "none", "required", {"type": "function", "name"}, or {"type": "allowed_tools", "mode",
// "tools"}.
Status read_response_choice(const Json& value, std::string_view where, ResponseRequest& out) {
  using Choice = ChatRequest::ToolChoice;
  out.choice_echo = json::serialize(value);
  for (const auto& [name, meant] :
       {std::pair("none", Choice::kNone), std::pair("auto", Choice::kAuto),
        std::pair("required", Choice::kRequired)}) {
    if (value != name) continue;
    out.tool_choice = meant;
    return {};
  }
  const json::object* members = value.if_object();
  const std::string_view type = members != nullptr ? string_member(*members, "type") : "";
  if (type == "function") {
    out.tool_choice = Choice::kNamed;
    out.tool_name = string_member(*members, "name");
    return {};
  }
  const Json* tools = members != nullptr ? members->if_contains("tools") : nullptr;
  if (type != "allowed_tools" || tools == nullptr || !tools->is_array())
    return wrong_type(where, "auto, none, required, a function or allowed_tools", value);
  for (const Json& tool : tools->get_array())
    if (const json::object* named = tool.if_object())
      out.allowed_tool_names.emplace_back(string_member(*named, "name"));
  const bool required = string_member(*members, "mode") == "required";
  out.tool_choice = required ? Choice::kRequired : Choice::kAuto;
  return {};
}

// {"format": {"type": "text" | "json_object" | "json_schema", "schema"}}
Status read_text_config(const Json& value, std::string_view where, ResponseRequest& out) {
  const json::object* members = value.if_object();
  if (members == nullptr) return wrong_type(where, "an object", value);
  out.text_echo = json::serialize(value);
  const Json* format = members->if_contains("format");
  if (format == nullptr || format->is_null()) return {};
  const std::string at = std::string(where) + ".format";
  if (!format->is_object()) return wrong_type(at, "an object with a type", *format);
  if (string_member(format->get_object(), "type") != "json_schema")
    return read_response_format(*format, at, out.sampling);
  const Json* schema = format->get_object().if_contains("schema");
  if (schema == nullptr || !schema->is_object())
    return invalid_argument("{}.schema is missing: a JSON Schema object", at);
  out.sampling.json_schema = json::serialize(*schema);
  return {};
}

Status read_reasoning_config(const Json& value, std::string_view where, ResponseRequest& out) {
  const json::object* members = value.if_object();
  if (members == nullptr) return wrong_type(where, "an object", value);
  const std::string_view effort = string_member(*members, "effort");
  if (effort.empty()) return {};
  out.effort = std::string(effort);
  if (effort != "none" && effort != "minimal") {
    out.reasoning_effort = out.effort;
    return {};
  }
  out.template_kwargs =
      std::make_shared<const Json>(json::object{{"enable_thinking", false}, {"thinking", false}});
  return {};
}

// The id of a conversation, or {"id"}.
Status read_conversation(const Json& value, std::string_view where, ResponseRequest& out) {
  const json::object* members = value.if_object();
  out.conversation = members != nullptr  ? string_member(*members, "id")
                     : value.is_string() ? view(value.get_string())
                                         : std::string_view();
  if (out.conversation.empty()) return wrong_type(where, "a conversation's id", value);
  return {};
}

// What the answer holds besides its text. Names of what is never made are taken without effect.
Status read_include(const Json& value, std::string_view where, ResponseRequest& out) {
  std::vector<std::string> names;
  ESP_RETURN_IF_ERROR(read_value(value, where, names));
  if (std::ranges::count(names, "message.output_text.logprobs") > 0) out.logprobs = true;
  return {};
}

Status read_response_metadata(const Json& value, std::string_view where, ResponseRequest& out) {
  if (!value.is_object()) return wrong_type(where, "an object", value);
  out.metadata_echo = json::serialize(value);
  return {};
}

// Chat's sampling fields, but for its length, which is max_output_tokens here, the number of
// samples and beam search's, for a response is one, and token healing, for a response begins behind
// the template.
void append_chat_sampling(Fields<ResponseRequest>& fields) {
  constexpr std::string_view kNotHere[] = {"max_tokens",      "n",          "token_healing",
                                           "use_beam_search", "beam_width", "length_penalty",
                                           "early_stopping"};
  Fields<ResponseRequest> of_chat;
  append_sampling_fields(
      of_chat, kInChat, [](ResponseRequest & r) -> auto& { return r.sampling; });
  for (Field<ResponseRequest>& each : of_chat)
    if (std::ranges::count(kNotHere, each.name) == 0) fields.push_back(std::move(each));
  fields.push_back(refused<ResponseRequest>(
      "token_healing", "is for prompts that an answer goes on from: use /v1/completions"));
}

// What chat takes beside its sampling to choose weights and cached prefixes.
void append_chat_extensions(Fields<ResponseRequest>& fields) {
  using R = ResponseRequest;
  fields.push_back(field<R>(
      "extra_key", "requests of different keys share no cached prefixes; a list has one entry here",
      &R::extra_key));
  fields.push_back(field<R>("cache_salt", "as extra_key; the two are joined", &R::cache_salt));
  fields.push_back(field<R>(
      "lora_path", "the name of a loaded LoRA adapter; a list has one entry here", &R::lora_path));
}

const Fields<ResponseRequest>& response_fields() {
  using R = ResponseRequest;
  static const Fields<R> fields = [] {
    const std::string object = R"({"type":"object"})";
    const std::string list = R"({"type":"array","items":{"type":"object"}})";
    Fields<R> f = {
        custom<R>("input", R"({"anyOf":[{"type":"string"},{"type":"array"}]})",
                  "a text, or a list of items", read_response_input),
        field<R>("model", "echoed; one model is served", &R::model),
        field<R>("instructions", "the system prompt of this request", &R::instructions),
        field<R>("previous_response_id", "the stored answer that this request continues",
                 &R::previous_response_id),
        field<R>(
            "max_output_tokens", "of the answer, reasoning included",
            [](R & r) -> auto& { return r.sampling.max_new_tokens; }),
        field<R>("stream", "answer as server-sent events", &R::stream),
        field<R>("background", "answer at once, and run without a client; GET has its status",
                 &R::background),
        field<R>("store", "whether the answer can be fetched and continued; default true",
                 &R::store),
        custom<R>("tools", list, "functions that the answer may call", read_flat_tools),
        custom<R>("tool_choice", R"({"anyOf":[{"type":"string"},{"type":"object"}]})",
                  "auto, none, required, a function or allowed_tools", read_response_choice),
        field<R>("parallel_tool_calls", "whether an answer may call more than one; default true",
                 &R::parallel_tool_calls),
        custom<R>("text", object, "the format of the answer", read_text_config),
        custom<R>("reasoning", object, "effort", read_reasoning_config),
        custom<R>("metadata", object, "echoed", read_response_metadata),
        field<R>("rid", "request id, for /abort_request", &R::rid),
        field<R>("priority", "larger is sooner, where the scheduler has priorities", &R::priority),
        custom<R>("conversation", R"({"anyOf":[{"type":"string"},{"type":"object"}]})",
                  "the stored conversation that this request and its answer are added to",
                  read_conversation),
        refused<R>("prompt"),
        field<R>("top_logprobs", "log-probabilities of the message's tokens, with this many best",
                 &R::top_logprobs),
        custom<R>("include", R"({"type":"array","items":{"type":"string"}})",
                  "message.output_text.logprobs; other names have no effect", read_include),
    };
    for (const char* name :
         {"max_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
          "service_tier", "stream_options", "truncation", "user"})
      f.push_back(ignored<R>(name));
    append_chat_sampling(f);
    append_chat_extensions(f);
    f[0].required = true;
    return f;
  }();
  return fields;
}

}  // namespace

Status read_items(const json::array& items, std::string_view where, json::array& messages) {
  ItemReader reader(messages);
  for (size_t i = 0; i < items.size(); ++i)
    ESP_RETURN_IF_ERROR(reader.read(items[i], fmt::format("{}[{}]", where, i)));
  return {};
}

Result<ResponseRequest> parse_response_request(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(ResponseRequest request, parse_body(response_fields(), body, malformed));
  ESP_RETURN_IF_ERROR(check_common(request, 1));
  if (request.top_logprobs > 0) request.logprobs = true;
  if (!request.conversation.empty() && !request.previous_response_id.empty())
    return fail(invalid_argument(
        "conversation and previous_response_id both continue something: send one of them"));
  if (!request.previous_response_id.empty() && !request.previous_response_id.starts_with("resp_"))
    return fail(invalid_argument(
        "previous_response_id is '{}', but must be the id of a response, which begins with resp_",
        request.previous_response_id));
  return request;
}
std::string response_schema() { return schema_of(response_fields()); }

}  // namespace espalier::server
