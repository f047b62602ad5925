// The native /generate dialect: a server of ours or SGLang's.
#include <algorithm>
#include <filesystem>
#include <mutex>

#include "lang/backends/chat_frames.h"
#include "lang/backends/http_backends.h"
#include "lang/backends/http_json.h"
#include "seams/request_fields.h"

namespace espalier::lang {
namespace {

namespace json = boost::json;

json::object sampling_json(const GenOptions& o) {
  json::object p;
  for_each_request_field([&](const auto& field) {
    if constexpr (HasField<decltype(field.option), const GenOptions>)
      set_member(p, field.name, field.option(o));
  });
  const std::string_view dtype = dtype_regex(o.dtype);
  if (!dtype.empty() && o.regex.empty()) p["regex"] = dtype;
  return p;
}

MetaInfo meta_of_answer(const json::object& meta) {
  MetaInfo m;
  m.id = string_at(meta, "id");
  m.finish_reason = string_at(meta, "finish_reason.type");
  m.matched = text_at(meta, "finish_reason.matched");
  m.prompt_tokens = integer_at(meta, "prompt_tokens");
  m.completion_tokens = integer_at(meta, "completion_tokens");
  m.cached_tokens = integer_at(meta, "cached_tokens");
  m.seconds = number_at(meta, "e2e_latency");
  m.json = json::serialize(meta);
  return m;
}

Result<Sample> sample_of(const json::value& value) {
  if (!value.is_object()) return fail(Status(StatusCode::kDataLoss, "an answer that is no object"));
  const json::object& object = value.get_object();
  Sample sample{.text = string_at(object, "text")};
  if (const auto* meta = object.if_contains("meta_info"); meta != nullptr && meta->is_object())
    sample.meta = meta_of_answer(meta->get_object());
  if (sample.meta.finish_reason == "abort")
    return fail(
        error(StatusCode::kAborted, "{}", string_at(object, "meta_info.finish_reason.message")));
  return sample;
}

// [[logprob or null, id, text], ...] of an answer's input tokens.
struct Scored {
  std::vector<int32_t> ids;
  std::vector<std::optional<float>> logprobs;
};
Result<Scored> scored_of(const json::value& answer) {
  const json::value* list = answer.is_object()
                                ? find_member(answer.get_object(), "meta_info.input_token_logprobs")
                                : nullptr;
  if (list == nullptr || !list->is_array())
    return fail(Status(StatusCode::kDataLoss, "the server gave no input_token_logprobs"));
  Scored scored;
  for (const json::value& entry : list->get_array()) {
    if (!entry.is_array() || entry.get_array().size() < 2)
      return fail(Status(StatusCode::kDataLoss, "input_token_logprobs is no list of pairs"));
    const json::array& pair = entry.get_array();
    json::error_code failed;
    scored.ids.push_back(static_cast<int32_t>(pair[1].to_number<int64_t>(failed)));
    scored.logprobs.emplace_back();
    if (!pair[0].is_null()) scored.logprobs.back() = pair[0].to_number<float>(failed);
  }
  return scored;
}

// A list of so many such answers.
Result<std::vector<Scored>> scored_list(std::string_view body, size_t count) {
  json::error_code failed;
  const json::value value = json::parse(body, failed);
  if (failed || !value.is_array() || value.get_array().size() != count)
    return fail(
        error(StatusCode::kDataLoss, "{} prompts were not answered by {} scores", count, count));
  std::vector<Scored> all;
  for (const json::value& answer : value.get_array()) {
    ESP_ASSIGN_OR_RETURN(Scored scored, scored_of(answer));
    all.push_back(std::move(scored));
  }
  return all;
}

class EndpointBackend final : public Backend {
 public:
  EndpointBackend(std::string url, std::unique_ptr<HttpCalls> calls, ChatFrames frames)
      : url_(std::move(url)), frames_(std::move(frames)), calls_(std::move(calls)) {}

  std::string name() const override { return url_; }
  RoleFrame role_frame(Role role, std::optional<Role> previous) const override {
    return frames_.frame(role, previous);
  }
  bool can_prefetch() const override { return true; }
  void cancel(const std::string& id) override { calls_->cancel(id); }

