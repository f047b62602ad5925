// Anthropic's dialect: POST /v1/messages and /v1/messages/count_tokens, as its clients and Claude
// Code speak it. Messages and tools become those of a chat; the answer is written as blocks of
// thinking, text and calls. Every prefix is kept in the radix tree; usage states what was read from
// it, and what was added to it in front of the last cache_control.
#include "server/dialects/cache_mark.h"
#include "server/dialects/chat_dialect.h"
#include "server/images.h"
#include "server/openai_generation.h"
#include "server/routes.h"
#include "server/start_generation.h"

namespace espalier::server {
namespace {

namespace json = boost::json;

struct MessagesRequest : ChatRequest {
  json::array system;  // messages of role system: none or one
  json::array turns;
  // The last cache_control of each part, in the order of the prompt; `turns` counts from the first
  // turn on. `whole`: of the request itself, for all of it.
  struct {
    std::optional<CacheMark> tools, system, turns, whole;
  } marks;
  std::optional<CacheMark> mark;  // the last of them
};

// Claude Code's system prompt begins with a block that differs from request to request and is meant
// for billing; it would keep the prefixes of a conversation from being equal.
constexpr std::string_view kBillingMark = "x-anthropic-billing-header";

Status read_text_block(const Json& block, std::string_view where, std::string& out) {
  const json::object* members = block.if_object();
  if (members == nullptr || string_member(*members, "type") != "text" ||
      !members->contains("text") || !members->at("text").is_string())
    return wrong_type(where, "a text block", block);
  const std::string_view text = string_member(*members, "text");
  if (text.starts_with(kBillingMark)) return {};
  if (!out.empty()) out += "\n";
  out += text;
  return {};
}

// A string or a list of text blocks; `mark` gets the last cache_control among them.
Status read_text(const Json& value, std::string_view where, std::string& out,
                 std::optional<CacheMark>& mark) {
  if (value.is_string()) {
    out = view(value.get_string());
    return {};
  }
  if (!value.is_array()) return wrong_type(where, "a string or a list of text blocks", value);
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    const Json& block = value.get_array()[i];
    const std::string at = fmt::format("{}[{}]", where, i);
    ESP_RETURN_IF_ERROR(read_text_block(block, at, out));
    ESP_ASSIGN_OR_RETURN(std::optional<CacheMark> found, read_mark_of(block.get_object(), at));
    if (!found) continue;
    mark = found;
    mark->text_bytes = out.size();
  }
  return {};
}

Status read_system(const Json& value, std::string_view where, MessagesRequest& out) {
  std::string text;
  ESP_RETURN_IF_ERROR(read_text(value, where, text, out.marks.system));
  if (text.empty()) out.marks.system.reset();
  if (!text.empty()) out.system = {json::object{{"role", "system"}, {"content", text}}};
  return {};
}

// Collects the blocks of one turn.
class TurnReader {
 public:
  TurnReader(std::string_view role, MessagesRequest& request)
      : assistant_(role == "assistant"), request_(request), out_(request.turns) {}

  Status read(const Json& block, const std::string& where) {
    const json::object* members = block.if_object();
    if (members == nullptr) return wrong_type(where, "a block", block);
    ESP_RETURN_IF_ERROR(read_content(block, *members, where));
    ESP_ASSIGN_OR_RETURN(std::optional<CacheMark> mark, read_mark_of(*members, where));
    if (!mark) return {};
    const std::string_view type = string_member(*members, "type");
    // A result of a call is a message of its own; all else is in the one that finish() makes.
    if (type == "tool_result") {
      mark->num_messages = out_.size();
      request_.marks.turns = mark;
      return {};
    }
    if (type == "text" || type == "document") mark->text_bytes = text_.size();
    mark_ = mark;
    return {};
  }

