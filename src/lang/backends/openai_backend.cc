// OpenAI's completions and chat completions, and servers that speak them.
#include <algorithm>

#include "lang/backends/api_backend.h"
#include "lang/backends/chat_frames.h"
#include "seams/request_fields.h"

namespace espalier::lang {
namespace {

namespace json = boost::json;

class OpenAiBackend final : public ApiBackend {
 public:
  OpenAiBackend(OpenAiConfig config, std::unique_ptr<HttpCalls> calls)
      : ApiBackend(config.base_url + " " + config.model, config.prices, std::move(calls)),
        config_(std::move(config)) {}
  ~OpenAiBackend() override { close(); }

  bool is_chat() const override { return config_.is_chat; }
  RoleFrame role_frame(Role role, std::optional<Role> previous) const override {
    return frames_.frame(role, previous);
  }
  void score(ScoreCall call, ScoreDone done) override;

 protected:
  Result<Request> write_call(const GenerateCall& call) const override;
  Result<Completion> read_answer(const json::object& answer) const override;
  Result<std::string> read_event(const json::object& event, Sample& sample) const override;

 private:
  Status add_options(json::object& body, const GenOptions& o) const;
  Status add_schema(json::object& body, const GenOptions& o) const;
  Status add_messages(json::object& body, const Prompt& prompt) const;
  MetaInfo meta_of(const json::object& answer, const json::object& choice) const;