  void generate(GenerateCall call, CallEvents events) override {
    json::object body{{"text", call.prompt.text}, {"sampling_params", sampling_json(call.options)}};
    body["rid"] = call.id;
    for_each_logprob_field([&](const auto& field) {
      if constexpr (HasField<decltype(field.option), const GenOptions>)
        set_member(body, field.name, field.option(call.options));
    });
    if (Status media = add_media(body, call.prompt); !media.ok())
      return events.on_done(fail(std::move(media)));
    const bool stream = call.stream && call.options.n.value_or(1) == 1;
    if (stream) body["stream"] = true;
    if (call.options.n.value_or(1) > 1) body.erase("rid");  // of one prompt's one sample
    send(call.id, body, stream, std::move(events));
  }

  void prefetch(std::string id, const Prompt& prompt, std::function<void(Status)> done) override {
    json::object body{{"text", prompt.text}, {"sampling_params", {{"max_new_tokens", 0}}}};
    if (Status media = add_media(body, prompt); !media.ok()) return done(std::move(media));
    send(id, body, false, {.on_done = [done = std::move(done)](const Result<Completion>& r) {
           done(r ? Status() : r.error());
         }});
  }

  void score(ScoreCall call, ScoreDone done) override;

  Status flush_cache() override {
    const auto answer = calls_->fetch("POST", "/flush_cache");
    return answer ? Status() : answer.error();
  }
  Result<std::string> server_info() override { return calls_->fetch("GET", "/server_info"); }

 private:
  // image_data of a prompt: nothing, one, or a list.
  static Result<json::value> media_data(const Prompt& prompt) {
    json::array all;
    for (const Media& media : prompt.media) {
      ESP_ASSIGN_OR_RETURN(const MediaData data, read_media(media));
      all.emplace_back(media.kind == Media::Kind::kVideo ? "video:" + data.base64 : data.base64);
    }
    if (all.empty()) return json::value();
    return all.size() == 1 ? std::move(all[0]) : json::value(std::move(all));
  }
  static Status add_media(json::object& body, const Prompt& prompt) {
    ESP_ASSIGN_OR_RETURN(json::value data, media_data(prompt));
    if (!data.is_null()) body["image_data"] = std::move(data);
    return {};
  }

  // One prompt's call. What is streamed is cumulative text: the new end of it is handed on.
  struct Streamed {
    std::string text;
    int64_t num_reported = 0;  // log-probabilities
    json::object last;
    Status failed;
  };
  static Progress progress_of(const json::object& answer, int64_t num_reported) {
    Progress progress{.prompt_tokens = integer_at(answer, "meta_info.prompt_tokens"),
                      .completion_tokens = integer_at(answer, "meta_info.completion_tokens"),
                      .cached_tokens = integer_at(answer, "meta_info.cached_tokens")};
    const json::value* all = find_member(answer, "meta_info.output_token_logprobs");
    if (all == nullptr || !all->is_array()) return progress;
    const json::array& entries = all->get_array();
    for (size_t i = static_cast<size_t>(num_reported); i < entries.size(); ++i)
      progress.logprobs += (progress.logprobs.empty() ? "" : ",") + json::serialize(entries[i]);
    progress.num_logprobs = static_cast<int64_t>(entries.size());
    return progress;
  }
  void send(const std::string& id, const json::object& body, bool stream, CallEvents events) {
    auto streamed = std::make_shared<Streamed>();
    HttpCalls::Call call{.id = id, .path = "/generate", .body = json::serialize(body)};
    if (stream)
      call.on_event = [streamed, on_text = events.on_text,
                       on_progress = events.on_progress](std::string_view data) {
        if (data == "[DONE]") return;
        auto object = parse_answer(data);
        if (!object) {
          streamed->failed = object.error();
        } else if (object->contains("error")) {
          streamed->failed = status_of_answer(500, data);
        } else {
          const std::string text = string_at(*object, "text");
          if (text.size() > streamed->text.size() && on_text) {
            if (on_progress) {
              Progress progress = progress_of(*object, streamed->num_reported);
              streamed->num_reported = progress.num_logprobs;
              on_progress(std::move(progress));
            }
            on_text(std::string_view(text).substr(streamed->text.size()));
          }
          streamed->text = text;
          streamed->last = std::move(*object);
        }
      };
    call.on_done = [this, stream, streamed, done = std::move(events.on_done)](
                       Result<std::string> answer, int num_retries) {
      done(finish(std::move(answer), stream ? streamed.get() : nullptr, num_retries));
    };
    calls_->submit(std::move(call));
  }

