#include "apps/bench/http_sender.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <optional>

#include "base/clock.h"
#include "net/client.h"

namespace espalier::apps {
namespace {

namespace json = boost::json;

net::HttpClientConfig client_config(const TargetOptions& target) {
  net::HttpClientConfig config;
  if (!target.api_key.empty())
    config.headers.emplace_back("Authorization", "Bearer " + target.api_key);
  return config;
}

// The member at a path of keys and indices ("choices/0/delta"); null when there is none.
const json::value* at(const json::value& root, std::string_view path) {
  json::error_code problem;
  return root.find_pointer(json::string_view(path.data(), path.size()), problem);
}

int32_t int_at(const json::value& root, std::string_view path, int32_t otherwise) {
  const json::value* found = at(root, path);
  return found != nullptr && found->is_int64() ? static_cast<int32_t>(found->get_int64())
                                               : otherwise;
}

std::string text_at(const json::value& root, std::string_view path) {
  const json::value* found = at(root, path);
  return found != nullptr && found->is_string() ? std::string(found->get_string()) : "";
}

// One answer of one dialect, gathered from its events.
class Answer {
 public:
  explicit Answer(bool native) : native_(native), timer_(now_seconds()) {}

  // False once the answer is wrong.
  bool on_event(std::string_view data) {
    if (data == "[DONE]") return true;
    json::error_code problem;
    const json::value event = json::parse(json::string_view(data.data(), data.size()), problem);
    if (problem) return fail(fmt::format("an event is no JSON: {}", data.substr(0, 200)));
    if (at(event, "/error") != nullptr) return fail(json::serialize(*at(event, "/error")));
    if (native_) {
      on_native(event);
    } else {
      on_openai(event);
    }
    return true;
  }

  RequestRecord finish(int32_t wanted_tokens, bool ignore_eos) {
    RequestRecord record;
    timer_.finish(now_seconds(), record);
    record.prompt_tokens = prompt_tokens_;
    record.cached_tokens = cached_tokens_;
    if (error_.empty() && !ended_) error_ = "the stream ended without a finish reason";
    if (error_.empty() && ignore_eos && record.output_tokens != wanted_tokens)
      error_ = fmt::format("{} output tokens instead of {}", record.output_tokens, wanted_tokens);
    record.error = error_;
    record.ok = error_.empty();
    return record;
  }
  bool fail(std::string error) {
    error_ = std::move(error);
    return false;
  }
  const std::vector<int32_t>& output_ids() const { return output_ids_; }
  const std::string& text() const { return text_; }

 private:
  void on_native(const json::value& event) {
    timer_.tokens(now_seconds(), int_at(event, "/meta_info/completion_tokens", 0));
    prompt_tokens_ = int_at(event, "/meta_info/prompt_tokens", prompt_tokens_);
    cached_tokens_ = int_at(event, "/meta_info/cached_tokens", cached_tokens_);
    const json::value* reason = at(event, "/meta_info/finish_reason");
    ended_ = reason != nullptr && !reason->is_null();
    if (!ended_) return;
    if (text_at(event, "/meta_info/finish_reason/type") == "abort")
      error_ = text_at(event, "/meta_info/finish_reason/message");
    const json::value* ids = at(event, "/output_ids");
    if (ids != nullptr && ids->is_array())
      for (const json::value& id : ids->get_array())
        if (id.is_int64()) output_ids_.push_back(static_cast<int32_t>(id.get_int64()));
  }

  // Chat and completions differ in where the text stands. Each event with text counts as one token
  // until the usage says how many there were.
  void on_openai(const json::value& event) {
    std::string text = text_at(event, "/choices/0/delta/content");
    if (text.empty()) text = text_at(event, "/choices/0/text");
    text_ += text;
    const int32_t completion = int_at(event, "/usage/completion_tokens", -1);
    events_with_text_ += text.empty() ? 0 : 1;
    timer_.tokens(now_seconds(), completion >= 0 ? completion : events_with_text_);
    prompt_tokens_ = int_at(event, "/usage/prompt_tokens", prompt_tokens_);
    cached_tokens_ = int_at(event, "/usage/prompt_tokens_details/cached_tokens", cached_tokens_);
    if (!text_at(event, "/choices/0/finish_reason").empty()) ended_ = true;
  }

  const bool native_;
  TokenTimer timer_;
  bool ended_ = false;
  std::string error_, text_;
  int32_t prompt_tokens_ = 0, cached_tokens_ = 0, events_with_text_ = 0;
  std::vector<int32_t> output_ids_;
};

class HttpSender final : public Sender {
 public:
  explicit HttpSender(const TargetOptions& target) : target_(target) {
    Result<net::HttpClient> client =
        net::HttpClient::create(target.base_url, client_config(target));
    if (client) {
      client_.emplace(std::move(*client));
    } else {
      problem_ = client.error().message();
    }
  }