  const OpenAiConfig config_;
  const ChatFrames frames_;  // how text() shows a conversation
};

// Those of the options that the OpenAI API does not define: "dtype, min_tokens ... and ebnf".
std::string extension_names() {
  std::string names = "dtype";
  for_each_request_field([&](const auto& field) {
    if constexpr (HasField<decltype(field.option), GenOptions>)
      if (!field.in(kInOpenAiStandard) && field.name != "json_schema")
        names.append(", ").append(field.openai_name());
  });
  return names;
}

Status OpenAiBackend::add_schema(json::object& body, const GenOptions& o) const {
  if (o.json_schema.empty()) return {};
  json::error_code failed;
  const json::value schema = json::parse(o.json_schema, failed);
  if (failed) return invalid_argument("json_schema is no JSON: {}", o.json_schema.substr(0, 80));
  if (config_.is_chat) {
    body["response_format"] = {{"type", "json_schema"},
                               {"json_schema", {{"name", "answer"}, {"schema", schema}}}};
  } else if (config_.has_extensions) {
    body["json_schema"] = o.json_schema;
  } else {
    return error(StatusCode::kUnimplemented,
                 "the OpenAI completions API takes no json_schema: use a chat model");
  }
  return {};
}

Status OpenAiBackend::add_options(json::object& body, const GenOptions& o) const {
  constexpr size_t kStopsMax = 4;  // of OpenAI's API; compatible servers take any number
  if (o.stop.size() > kStopsMax && !config_.has_extensions)
    return invalid_argument("the OpenAI API takes {} stop strings, not {}", kStopsMax,
                            o.stop.size());
  body["model"] = config_.model;
  json::object extensions;
  for_each_request_field([&](const auto& field) {
    if constexpr (HasField<decltype(field.option), const GenOptions>)
      if (field.name != "json_schema")
        set_member(field.in(kInOpenAiStandard) ? body : extensions, field.openai_name(),
                   field.option(o));
  });
  if (const std::string_view regex = dtype_regex(o.dtype); !regex.empty() && o.regex.empty())
    extensions["regex"] = regex;
  ESP_RETURN_IF_ERROR(add_schema(body, o));
  if (!extensions.empty() && !config_.has_extensions)
    return error(StatusCode::kUnimplemented,
                 "the OpenAI API takes none of {}: leave them out, or set has_extensions for a "
                 "server that takes them",
                 extension_names());
  for (const auto& member : extensions) body[member.key()] = member.value();
  return {};
}

Status OpenAiBackend::add_messages(json::object& body, const Prompt& prompt) const {
  if (!prompt.open || prompt.open->role != Role::kAssistant)
    return error(StatusCode::kFailedPrecondition,
                 "a chat model writes messages of the assistant: put the gen into assistant(...)");
  json::array messages;
  for (const Message& message : prompt.messages) {
    ESP_ASSIGN_OR_RETURN(json::value content, openai_content(message));
    messages.push_back({{"role", role_name(message.role)}, {"content", std::move(content)}});
  }
  if (const std::string begun = prompt.open->text(); !begun.empty()) {
    if (!config_.has_extensions)
      return error(StatusCode::kUnimplemented,
                   "the OpenAI chat API cannot go on with \"{}\": begin the message with the gen, "
                   "or run with num_api_spec_tokens",
                   begun.substr(0, 60));
    messages.push_back({{"role", "assistant"}, {"content", begun}});
    body["continue_final_message"] = true;
  }
  body["messages"] = std::move(messages);
  return {};
}

Result<ApiBackend::Request> OpenAiBackend::write_call(const GenerateCall& call) const {
  Request request;
  ESP_RETURN_IF_ERROR(add_options(request.body, call.options));
  if (config_.is_chat) {
    request.path = "/chat/completions";
    ESP_RETURN_IF_ERROR(add_messages(request.body, call.prompt));
  } else {
    if (!call.prompt.media.empty())
      return fail(
          error(StatusCode::kUnimplemented, "completion models read no images: use a chat model"));
    request.path = "/completions";
    request.body["prompt"] = call.prompt.text;
  }
  if (call.stream) request.body["stream_options"] = {{"include_usage", true}};
  return request;
}

MetaInfo OpenAiBackend::meta_of(const json::object& answer, const json::object& choice) const {
  MetaInfo meta{.id = string_at(answer, "id"), .finish_reason = string_at(choice, "finish_reason")};
  meta.matched = text_at(choice, "matched_stop");
  meta.prompt_tokens = integer_at(answer, "usage.prompt_tokens");
  meta.completion_tokens = integer_at(answer, "usage.completion_tokens");
  meta.cached_tokens = integer_at(answer, "usage.prompt_tokens_details.cached_tokens");
  json::object all{{"id", meta.id},
                   {"finish_reason", {{"type", meta.finish_reason}}},
                   {"prompt_tokens", meta.prompt_tokens},
                   {"completion_tokens", meta.completion_tokens},
                   {"cached_tokens", meta.cached_tokens}};
  if (const auto* logprobs = find_member(choice, "logprobs")) all["logprobs"] = *logprobs;
  meta.json = json::serialize(all);
  return meta;
}

Result<Completion> OpenAiBackend::read_answer(const json::object& answer) const {
  const json::value* choices = find_member(answer, "choices");
  if (choices == nullptr || !choices->is_array() || choices->get_array().empty())
    return fail(Status(StatusCode::kDataLoss, "the answer has no choices"));
  Completion completion;
  for (const json::value& choice : choices->get_array()) {
    if (!choice.is_object()) return fail(Status(StatusCode::kDataLoss, "a choice is no object"));
    const json::object& object = choice.get_object();
    completion.samples.push_back(
        {.text = string_at(object, config_.is_chat ? "message.content" : "text"),
         .meta = meta_of(answer, object)});
  }
  // The usage counts all samples together; the first sample carries the sum.
  for (size_t i = 1; i < completion.samples.size(); ++i)
    completion.samples[i].meta.completion_tokens = 0;
  return completion;
}

Result<std::string> OpenAiBackend::read_event(const json::object& event, Sample& sample) const {
  if (event.contains("error")) return fail(status_of_answer(500, json::serialize(event)));
  std::string text;
  const json::value* choices = find_member(event, "choices");
  if (choices != nullptr && choices->is_array() && !choices->get_array().empty() &&
      choices->get_array()[0].is_object()) {
    const json::object& choice = choices->get_array()[0].get_object();
    text = string_at(choice, config_.is_chat ? "delta.content" : "text");
    const std::string finish = string_at(choice, "finish_reason");
    if (!finish.empty()) sample.meta = meta_of(event, choice);
  }
  if (find_member(event, "usage") != nullptr) {
    sample.meta.prompt_tokens = integer_at(event, "usage.prompt_tokens");
    sample.meta.completion_tokens = integer_at(event, "usage.completion_tokens");
    sample.meta.cached_tokens = integer_at(event, "usage.prompt_tokens_details.cached_tokens");
  }
  return text;
}

// Through the log-probabilities of an echo, which servers of ours give: the prompt's tokens are
// those that "prompt" and "prompt + choice" share.
void OpenAiBackend::score(ScoreCall call, ScoreDone done) {
  if (config_.is_chat || !config_.has_extensions ||
      call.method == ChoicesMethod::kUnconditionalLikelihoodNormalized ||
      call.method == ChoicesMethod::kExact)
    return ApiBackend::score(std::move(call), std::move(done));
  json::array prompts{json::value(call.prompt.text)};
  for (const std::string& choice : call.choices) prompts.emplace_back(call.prompt.text + choice);
  const json::object body{{"model", config_.model}, {"prompt", std::move(prompts)},
                          {"max_tokens", 0},        {"temperature", 0},
                          {"echo", true},           {"logprobs", 0}};
  HttpCalls::Call http{.id = call.id, .path = "/completions", .body = json::serialize(body)};
  http.on_done = [this, choices = call.choices, done](Result<std::string> answer, int retries) {
    auto object = answer ? parse_answer(*answer) : Result<json::object>(fail(answer.error()));
    if (!object) return done(fail(object.error()));
    const json::value* list = find_member(*object, "choices");
    if (list == nullptr || !list->is_array() || list->get_array().size() != choices.size() + 1)
      return done(fail(Status(StatusCode::kDataLoss, "the answer has too few choices")));
    struct Row {
      std::vector<std::string> tokens;
      std::vector<std::optional<float>> logprobs;
    };
    std::vector<Row> rows;
    for (const json::value& choice : list->get_array()) {
      Row& row = rows.emplace_back();
      const json::value* tokens =
          choice.is_object() ? find_member(choice.get_object(), "logprobs.tokens") : nullptr;
      const json::value* logprobs =
          choice.is_object() ? find_member(choice.get_object(), "logprobs.token_logprobs")
                             : nullptr;
      if (tokens == nullptr || logprobs == nullptr || !tokens->is_array() ||
          !logprobs->is_array() || tokens->get_array().size() != logprobs->get_array().size())
        return done(
            fail(error(StatusCode::kUnimplemented,
                       "the server gives no log-probabilities of an echo: it cannot select")));
      for (const json::value& token : tokens->get_array())
        row.tokens.emplace_back(token.is_string() ? std::string(token.get_string()) : "");
      for (const json::value& logprob : logprobs->get_array()) {
        json::error_code failed;
        row.logprobs.emplace_back();
        if (!logprob.is_null()) row.logprobs.back() = logprob.to_number<float>(failed);
      }
    }
    size_t shared = rows[0].tokens.size();
    for (size_t i = 1; i < rows.size(); ++i) {
      const auto differ = std::mismatch(rows[0].tokens.begin(), rows[0].tokens.end(),
                                        rows[i].tokens.begin(), rows[i].tokens.end());
      shared = std::min(shared, static_cast<size_t>(differ.first - rows[0].tokens.begin()));
    }
    std::vector<ChoiceScore> scores;
    for (size_t i = 0; i < choices.size(); ++i) {
      ChoiceScore& score = scores.emplace_back(ChoiceScore{.text = choices[i]});
      score.logprobs.assign(rows[i + 1].logprobs.begin() + static_cast<std::ptrdiff_t>(shared),
                            rows[i + 1].logprobs.end());
    }
    Completion counted;
    counted.samples.push_back({});
    counted.samples[0].meta.prompt_tokens = integer_at(*object, "usage.prompt_tokens");
    charge(counted, retries);
    done(std::move(scores));
  };
  calls().submit(std::move(http));
}

}  // namespace

Result<std::shared_ptr<Backend>> openai_backend(const OpenAiConfig& config) {
  if (config.model.empty()) return fail(invalid_argument("name the model in OpenAiConfig::model"));
  net::Headers headers;
  if (!config.api_key.empty()) headers.emplace_back("Authorization", "Bearer " + config.api_key);
  ESP_ASSIGN_OR_RETURN(auto calls,
                       HttpCalls::create(config.base_url, std::move(headers), config.limits));
  return std::make_shared<OpenAiBackend>(config, std::move(calls));
}

}  // namespace espalier::lang