  Result<Completion> finish(Result<std::string> body, Streamed* streamed, int num_retries) {
    if (!body) return fail(std::move(body).error());
    Completion completion;
    if (streamed != nullptr) {
      ESP_RETURN_IF_ERROR(streamed->failed);
      ESP_ASSIGN_OR_RETURN(Sample sample, sample_of(streamed->last));
      completion.samples.push_back(std::move(sample));
    } else {
      json::error_code failed;
      const json::value value = json::parse(*body, failed);
      if (failed) return fail(Status(StatusCode::kDataLoss, "the answer is no JSON"));
      const json::array one{value};
      for (const json::value& item : value.is_array() ? value.get_array() : one) {
        ESP_ASSIGN_OR_RETURN(Sample sample, sample_of(item));
        completion.samples.push_back(std::move(sample));
      }
      if (completion.samples.empty())
        return fail(Status(StatusCode::kDataLoss, "an answer without a sample"));
    }
    Usage used{.num_calls = 1, .num_retries = num_retries};
    used.prompt_tokens = completion.samples.front().meta.prompt_tokens;
    used.cached_tokens = completion.samples.front().meta.cached_tokens;
    for (const Sample& sample : completion.samples)
      used.completion_tokens += sample.meta.completion_tokens;
    count(used);
    return completion;
  }

  void score_exactly(const ScoreCall& call, ScoreDone done);
  void score_parts(const std::string& id, std::vector<ChoiceScore> scores, ScoreDone done);