  // Results of calls come before what the user says with them.
  void finish() {
    json::object message{{"role", assistant_ ? "assistant" : "user"}, {"content", text_}};
    if (!parts_.empty()) message["content"] = take_parts();
    if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
    const bool says =
        message["content"].is_array() || !text_.empty() || !reasoning_.empty() || !calls_.empty();
    if (!calls_.empty()) message["tool_calls"] = std::move(calls_);
    if (!says && !assistant_) return;
    if (mark_) {
      if (message["content"].is_array()) mark_->text_bytes.reset();  // parts are not cut
      mark_->num_messages = out_.size() + (mark_->text_bytes ? 0 : 1);
      request_.marks.turns = mark_;
    }
    out_.push_back(std::move(message));
  }

 private:
  Status read_content(const Json& block, const json::object& members, const std::string& where) {
    const std::string_view type = string_member(members, "type");
    if (type == "text") return read_text_block(block, where, text_);
    if (type == "document") return read_document(members, where);
    if (!assistant_ && type == "tool_result") return read_result(members, where);
    if (assistant_ && type == "tool_use") return read_call(members, where);
    if (assistant_ && type == "thinking") {
      reasoning_ += string_member(members, "thinking");
      return {};
    }
    if (assistant_ && type == "redacted_thinking") return {};
    if (!assistant_ && type == "image") return read_picture_block(members, where);
    return invalid_argument(
        "{}.type is \"{}\": it must be {}", where, type,
        assistant_ ? "text, thinking or tool_use" : "text, image, tool_result or document");
  }

  // Of a document its text; other sources need a reader of their format.
  Status read_document(const json::object& block, const std::string& where) {
    const Json* source = block.if_contains("source");
    const json::object* members = source != nullptr ? source->if_object() : nullptr;
    if (members == nullptr || string_member(*members, "type") != "text")
      return error(StatusCode::kUnimplemented,
                   "{}.source.type must be text: other documents are not supported", where);
    if (!text_.empty()) text_ += "\n";
    text_ += string_member(*members, "data");
    return {};
  }

  // {"type": "base64", "media_type", "data"} or {"type": "url", "url"}.
  Status read_picture_block(const json::object& block, const std::string& where) {
    const Json* source = block.if_contains("source");
    const json::object* members = source != nullptr ? source->if_object() : nullptr;
    const std::string_view type = members != nullptr ? string_member(*members, "type") : "";
    const std::string_view text = type == "base64"
                                      ? string_member(*members, "data")
                                      : (type == "url" ? string_member(*members, "url") : "");
    if (text.empty())
      return invalid_argument(
          "{}.source must be {{\"type\": \"base64\", \"media_type\", \"data\"}} or {{\"type\": "
          "\"url\", \"url\"}}",
          where);
    take_text();
    parts_.push_back(picture_part(text));
    return {};
  }

  // What was said so far becomes a part.
  void take_text() {
    if (!text_.empty()) parts_.push_back(json::object{{"type", "text"}, {"text", text_}});
    text_.clear();
  }
  json::array take_parts() {
    take_text();
    return std::exchange(parts_, {});
  }

  Status read_result(const json::object& block, const std::string& where) {
    std::string text;
    std::optional<CacheMark> inner;  // marks within a result count for nothing
    const Json* content = block.if_contains("content");
    if (content != nullptr && !content->is_null())
      ESP_RETURN_IF_ERROR(read_text(*content, where + ".content", text, inner));
    const std::string_view id = string_member(block, "tool_use_id");
    if (id.empty()) return invalid_argument("{}.tool_use_id is missing", where);
    out_.push_back(json::object{
        {"role", "tool"}, {"tool_call_id", json::string(id.data(), id.size())}, {"content", text}});
    return {};
  }

  Status read_call(const json::object& block, const std::string& where) {
    const std::string_view name = string_member(block, "name");
    if (name.empty()) return invalid_argument("{}.name is missing", where);
    const Json* input = block.if_contains("input");
    calls_.push_back(function_call(string_member(block, "id"), name,
                                   input != nullptr ? json::serialize(*input) : "{}"));
    return {};
  }

