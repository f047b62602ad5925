// Anthropic's messages. https://docs.anthropic.com/en/api/messages
#include "lang/backends/api_backend.h"
#include "lang/backends/chat_frames.h"
#include "seams/request_fields.h"

namespace espalier::lang {
namespace {

namespace json = boost::json;

constexpr const char* kApiVersion = "2023-06-01";

std::string trim_right(std::string text) {
  text.erase(text.find_last_not_of(" \n\t") + 1);
  return text;
}

class AnthropicBackend final : public ApiBackend {
 public:
  AnthropicBackend(AnthropicConfig config, std::unique_ptr<HttpCalls> calls)
      : ApiBackend(config.base_url + " " + config.model, config.prices, std::move(calls)),
        config_(std::move(config)) {}
  ~AnthropicBackend() override { close(); }

  bool is_chat() const override { return true; }
  RoleFrame role_frame(Role role, std::optional<Role> previous) const override {
    return frames_.frame(role, previous);
  }

 protected:
  Result<Request> write_call(const GenerateCall& call) const override;
  Result<Completion> read_answer(const json::object& answer) const override;
  Result<std::string> read_event(const json::object& event, Sample& sample) const override;

 private:
  static Result<json::value> content_of(const Message& message);
  static MetaInfo meta_of(const json::object& answer);

  const AnthropicConfig config_;
  const ChatFrames frames_;
};

Result<json::value> AnthropicBackend::content_of(const Message& message) {
  json::array blocks;
  for (const Part& part : message.parts) {
    if (!part.media) {
      if (!part.text.empty()) blocks.push_back({{"type", "text"}, {"text", part.text}});
      continue;
    }
    if (part.media->kind == Media::Kind::kVideo)
      return fail(error(StatusCode::kUnimplemented, "the Anthropic API reads no videos (\"{}\")",
                        part.media->path));
    ESP_ASSIGN_OR_RETURN(const MediaData data, read_media(*part.media));
    blocks.push_back(
        {{"type", "image"},
         {"source", {{"type", "base64"}, {"media_type", data.type}, {"data", data.base64}}}});
  }
  return json::value(std::move(blocks));
}

// Whether a field is stated that the Anthropic API does not define; n may be 1.
bool states_other_options(const GenOptions& o) {
  json::object stated;
  for_each_request_field([&](const auto& field) {
    if constexpr (HasField<decltype(field.option), const GenOptions>)
      set_member(stated, field.openai_name(), field.option(o));
  });
  for (const char* taken : {"max_tokens", "stop", "temperature", "top_p", "top_k", "n"})
    stated.erase(taken);
  return !stated.empty();
}

Result<ApiBackend::Request> AnthropicBackend::write_call(const GenerateCall& call) const {
  const GenOptions& o = call.options;
  const Prompt& prompt = call.prompt;
  if (!prompt.open || prompt.open->role != Role::kAssistant)
    return fail(error(StatusCode::kFailedPrecondition,
                      "a chat model writes messages of the assistant: put the gen into "
                      "assistant(...)"));
  if (o.dtype != Dtype::kText || o.n.value_or(1) > 1 || states_other_options(o))
    return fail(error(StatusCode::kUnimplemented,
                      "of a gen's options the Anthropic API takes max_tokens, stop, temperature, "
                      "top_p and top_k"));
  Request request{.path = "/v1/messages"};
  json::object& body = request.body;
  body["model"] = config_.model;
  body["max_tokens"] = o.max_tokens.value_or(128);
  set_members<std::string>(body, "stop_sequences", o.stop);
  if (o.temperature) body["temperature"] = *o.temperature;
  if (o.top_p) body["top_p"] = *o.top_p;
  if (o.top_k) body["top_k"] = *o.top_k;
  json::array messages;
  std::string system;
  for (const Message& message : prompt.messages) {
    if (message.role == Role::kSystem) {
      system += (system.empty() ? "" : "\n") + message.text();
      continue;
    }
    ESP_ASSIGN_OR_RETURN(json::value content, content_of(message));
    messages.push_back({{"role", role_name(message.role)}, {"content", std::move(content)}});
  }
  if (!system.empty()) body["system"] = system;
  // The API goes on with what the assistant has begun; it takes no white space at the end of that.
  if (const std::string begun = trim_right(prompt.open->text()); !begun.empty())
    messages.push_back({{"role", "assistant"}, {"content", begun}});
  body["messages"] = std::move(messages);
  return request;
}

MetaInfo AnthropicBackend::meta_of(const json::object& answer) {
  MetaInfo meta{.id = string_at(answer, "id")};
  const std::string reason = string_at(answer, "stop_reason");
  meta.finish_reason = reason == "max_tokens" ? "length" : "stop";
  meta.matched = string_at(answer, "stop_sequence");
  meta.cached_tokens = integer_at(answer, "usage.cache_read_input_tokens");
  meta.prompt_tokens = integer_at(answer, "usage.input_tokens") + meta.cached_tokens +
                       integer_at(answer, "usage.cache_creation_input_tokens");
  meta.completion_tokens = integer_at(answer, "usage.output_tokens");
  meta.json = json::serialize(json::object{{"id", meta.id},
                                           {"finish_reason", {{"type", meta.finish_reason}}},
                                           {"stop_reason", reason},
                                           {"prompt_tokens", meta.prompt_tokens},
                                           {"completion_tokens", meta.completion_tokens},
                                           {"cached_tokens", meta.cached_tokens}});
  return meta;
}

Result<Completion> AnthropicBackend::read_answer(const json::object& answer) const {
  const json::value* content = find_member(answer, "content");
  if (content == nullptr || !content->is_array())
    return fail(Status(StatusCode::kDataLoss, "the answer has no content"));
  Sample sample{.meta = meta_of(answer)};
  for (const json::value& block : content->get_array())
    if (block.is_object()) sample.text += string_at(block.get_object(), "text");
  return Completion{.samples = {std::move(sample)}};
}

Result<std::string> AnthropicBackend::read_event(const json::object& event, Sample& sample) const {
  const std::string type = string_at(event, "type");
  if (type == "error") return fail(status_of_answer(529, json::serialize(event)));
  if (type == "message_start") {
    if (const auto* message = find_member(event, "message");
        message != nullptr && message->is_object())
      sample.meta = meta_of(message->get_object());
  } else if (type == "content_block_delta") {
    return string_at(event, "delta.text");
  } else if (type == "message_delta") {
    sample.meta.finish_reason =
        string_at(event, "delta.stop_reason") == "max_tokens" ? "length" : "stop";
    sample.meta.matched = string_at(event, "delta.stop_sequence");
    sample.meta.completion_tokens = integer_at(event, "usage.output_tokens");
  }
  return std::string();
}

}  // namespace

Result<std::shared_ptr<Backend>> anthropic_backend(const AnthropicConfig& config) {
  if (config.model.empty())
    return fail(invalid_argument("name the model in AnthropicConfig::model"));
  net::Headers headers{{"x-api-key", config.api_key}, {"anthropic-version", kApiVersion}};
  ESP_ASSIGN_OR_RETURN(auto calls,
                       HttpCalls::create(config.base_url, std::move(headers), config.limits));
  return std::make_shared<AnthropicBackend>(config, std::move(calls));
}

}  // namespace espalier::lang
