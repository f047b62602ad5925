#include "lang/backends/api_backend.h"

namespace espalier::lang {

void ApiBackend::generate(GenerateCall call, CallEvents events) {
  Result<Request> request = write_call(call);
  if (!request) return events.on_done(fail(request.error()));
  const bool stream = call.stream && call.options.n.value_or(1) == 1;
  if (stream) request->body["stream"] = true;
  HttpCalls::Call http{
      .id = call.id, .path = request->path, .body = boost::json::serialize(request->body)};
  struct Streamed {
    Sample sample;
    Status failed;
  };
  auto streamed = std::make_shared<Streamed>();
  if (stream)
    http.on_event = [this, streamed, on_text = events.on_text](std::string_view data) {
      if (data == "[DONE]") return;
      auto event = parse_answer(data);
      Result<std::string> text =
          event ? read_event(*event, streamed->sample) : Result<std::string>(fail(event.error()));
      if (!text) {
        if (streamed->failed.ok()) streamed->failed = text.error();
      } else {
        streamed->sample.text += *text;
        if (!text->empty() && on_text) on_text(*text);
      }
    };
  http.on_done = [this, stream, streamed, done = std::move(events.on_done)](
                     Result<std::string> body, int num_retries) {
    if (!body) return done(fail(std::move(body).error()));
    Result<Completion> completion;
    if (stream) {
      if (!streamed->failed.ok()) return done(fail(streamed->failed));
      completion = Completion{.samples = {std::move(streamed->sample)}};
    } else {
      const auto answer = parse_answer(*body);
      completion = answer ? read_answer(*answer) : Result<Completion>(fail(answer.error()));
    }
    if (completion) charge(*completion, num_retries);
    done(std::move(completion));
  };
  calls_->submit(std::move(http));
}

void ApiBackend::score(ScoreCall call, ScoreDone done) {
  done(fail(error(StatusCode::kUnimplemented,
                  "{} does not return the log-probabilities of given texts, so it cannot select "
                  "between {} choices: ask for one of them with a gen",
                  name_, call.choices.size())));
}

void ApiBackend::charge(const Completion& completion, int num_retries) {
  Usage used{.num_calls = 1, .num_retries = num_retries};
  used.prompt_tokens = completion.samples.front().meta.prompt_tokens;
  used.cached_tokens = completion.samples.front().meta.cached_tokens;
  for (const Sample& sample : completion.samples)
    used.completion_tokens += sample.meta.completion_tokens;
  used.dollars = (static_cast<double>(used.prompt_tokens - used.cached_tokens) * prices_.input +
                  static_cast<double>(used.cached_tokens) * prices_.cached_input +
                  static_cast<double>(used.completion_tokens) * prices_.output) /
                 1e6;
  count(used);
}

}  // namespace espalier::lang