  const bool assistant_;
  MessagesRequest& request_;
  json::array& out_;  // the request's turns
  std::string text_, reasoning_;
  json::array parts_;  // pictures and the texts before them
  json::array calls_;
  std::optional<CacheMark> mark_;  // the last one in the message that finish() makes
};

Status read_turn(const Json& turn, const std::string& where, MessagesRequest& out) {
  const json::object* members = turn.if_object();
  if (members == nullptr) return wrong_type(where, "a message", turn);
  const std::string_view role = string_member(*members, "role");
  if (role != "user" && role != "assistant" && role != "system")
    return invalid_argument("{}.role must be user or assistant", where);
  const Json* content = members->if_contains("content");
  if (content == nullptr) return invalid_argument("{}.content is missing", where);
  if (content->is_string() || role == "system") {
    std::string text;
    std::optional<CacheMark> mark;
    ESP_RETURN_IF_ERROR(read_text(*content, where + ".content", text, mark));
    if (mark) mark->num_messages = out.turns.size();
    if (mark) out.marks.turns = mark;
    out.turns.push_back(json::object{{"role", json::string(role.data(), role.size())},
                                     {"content", std::move(text)}});
    return {};
  }
  if (!content->is_array())
    return wrong_type(where + ".content", "a string or a list of blocks", *content);
  TurnReader reader(role, out);
  for (size_t i = 0; i < content->get_array().size(); ++i)
    ESP_RETURN_IF_ERROR(
        reader.read(content->get_array()[i], fmt::format("{}.content[{}]", where, i)));
  reader.finish();
  return {};
}

Status read_turns(const Json& value, std::string_view where, MessagesRequest& out) {
  if (!value.is_array()) return wrong_type(where, "a list of messages", value);
  for (size_t i = 0; i < value.get_array().size(); ++i)
    ESP_RETURN_IF_ERROR(read_turn(value.get_array()[i], fmt::format("{}[{}]", where, i), out));
  return {};
}

// {"name", "description", "input_schema"}; tools that Anthropic runs itself have a type and a date.
Status read_tools_of(const Json& value, std::string_view where, MessagesRequest& out) {
  if (!value.is_array()) return wrong_type(where, "a list of tools", value);
  json::array tools;
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    const Json& tool = value.get_array()[i];
    const std::string at = fmt::format("{}[{}]", where, i);
    const json::object* members = tool.if_object();
    if (members == nullptr) return wrong_type(at, "a tool", tool);
    const std::string_view type = string_member(*members, "type");
    if (!type.empty() && type != "custom")
      return error(StatusCode::kUnimplemented,
                   "{}.type is \"{}\": only tools of the client's own (type custom) are called", at,
                   type);
    if (string_member(*members, "name").empty())
      return invalid_argument("{}.name must be a string, not empty", at);
    tools.push_back(function_tool(string_member(*members, "name"),
                                  members->if_contains("description"),
                                  members->if_contains("input_schema")));
    ESP_ASSIGN_OR_RETURN(std::optional<CacheMark> mark, read_mark_of(*members, at));
    if (mark) out.marks.tools = mark;
  }
  return read_tools(Json(std::move(tools)), where, out.tools);
}

Status read_choice(const Json& value, std::string_view where, MessagesRequest& out) {
  using Choice = ChatRequest::ToolChoice;
  const json::object* members = value.if_object();
  if (members == nullptr) return wrong_type(where, "an object with a type", value);
  const std::string_view type = string_member(*members, "type");
  if (const Json* single = members->if_contains("disable_parallel_tool_use"))
    out.parallel_tool_calls = *single != true;
  for (const auto& [name, meant] :
       {std::pair("auto", Choice::kAuto), std::pair("any", Choice::kRequired),
        std::pair("tool", Choice::kNamed), std::pair("none", Choice::kNone)}) {
    if (type != name) continue;
    out.tool_choice = meant;
    out.tool_name = string_member(*members, "name");
    return {};
  }
  return invalid_argument("{}.type is \"{}\": it must be auto, any, tool or none", where, type);
}

