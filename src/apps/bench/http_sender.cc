#include "apps/bench/http_sender.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <optional>

#include "apps/bench/timed_answer.h"
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
    TimedAnswer answer(native);
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