  RequestRecord send(const Turn& turn, ConversationState& state) override {
    const bool native = target_.backend == "sglang";
    Answer answer(native);
    if (!client_) {
      answer.fail(problem_);
      return answer.finish(turn.output_len, false);
    }
    state.ids.insert(state.ids.end(), turn.ids.begin(), turn.ids.end());
    state.messages.emplace_back("user", words_of(turn.ids));
    const auto [path, body] = request(turn, state);
    const Result<net::HttpResponse> response = client_->post_stream(
        path, body, [&](std::string_view data) { return answer.on_event(data); });
    if (!response) {
      answer.fail(response.error().message());
    } else if (response->status != 200) {
      answer.fail(fmt::format("HTTP {}: {}", response->status, response->body.substr(0, 300)));
    }
    RequestRecord record = answer.finish(turn.output_len, target_.ignore_eos && native);
    state.ids.insert(state.ids.end(), answer.output_ids().begin(), answer.output_ids().end());
    state.messages.emplace_back("assistant", answer.text());
    return record;
  }

 private:
  std::pair<std::string, std::string> request(const Turn& turn,
                                              const ConversationState& state) const {
    json::object body;
    body["stream"] = true;
    if (target_.backend == "sglang") {
      body["input_ids"] = json::value_from(state.ids);
      body["sampling_params"] = {{"max_new_tokens", turn.output_len},
                                 {"temperature", target_.temperature},
                                 {"ignore_eos", target_.ignore_eos}};
      return {"/generate", json::serialize(body)};
    }
    body["model"] = target_.model;
    body["max_tokens"] = turn.output_len;
    body["temperature"] = target_.temperature;
    body["ignore_eos"] = target_.ignore_eos;
    body["stream_options"] = {{"include_usage", true}};
    if (target_.backend == "sglang-oai-chat") {
      json::array messages;
      for (const auto& [role, text] : state.messages)
        messages.push_back({{"role", role}, {"content", text}});
      body["messages"] = std::move(messages);
      return {"/v1/chat/completions", json::serialize(body)};
    }
    if (target_.backend == "sglang-oai-ids") {
      body["prompt"] = json::value_from(state.ids);
      return {"/v1/completions", json::serialize(body)};
    }
    std::string prompt;
    for (const auto& [role, text] : state.messages) prompt += text + " ";
    body["prompt"] = prompt;
    return {"/v1/completions", json::serialize(body)};
  }

  const TargetOptions target_;
  std::optional<net::HttpClient> client_;
  std::string problem_;
};

Result<json::value> get_json(net::HttpClient& client, std::string_view path) {
  ESP_ASSIGN_OR_RETURN(const net::HttpResponse response, client.get(path));
  if (response.status != 200)
    return fail(error(StatusCode::kUnavailable, "{} answers HTTP {}: {}", path, response.status,
                      response.body.substr(0, 300)));
  json::error_code problem;
  json::value value = json::parse(response.body, problem);
  if (problem) return fail(error(StatusCode::kDataLoss, "{} answers what is no JSON", path));
  return value;
}

}  // namespace

std::unique_ptr<Sender> make_http_sender(const TargetOptions& target) {
  return std::make_unique<HttpSender>(target);
}

Result<ServerFacts> read_server_facts(const TargetOptions& target) {
  ESP_ASSIGN_OR_RETURN(net::HttpClient client,
                       net::HttpClient::create(target.base_url, client_config(target)));
  ESP_ASSIGN_OR_RETURN(const json::value models, get_json(client, "/v1/models"));
  ServerFacts facts;
  facts.model = text_at(models, "/data/0/id");
  facts.context_length = int_at(models, "/data/0/max_model_len", 0);
  if (target.backend == "sglang") {
    ESP_ASSIGN_OR_RETURN(const json::value info, get_json(client, "/server_info"));
    facts.vocab_size = int_at(info, "/vocab_size", 0);
  }
  return facts;
}

Status flush_server_cache(const TargetOptions& target) {
  ESP_ASSIGN_OR_RETURN(net::HttpClient client,
                       net::HttpClient::create(target.base_url, client_config(target)));
  ESP_ASSIGN_OR_RETURN(const net::HttpResponse response, client.post("/flush_cache", ""));
  if (response.status != 200)
    return error(StatusCode::kFailedPrecondition, "/flush_cache answers HTTP {}: {}",
                 response.status, response.body);
  return {};
}

}  // namespace espalier::apps