Status read_whole_mark(const Json& value, std::string_view where, MessagesRequest& out) {
  ESP_ASSIGN_OR_RETURN(out.marks.whole, read_cache_control(value, where));
  return {};
}

// The last mark, placed among all messages. Tools stand in front of all turns.
std::optional<CacheMark> last_mark(const MessagesRequest& request) {
  std::optional<CacheMark> mark = request.marks.whole;
  if (mark) mark->num_messages = request.system.size() + request.turns.size();
  if (!mark && (mark = request.marks.turns)) mark->num_messages += request.system.size();
  if (!mark) mark = request.marks.system;
  if (!mark && (mark = request.marks.tools)) mark->num_messages = request.system.size();
  return mark;
}

// Without "enabled" or "adaptive" a template that can leave thinking out does so.
void set_thinking(bool on, MessagesRequest& out) {
  out.template_kwargs =
      std::make_shared<const Json>(json::object{{"enable_thinking", on}, {"thinking", on}});
}
Status read_thinking(const Json& value, std::string_view where, MessagesRequest& out) {
  const json::object* members = value.if_object();
  const std::string_view type = members != nullptr ? string_member(*members, "type") : "";
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    return wrong_type(where, "an object of type enabled, adaptive or disabled", value);
  set_thinking(type != "disabled", out);
  return {};
}

// {"type": "json_schema", "schema": {...}}
Status read_output_format(const Json& value, std::string_view where, MessagesRequest& out) {
  const json::object* members = value.if_object();
  const Json* schema = members != nullptr ? members->if_contains("schema") : nullptr;
  if (schema == nullptr || string_member(*members, "type") != "json_schema" || !schema->is_object())
    return wrong_type(where, "an object of type json_schema with a schema", value);
  out.sampling.json_schema = json::serialize(*schema);
  return {};
}

Status read_output_config(const Json& value, std::string_view where, MessagesRequest& out) {
  const json::object* members = value.if_object();
  if (members == nullptr) return wrong_type(where, "an object", value);
  if (const std::string_view effort = string_member(*members, "effort"); !effort.empty())
    out.reasoning_effort = effort;
  const Json* format = members->if_contains("format");
  if (format == nullptr || format->is_null()) return {};
  return read_output_format(*format, std::string(where) + ".format", out);
}

const Fields<MessagesRequest>& messages_fields() {
  using M = MessagesRequest;
  static const Fields<M> fields = [] {
    const std::string object = R"({"type":"object"})";
    const std::string list = R"({"type":"array","items":{"type":"object"}})";
    Fields<M> f = {
        field<M>("model", "echoed; one model is served", &M::model),
        custom<M>("messages", list, "the conversation", read_turns),
        field<M>(
            "max_tokens", "of the answer",
            [](M & m) -> auto& { return m.sampling.max_new_tokens; }),
        custom<M>("system", R"({"anyOf":[{"type":"string"},{"type":"array"}]})",
                  "the system prompt", read_system),
        field<M>(
            "stop_sequences", "texts that end the answer",
            [](M & m) -> auto& { return m.sampling.stop; }),
        field<M>("stream", "answer as server-sent events", &M::stream),
        field<M>(
            "temperature", "of sampling", [](M & m) -> auto& { return m.sampling.temperature; }),
        field<M>(
            "top_p", "of sampling", [](M & m) -> auto& { return m.sampling.top_p; }),
        field<M>(
            "top_k", "of sampling", [](M & m) -> auto& { return m.sampling.top_k; }),
        custom<M>("tools", list, "tools that the answer may call", read_tools_of),
        custom<M>("tool_choice", object, "auto, any, tool or none", read_choice),
        custom<M>("thinking", object, "whether the model thinks first", read_thinking),
        custom<M>("output_config", object, "effort, and a JSON Schema as format",
                  read_output_config),
        custom<M>("output_format", object, "a JSON Schema of the answer", read_output_format),
        field<M>("rid", "request id, for /abort_request", &M::rid),
        field<M>("priority", "larger is sooner, where the scheduler has priorities", &M::priority),
        custom<M>("cache_control", object, "counts the whole prompt as written to the cache",
                  read_whole_mark),
        refused<M>("mcp_servers"),
    };
    for (const char* name :
         {"metadata", "service_tier", "container", "context_management", "inference_geo", "speed"})
      f.push_back(ignored<M>(name));
    f[1].required = true;
    return f;
  }();
  return fields;
}