  const std::string url_;
  const ChatFrames frames_;
  const std::unique_ptr<HttpCalls> calls_;  // last: it ends the calls, which use the rest
};

// Three requests at most: how long the prompt is; the prompt and each "prompt + choice" with the
// log-probabilities of their last tokens (two more than the choice's, which may merge with the
// prompt's end); and, where it is asked for, the choices by themselves.
void EndpointBackend::score(ScoreCall call, ScoreDone done) {
  if (call.method == ChoicesMethod::kExact) return score_exactly(call, std::move(done));
  auto media = media_data(call.prompt);
  if (!media) return done(fail(std::move(media).error()));
  json::object length{{"text", call.prompt.text}, {"sampling_params", {{"max_new_tokens", 0}}}};
  if (!media->is_null()) length["image_data"] = *media;
  HttpCalls::Call first{.id = call.id, .path = "/generate", .body = json::serialize(length)};
  first.on_done = [this, call, media = *std::move(media), done = std::move(done)](
                      Result<std::string> answer, int) {
    auto object = answer ? parse_answer(*answer) : Result<json::object>(fail(answer.error()));
    if (!object) return done(fail(object.error()));
    constexpr int64_t kMergedMax = 2;
    const int64_t start =
        std::max<int64_t>(0, integer_at(*object, "meta_info.prompt_tokens") - kMergedMax);
    json::array texts{json::value(call.prompt.text)};
    for (const std::string& choice : call.choices) texts.emplace_back(call.prompt.text + choice);
    json::object body{{"text", std::move(texts)},
                      {"sampling_params", {{"max_new_tokens", 0}, {"temperature", 0}}},
                      {"return_logprob", true},
                      {"logprob_start_len", start}};
    if (!media.is_null()) body["image_data"] = json::array(call.choices.size() + 1, media);
    HttpCalls::Call second{.id = call.id, .path = "/generate", .body = json::serialize(body)};
    second.on_done = [this, call, done](Result<std::string> scored, int) {
      auto all = scored ? scored_list(*scored, call.choices.size() + 1)
                        : Result<std::vector<Scored>>(fail(scored.error()));
      if (!all) return done(fail(all.error()));
      const std::vector<int32_t>& prompt = all->front().ids;
      size_t shared = prompt.size();
      for (size_t i = 1; i < all->size(); ++i) {
        const std::vector<int32_t>& whole = (*all)[i].ids;
        const auto differ = std::mismatch(prompt.begin(), prompt.end(), whole.begin(), whole.end());
        shared = std::min(shared, static_cast<size_t>(differ.first - prompt.begin()));
      }
      std::vector<ChoiceScore> scores;
      for (size_t i = 0; i < call.choices.size(); ++i) {
        const Scored& whole = (*all)[i + 1];
        const auto begin = static_cast<std::ptrdiff_t>(shared);
        ChoiceScore& score = scores.emplace_back(ChoiceScore{.text = call.choices[i]});
        score.tokens.assign(whole.ids.begin() + begin, whole.ids.end());
        score.logprobs.assign(whole.logprobs.begin() + begin, whole.logprobs.end());
      }
      if (call.method != ChoicesMethod::kUnconditionalLikelihoodNormalized)
        return done(std::move(scores));
      score_parts(call.id, std::move(scores), done);
    };
    calls_->submit(std::move(second));
  };
  calls_->submit(std::move(first));
}

// The search over spellings needs the vocabulary, so it is the server's: Espalier's has a route.
void EndpointBackend::score_exactly(const ScoreCall& call, ScoreDone done) {
  if (!call.prompt.media.empty())
    return done(fail(error(StatusCode::kUnimplemented,
                           "the exact method takes no images or videos over HTTP: use another "
                           "choices method")));
  const json::object body{
      {"text", call.prompt.text}, {"choices", json::value_from(call.choices)}, {"rid", call.id}};
  HttpCalls::Call exact{.id = call.id, .path = "/exact_likelihood", .body = json::serialize(body)};
  exact.on_done = [choices = call.choices, done = std::move(done)](Result<std::string> answer,
                                                                   int) {
    if (!answer && answer.error().code() == StatusCode::kNotFound)
      return done(fail(error(StatusCode::kUnimplemented,
                             "this server has no route /exact_likelihood, which the exact method "
                             "needs: use an Espalier server or another choices method")));
    auto object = answer ? parse_answer(*answer) : Result<json::object>(fail(answer.error()));
    if (!object) return done(fail(object.error()));
    const json::value* const found = object->if_contains("choices");
    if (found == nullptr || !found->is_array() || found->get_array().size() != choices.size())
      return done(fail(Status(StatusCode::kDataLoss, "the server did not score every choice")));
    std::vector<ChoiceScore> scores;
    for (size_t i = 0; i < choices.size(); ++i) {
      const json::value& one = found->get_array()[i];
      scores.push_back({.text = choices[i]});
      if (one.is_object()) scores.back().exact_logprob = number_at(one.get_object(), "logprob");
    }
    done(std::move(scores));
  };
  calls_->submit(std::move(exact));
}

void EndpointBackend::score_parts(const std::string& id, std::vector<ChoiceScore> scores,
                                  ScoreDone done) {
  json::array parts;
  for (const ChoiceScore& score : scores) parts.push_back(json::value_from(score.tokens));
  const json::object body{{"input_ids", std::move(parts)},
                          {"sampling_params", {{"max_new_tokens", 0}}},
                          {"return_logprob", true},
                          {"logprob_start_len", 0}};
  HttpCalls::Call call{.id = id, .path = "/generate", .body = json::serialize(body)};
  call.on_done = [scores = std::move(scores), done](Result<std::string> answer, int) mutable {
    auto all = answer ? scored_list(*answer, scores.size())
                      : Result<std::vector<Scored>>(fail(answer.error()));
    if (!all) return done(fail(all.error()));
    for (size_t i = 0; i < scores.size(); ++i) {
      scores[i].unconditional_logprobs = std::move((*all)[i].logprobs);
      scores[i].unconditional_logprobs.resize(scores[i].logprobs.size());
    }
    done(std::move(scores));
  };
  calls_->submit(std::move(call));
}

}  // namespace

Result<std::shared_ptr<Backend>> runtime_endpoint(const EndpointConfig& config) {
  net::Headers headers;
  if (!config.api_key.empty()) headers.emplace_back("Authorization", "Bearer " + config.api_key);
  ESP_ASSIGN_OR_RETURN(auto calls,
                       HttpCalls::create(config.base_url, std::move(headers), config.limits));
  auto info = calls->fetch("GET", "/get_model_info");
  if (!info) info = calls->fetch("GET", "/model_info");
  if (!info) return fail(info.error());
  ESP_ASSIGN_OR_RETURN(const json::object model, parse_answer(*info));
  const std::string path = string_at(model, "model_path");
  ChatFrames frames;
  if (!config.chat_template.empty()) {
    ESP_ASSIGN_OR_RETURN(frames, ChatFrames::named(config.chat_template));
  } else {
    std::error_code none;
    frames = std::filesystem::is_directory(path, none) ? ChatFrames::for_folder(path)
                                                       : ChatFrames::for_model(path);
  }
  return std::make_shared<EndpointBackend>(config.base_url, std::move(calls), std::move(frames));
}

Result<std::shared_ptr<Backend>> runtime_endpoint(const std::string& base_url) {
  return runtime_endpoint(EndpointConfig{.base_url = base_url});
}

}  // namespace espalier::lang
