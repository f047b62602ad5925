// OpenAI's Responses: POST /v1/responses, and what is stored of it by id. Items become the messages
// of a chat; the answer is a list of items (reasoning, a message, function calls). A stored answer
// keeps its conversation, so that previous_response_id continues it; instructions hold for one
// request only.
#include "server/dialects/chat_dialect.h"
#include "server/dialects/response_items.h"
#include "server/dialects/response_store.h"
#include "server/openai_generation.h"
#include "server/routes.h"
#include "server/start_generation.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

struct ResponseRequest : ChatRequest {
  json::array turns;  // of the input
  std::string input;  // its items as they were sent, a JSON array
  std::string instructions, previous_response_id;
  bool store = true;
  std::optional<std::string> effort;
  // Echoed, as JSON.
  std::string text_echo = R"({"format":{"type":"text"}})", tools_echo = "[]",
              choice_echo = "\"auto\"", metadata_echo = "{}";
};

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
    ESP_RETURN_IF_ERROR(read_content(*content, where + ".content", text));
    if (role == "assistant") {
      assistant()["content"] = text;
      return {};
    }
    out_.push_back(json::object{{"role", json::string(role.data(), role.size())},
                                {"content", std::move(text)}});
    return {};
  }

  static Status read_content(const Json& content, const std::string& where, std::string& text) {
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
      } else {
        return error(StatusCode::kUnimplemented,
                     "{}[{}] is of type {}, which is not supported: only text is", where, i, type);
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

Status read_input(const Json& value, std::string_view where, ResponseRequest& out) {
  if (value.is_string()) {
    out.turns = {json::object{{"role", "user"}, {"content", value}}};
    out.input = json::serialize(json::array{json::object{
        {"type", "message"},
        {"role", "user"},
        {"content", json::array{json::object{{"type", "input_text"}, {"text", value}}}}}});
    return {};
  }
  if (!value.is_array()) return wrong_type(where, "a string or a list of items", value);
  ItemReader reader(out.turns);
  for (size_t i = 0; i < value.get_array().size(); ++i)
    ESP_RETURN_IF_ERROR(reader.read(value.get_array()[i], fmt::format("{}[{}]", where, i)));
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
Status read_choice(const Json& value, std::string_view where, ResponseRequest& out) {
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

Status read_metadata(const Json& value, std::string_view where, ResponseRequest& out) {
  if (!value.is_object()) return wrong_type(where, "an object", value);
  out.metadata_echo = json::serialize(value);
  return {};
}

const Fields<ResponseRequest>& response_fields() {
  using R = ResponseRequest;
  static const Fields<R> fields = [] {
    const std::string object = R"({"type":"object"})";
    const std::string list = R"({"type":"array","items":{"type":"object"}})";
    Fields<R> f = {
        custom<R>("input", R"({"anyOf":[{"type":"string"},{"type":"array"}]})",
                  "a text, or a list of items", read_input),
        field<R>("model", "echoed; one model is served", &R::model),
        field<R>("instructions", "the system prompt of this request", &R::instructions),
        field<R>("previous_response_id", "the stored answer that this request continues",
                 &R::previous_response_id),
        field<R>(
            "max_output_tokens", "of the answer, reasoning included",
            [](R & r) -> auto& { return r.sampling.max_new_tokens; }),
        field<R>(
            "temperature", "of sampling", [](R & r) -> auto& { return r.sampling.temperature; }),
        field<R>(
            "top_p", "of sampling", [](R & r) -> auto& { return r.sampling.top_p; }),
        field<R>("stream", "answer as server-sent events", &R::stream),
        field<R>("store", "whether the answer can be fetched and continued; default true",
                 &R::store),
        custom<R>("tools", list, "functions that the answer may call", read_flat_tools),
        custom<R>("tool_choice", R"({"anyOf":[{"type":"string"},{"type":"object"}]})",
                  "auto, none, required, a function or allowed_tools", read_choice),
        field<R>("parallel_tool_calls", "whether an answer may call more than one; default true",
                 &R::parallel_tool_calls),
        custom<R>("text", object, "the format of the answer", read_text_config),
        custom<R>("reasoning", object, "effort", read_reasoning_config),
        custom<R>("metadata", object, "echoed", read_metadata),
        field<R>("rid", "request id, for /abort_request", &R::rid),
        field<R>("priority", "larger is sooner, where the scheduler has priorities", &R::priority),
        refused<R>("background"),
        refused<R>("conversation"),
        refused<R>("prompt"),
        refused<R>("top_logprobs"),
    };
    for (const char* name :
         {"include", "max_tool_calls", "prompt_cache_key", "prompt_cache_retention",
          "safety_identifier", "service_tier", "stream_options", "truncation", "user"})
      f.push_back(ignored<R>(name));
    f[0].required = true;
    return f;
  }();
  return fields;
}

Result<ResponseRequest> parse(std::string_view body, bool& malformed) {
  return parse_body(response_fields(), body, malformed);
}
std::string response_schema() { return schema_of(response_fields()); }

class ResponseGeneration final : public ChatDialectGeneration {
 public:
  ResponseGeneration(ContextPtr context, net::ResponsePtr response, GenerationItem item,
                     ResponseRequest&& request, const AnswerFormat& format)
      : ChatDialectGeneration(std::move(context), std::move(response), std::move(item), request,
                              format),
        request_(std::move(request)),
        id_("resp_" + samples()[0].rid),
        created_(std::chrono::duration_cast<std::chrono::seconds>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count()),
        items_(samples()[0].rid, [this](size_t index) { return call_id(index, "call_"); }) {}

 protected:
  Dialect dialect() const override { return Dialect::kOpenAi; }
  Status in_client_names(const Status& status) const override {
    return {status.code(), renamed(status.message(), "max_new_tokens", "max_output_tokens")};
  }

  void append_events(std::string& out, const Sample& sample) override {
    if (!sample.sent_any) {
      append_response_event(out, "response.created", sample);
      append_response_event(out, "response.in_progress", sample);
    }
    items_.consume(answer().read(sample.text, sample.finish.has_value()), &out);
    if (!sample.finish) return;
    items_.close(&out);
    append_response_event(out, cut(sample) ? "response.incomplete" : "response.completed", sample);
    store(sample);
  }
  void append_end(std::string&) override {}  // the last event has ended it
  void append_failure(std::string& out, const Status& status) override {
    items_.append_event(out, "error", [&](JsonWriter& w) {
      w.member("code", error_type(status.code())).member("message", status.message());
      w.key("param").null();
    });
  }

  std::string whole_body() override {
    const Sample& sample = samples()[0];
    items_.consume(answer().read(sample.text, true), nullptr);
    items_.close(nullptr);
    store(sample);
    return response_json(sample);
  }

 private:
  using Kind = OutputItem::Kind;

  static bool cut(const Sample& sample) {
    return sample.finish && sample.finish->type == FinishReason::Type::kLength;
  }

  void append_response_event(std::string& out, std::string_view type, const Sample& sample) {
    items_.append_event(out, type,
                        [&](JsonWriter& w) { w.key("response").raw(response_json(sample)); });
  }

  std::string response_json(const Sample& sample) const {
    std::string out;
    JsonWriter w(out);
    const bool ended = sample.finish.has_value();
    w.begin_object().member("id", id_).member("object", "response");
    w.member("created_at", created_);
    w.member("status", !ended ? "in_progress" : cut(sample) ? "incomplete" : "completed");
    w.member("background", false).key("error").null().key("incomplete_details");
    cut(sample) ? w.raw(R"({"reason":"max_output_tokens"})") : w.null();
    write_request(w);
    w.key("output").begin_array();
    for (const OutputItem& item : items_.all()) write_item(w, item);
    w.end_array().key("usage");
    ended ? write_usage(w, sample) : static_cast<void>(w.null());
    w.end_object();
    return out;
  }

  void write_request(JsonWriter& w) const {
    const auto text_or_null = [&](std::string_view name, const std::string& text) {
      w.key(name);
      text.empty() ? w.null() : w.value(text);
    };
    const SamplingParams& sampling = request_.sampling;
    text_or_null("instructions", request_.instructions);
    w.member("max_output_tokens", sampling.max_new_tokens).member("model", model());
    w.member("parallel_tool_calls", request_.parallel_tool_calls);
    text_or_null("previous_response_id", request_.previous_response_id);
    w.key("reasoning").begin_object().member("effort", request_.effort);
    w.key("summary").null().end_object();
    w.member("service_tier", "default").member("store", request_.store);
    w.member("temperature", sampling.temperature.value_or(1.0f));
    w.key("text").raw(request_.text_echo).key("tool_choice").raw(request_.choice_echo);
    w.key("tools").raw(request_.tools_echo).member("top_logprobs", 0);
    w.member("top_p", sampling.top_p.value_or(1.0f)).member("truncation", "disabled");
    w.key("user").null().key("metadata").raw(request_.metadata_echo);
  }

  void write_usage(JsonWriter& w, const Sample& sample) const {
    const RequestStats& s = sample.stats;
    int64_t reasoning = 0;
    const Tokenizer* tokenizer = context().engine.tokenizer();
    for (const OutputItem& item : items_.all()) {
      if (item.kind != Kind::kReasoning || tokenizer == nullptr) continue;
      EncodeOptions options;
      options.add_special_tokens = false;
      reasoning += std::ssize(tokenizer->encode(item.text, options));
    }
    w.begin_object().member("input_tokens", s.prompt_tokens).key("input_tokens_details");
    w.begin_object().member("cached_tokens", s.cached_tokens).end_object();
    w.member("output_tokens", s.completion_tokens).key("output_tokens_details");
    w.begin_object().member("reasoning_tokens", reasoning).end_object();
    w.member("total_tokens", s.prompt_tokens + s.completion_tokens).end_object();
  }

  void store(const Sample& sample) {
    if (!request_.store) return;
    json::array messages = request_.messages->get_array();
    if (!request_.instructions.empty()) messages.erase(messages.begin());
    json::object turn{{"role", "assistant"}, {"content", ""}};
    json::array calls;
    for (const OutputItem& item : items_.all()) {
      if (item.kind == Kind::kReasoning) continue;  // templates drop it from earlier turns
      if (item.kind == Kind::kMessage) turn["content"] = item.text;
      if (item.kind == Kind::kCall)
        calls.push_back(function_call(item.call_id, item.name, item.text));
    }
    if (!calls.empty()) turn["tool_calls"] = std::move(calls);
    messages.push_back(std::move(turn));
    context().responses->put(id_, {response_json(sample), request_.input, std::move(messages)},
                             std::chrono::steady_clock::now());
  }

  const ResponseRequest request_;
  const std::string id_;
  const int64_t created_;  // Unix seconds
  ResponseItems items_;
};

Status no_such_response(std::string_view id) {
  return error(StatusCode::kNotFound,
               "there is no stored response '{}': it was not stored, was deleted, or has expired",
               id);
}

// Instructions, the conversation that is continued, and the input.
Status join_conversation(const Context& context, ResponseRequest& request) {
  json::array messages;
  if (!request.instructions.empty())
    messages.push_back(json::object{{"role", "system"}, {"content", request.instructions}});
  if (!request.previous_response_id.empty()) {
    const auto previous =
        context.responses->get(request.previous_response_id, std::chrono::steady_clock::now());
    if (previous == nullptr) return no_such_response(request.previous_response_id);
    for (const Json& message : previous->messages) messages.push_back(message);
  }
  for (Json& turn : request.turns) messages.push_back(std::move(turn));
  return finish_chat(std::move(messages), request);
}

Result<ChatPlan> plan_of(const Context& context, ResponseRequest& request) {
  ESP_RETURN_IF_ERROR(join_conversation(context, request));
  return plan_chat(context, request);
}

std::shared_ptr<Generation> start(const ContextPtr& context, const net::ResponsePtr& response,
                                  ResponseRequest&& request) {
  auto plan = plan_of(*context, request);
  if (!plan) {
    response->send(error_response(Dialect::kOpenAi, plan.error()));
    return nullptr;
  }
  GenerationItem item = chat_item(*context, request, *plan);
  return std::make_shared<ResponseGeneration>(context, response, std::move(item),
                                              std::move(request), plan->answer);
}

void handle_create(const ContextPtr& context, net::HttpRequest&& request,
                   net::ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kOpenAi, parse,
                   start);
}

std::shared_ptr<const StoredResponse> stored(const ContextPtr& context,
                                             const net::HttpRequest& request,
                                             const net::ResponsePtr& response) {
  const std::string id(request.param("id"));
  auto found = context->responses->get(id, std::chrono::steady_clock::now());
  if (found == nullptr) response->send(error_response(Dialect::kOpenAi, no_such_response(id)));
  return found;
}

void handle_get(const ContextPtr& context, net::HttpRequest&& request, net::ResponsePtr response) {
  if (const auto found = stored(context, request, response))
    response->send(net::HttpResponse::json(200, found->body));
}

void handle_input_items(const ContextPtr& context, net::HttpRequest&& request,
                        net::ResponsePtr response) {
  const auto found = stored(context, request, response);
  if (found == nullptr) return;
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("object", "list").key("data").raw(found->input);
  w.key("first_id").null().key("last_id").null().member("has_more", false).end_object();
  response->send(net::HttpResponse::json(200, std::move(out)));
}

void handle_delete(const ContextPtr& context, net::HttpRequest&& request,
                   net::ResponsePtr response) {
  const std::string id(request.param("id"));
  if (!context->responses->erase(id))
    return response->send(error_response(Dialect::kOpenAi, no_such_response(id)));
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("id", id).member("object", "response").member("deleted", true);
  w.end_object();
  response->send(net::HttpResponse::json(200, std::move(out)));
}

void handle_cancel(const ContextPtr& context, net::HttpRequest&& request,
                   net::ResponsePtr response) {
  if (stored(context, request, response) == nullptr) return;
  response->send(error_response(
      Dialect::kOpenAi,
      invalid_argument("only responses that run in the background can be cancelled; this one has "
                       "ended")));
}

}  // namespace

const std::vector<Route>& responses_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/v1/responses",
       kUser,
       "Responses (OpenAI)",
       handle_create,
       "ResponseRequest",
       response_schema},
      {{"GET"}, "/v1/responses/{id}", kUser, "A stored response", handle_get, "", nullptr},
      {{"DELETE"},
       "/v1/responses/{id}",
       kUser,
       "Delete a stored response",
       handle_delete,
       "",
       nullptr},
      {{"GET"},
       "/v1/responses/{id}/input_items",
       kUser,
       "What a stored response answered",
       handle_input_items,
       "",
       nullptr},
      {{"POST"},
       "/v1/responses/{id}/cancel",
       kUser,
       "Cancel a response",
       handle_cancel,
       "",
       nullptr},
  };
  return table;
}

}  // namespace espalier::server