Result<MessagesRequest> parse(std::string_view body, bool& malformed) {
  MessagesRequest request;
  set_thinking(false, request);
  ESP_RETURN_IF_ERROR(read_body(body, malformed, [&](const Json& value) {
    return read_fields(messages_fields(), value, "", request);
  }));
  request.mark = last_mark(request);
  json::array all = std::move(request.system);
  for (Json& turn : request.turns) all.push_back(std::move(turn));
  // A last turn of the assistant is the beginning of the answer.
  request.continue_final_message = !all.empty() && all.back().at("role") == "assistant";
  ESP_RETURN_IF_ERROR(finish_chat(std::move(all), request));
  return request;
}

Result<MessagesRequest> parse_messages(std::string_view body, bool& malformed) {
  ESP_ASSIGN_OR_RETURN(MessagesRequest request, parse(body, malformed));
  if (!request.sampling.max_new_tokens) return fail(invalid_argument("max_tokens is missing"));
  return request;
}

std::string messages_schema() { return schema_of(messages_fields()); }

void append_event(std::string& out, std::string_view type, std::string_view payload) {
  out.append("event: ").append(type).append("\n");
  net::append_sse(out, payload);
}

// Tokens in front of the last cache_control; 0 where there is none.
struct MarkedTokens {
  int64_t count = 0;
  bool hour = false;
};

class MessagesGeneration final : public ChatDialectGeneration {
 public:
  MessagesGeneration(ContextPtr context, net::ResponsePtr response, GenerationItem item,
                     const ChatRequest& request, const AnswerFormat& format, MarkedTokens marked)
      : ChatDialectGeneration(std::move(context), std::move(response), std::move(item), request,
                              format),
        marked_(marked) {}

 protected:
  Dialect dialect() const override { return Dialect::kAnthropic; }
  Status in_client_names(const Status& status) const override {
    return {status.code(), renamed(status.message(), "max_new_tokens", "max_tokens")};
  }

  void append_events(std::string& out, const Sample& sample) override {
    if (!sample.sent_any) append_start(out, sample);
    const ChatAnswer::Delta delta = answer().read(sample.text, sample.finish.has_value());
    if (!delta.reasoning.empty()) append_delta(out, Block::kThinking, delta.reasoning);
    append_text(out, delta.text);
    for (const ToolCallParts::Piece& piece : delta.pieces) {
      if (!piece.name.empty()) open_call(out, static_cast<size_t>(piece.index), piece.name);
      if (!piece.arguments.empty()) append_delta(out, Block::kCall, piece.arguments);
    }
    if (sample.finish) append_finish(out, sample);
  }
  void append_end(std::string&) override {}  // message_stop has ended it
  void append_failure(std::string& out, const Status& status) override {
    append_event(out, "error", stream_error(dialect(), status));
  }

  std::string whole_body() override {
    const Sample& sample = samples()[0];
    answer().read(sample.text, true);
    std::string out;
    JsonWriter w(out);
    begin_message(w, sample);
    w.key("content").begin_array();
    if (!answer().reasoning().empty()) {
      w.begin_object().member("type", "thinking").member("thinking", answer().reasoning());
      w.member("signature", "").end_object();
    }
    if (!is_blank(answer().text()))
      w.begin_object().member("type", "text").member("text", answer().text()).end_object();
    for (size_t i = 0; i < answer().calls().size(); ++i) {
      const ChatAnswer::Call& call = answer().calls()[i];
      w.begin_object().member("type", "tool_use").member("id", call_id(i, "toolu_"));
      w.member("name", call.name).key("input");
      w.raw(json::serialize(arguments_value(call.arguments))).end_object();
    }
    w.end_array();
    write_stop(w, sample);
    w.key("usage");
    write_usage(w, sample);
    w.end_object();
    return out;
  }

 private:
  enum class Block { kNone, kThinking, kText, kCall };

  void begin_message(JsonWriter& w, const Sample& sample) const {
    w.begin_object().member("id", "msg_" + sample.rid).member("type", "message");
    w.member("role", "assistant").member("model", model());
  }

  // A prompt's tokens are those that were read from the radix tree, those that were added to it in
  // front of the mark, and the others.
  void write_usage(JsonWriter& w, const Sample& sample) const {
    const int64_t cached = sample.stats.cached_tokens, fresh = sample.stats.prompt_tokens - cached;
    const int64_t created = std::clamp<int64_t>(marked_.count - cached, 0, fresh);
    w.begin_object().member("input_tokens", fresh - created);
    w.member("cache_creation_input_tokens", created).member("cache_read_input_tokens", cached);
    w.key("cache_creation").begin_object();
    w.member("ephemeral_5m_input_tokens", marked_.hour ? 0 : created);
    w.member("ephemeral_1h_input_tokens", marked_.hour ? created : 0).end_object();
    w.member("output_tokens", sample.stats.completion_tokens).end_object();
  }

  void write_stop(JsonWriter& w, const Sample& sample) const {
    const FinishReason& finish = *sample.finish;
    const auto* text = std::get_if<std::string>(&finish.matched);
    std::string_view reason = "end_turn";
    if (finish.type == FinishReason::Type::kLength) reason = "max_tokens";
    if (text != nullptr) reason = "stop_sequence";
    if (waits_for_results(sample)) reason = "tool_use";
    w.member("stop_reason", reason).key("stop_sequence");
    text != nullptr ? w.value(*text) : w.null();
  }

  void append_start(std::string& out, const Sample& sample) const {
    std::string payload;
    JsonWriter w(payload);
    w.begin_object().member("type", "message_start").key("message");
    begin_message(w, sample);
    w.key("content").begin_array().end_array().key("stop_reason").null();
    w.key("stop_sequence").null().key("usage");
    write_usage(w, sample);
    w.end_object().end_object();
    append_event(out, "message_start", payload);
  }

  template <typename Write>
  void append_block_event(std::string& out, std::string_view type, Write write) const {
    std::string payload;
    JsonWriter w(payload);
    w.begin_object().member("type", type).member("index", num_blocks_ - 1);
    write(w);
    w.end_object();
    append_event(out, type, payload);
  }

  void close(std::string& out) {
    if (open_ == Block::kNone) return;
    append_block_event(out, "content_block_stop", [](JsonWriter&) {});
    open_ = Block::kNone;
  }

  template <typename Write>
  void open(std::string& out, Block kind, Write write) {
    close(out);
    ++num_blocks_;
    open_ = kind;
    append_block_event(out, "content_block_start", [&](JsonWriter& w) {
      w.key("content_block").begin_object();
      write(w);
      w.end_object();
    });
  }

  void open_call(std::string& out, size_t index, std::string_view name) {
    blank_.clear();
    open(out, Block::kCall, [&](JsonWriter& w) {
      w.member("type", "tool_use").member("id", call_id(index, "toolu_")).member("name", name);
      w.key("input").begin_object().end_object();
    });
  }

  // A block of text does not begin with white space alone, which stands around calls.
  void append_text(std::string& out, std::string_view text) {
    if (text.empty()) return;
    blank_ += text;
    if (open_ != Block::kText && is_blank(blank_)) return;
    append_delta(out, Block::kText, std::exchange(blank_, {}));
  }

  void append_delta(std::string& out, Block kind, std::string_view text) {
    if (open_ != kind)
      open(out, kind, [&](JsonWriter& w) {
        if (kind == Block::kText) {
          w.member("type", "text").member("text", "");
        } else {
          w.member("type", "thinking").member("thinking", "").member("signature", "");
        }
      });
    append_block_event(out, "content_block_delta", [&](JsonWriter& w) {
      w.key("delta").begin_object();
      switch (kind) {
        case Block::kThinking:
          w.member("type", "thinking_delta").member("thinking", text);
          break;
        case Block::kCall:
          w.member("type", "input_json_delta").member("partial_json", text);
          break;
        default:
          w.member("type", "text_delta").member("text", text);
      }
      w.end_object();
    });
  }

  void append_finish(std::string& out, const Sample& sample) {
    close(out);
    std::string payload;
    JsonWriter w(payload);
    w.begin_object().member("type", "message_delta").key("delta").begin_object();
    write_stop(w, sample);
    w.end_object().key("usage");
    write_usage(w, sample);
    w.end_object();
    append_event(out, "message_delta", payload);
    append_event(out, "message_stop", R"({"type":"message_stop"})");
  }

  const MarkedTokens marked_;
  Block open_ = Block::kNone;
  int num_blocks_ = 0;
  std::string blank_;  // white space that may become the beginning of a text
};

std::shared_ptr<Generation> start_messages(const ContextPtr& context,
                                           const net::ResponsePtr& response,
                                           MessagesRequest&& request) {
  const std::optional<ChatRequest> unplanned =
      request.mark ? std::optional<ChatRequest>(request) : std::nullopt;
  auto plan = plan_chat(*context, request);
  if (!plan) {
    response->send(error_response(Dialect::kAnthropic, plan.error()));
    return nullptr;
  }
  MarkedTokens marked;
  if (unplanned)
    marked = {tokens_before(*context, *unplanned, plan->prompt, *request.mark).value_or(0),
              request.mark->hour};
  GenerationItem item = chat_item(*context, request, *plan);
  return std::make_shared<MessagesGeneration>(context, response, std::move(item), request,
                                              plan->answer, marked);
}

void handle_messages(const ContextPtr& context, net::HttpRequest&& request,
                     net::ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kAnthropic,
                   parse_messages, start_messages);
}

Result<size_t> count_message_tokens(const Context& context, MessagesRequest& request) {
  ESP_ASSIGN_OR_RETURN(const ChatPlan plan, plan_chat(context, request));
  return count_prompt_tokens(context, plan);
}

void handle_count(const ContextPtr& context, net::HttpRequest&& request,
                  net::ResponsePtr response) {
  start_generation(context, std::move(request), std::move(response), Dialect::kAnthropic, parse,
                   [](const ContextPtr& in, const net::ResponsePtr& to,
                      MessagesRequest&& parsed) -> std::shared_ptr<Generation> {
                     const auto count = count_message_tokens(*in, parsed);
                     to->send(count ? net::HttpResponse::json(
                                          200, fmt::format(R"({{"input_tokens":{}}})", *count))
                                    : error_response(Dialect::kAnthropic, count.error()));
                     return nullptr;
                   });
}

}  // namespace

const std::vector<Route>& anthropic_routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {{"POST"},
       "/v1/messages",
       kUser,
       "Chat (Anthropic)",
       handle_messages,
       "MessagesRequest",
       messages_schema},
      {{"POST"},
       "/v1/messages/count_tokens",
       kUser,
       "Tokens of a chat (Anthropic)",
       handle_count,
       "MessagesRequest",
       messages_schema},
  };
  return table;
}

}  // namespace espalier::server
