#include "lang/backends/engine_scoring.h"

#include <algorithm>
#include <utility>

#include "engine/requests/exact_search.h"

namespace espalier::lang {

// What the requests of one score() measure. Shared by their sinks.
struct EngineScoring::Scoring {
  std::mutex mutex;
  std::vector<ChoiceScore> scores;  // each written by its own requests
  size_t num_open = 0;
  Status failed;
  ScoreDone done;
};

void EngineScoring::score(const ScoreCall& call, ScoreDone done) {
  auto scoring = std::make_shared<Scoring>();
  scoring->done = std::move(done);
  scoring->scores.resize(call.choices.size());
  for (size_t i = 0; i < call.choices.size(); ++i) scoring->scores[i].text = call.choices[i];
  if (call.method == ChoicesMethod::kExact) {
    score_exactly(call, scoring);
  } else {
    score_choices(call, scoring);
  }
}

// One of the requests has ended; the last of them calls back.
void EngineScoring::measured(const std::shared_ptr<Scoring>& scoring, const Status& status) {
  {
    std::lock_guard lock(scoring->mutex);
    if (scoring->failed.ok()) scoring->failed = status;
    if (--scoring->num_open > 0) return;
  }
  if (scoring->failed.ok()) {
    scoring->done(std::move(scoring->scores));
  } else {
    scoring->done(fail(scoring->failed));
  }
}

// A choice may merge with the end of the prompt into other tokens, so all choices are scored from
// the first token in which any of them differs from the prompt.
void EngineScoring::score_choices(const ScoreCall& call, const std::shared_ptr<Scoring>& scoring) {
  const std::vector<TokenId> prompt = requests_.encode(call.prompt);
  std::vector<std::vector<TokenId>> wholes;
  size_t begin = prompt.size();
  for (const std::string& choice : call.choices) {
    const auto& whole = wholes.emplace_back(requests_.encode(call.prompt, choice));
    const auto differ = std::mismatch(prompt.begin(), prompt.end(), whole.begin(), whole.end());
    begin = std::min(begin, static_cast<size_t>(differ.first - prompt.begin()));
  }
  const bool unconditional = call.method == ChoicesMethod::kUnconditionalLikelihoodNormalized;
  scoring->num_open = wholes.size() * (unconditional ? 2 : 1);
  for (size_t i = 0; i < wholes.size(); ++i) {
    ChoiceScore& score = scoring->scores[i];
    score.tokens.assign(wholes[i].begin() + static_cast<std::ptrdiff_t>(begin), wholes[i].end());
    std::vector<TokenId> part(score.tokens.begin(), score.tokens.end());
    measure({.rid = fmt::format("{}/{}", call.id, i),
             .input_ids = std::move(wholes[i]),
             .images = EngineRequests::images_of(call.prompt),
             .extra_key = EngineRequests::cache_key(call.prompt)},
            begin, [scoring, &score](Result<Logprobs> r) {
              if (r) score.logprobs = std::move(*r);
              measured(scoring, r ? Status() : r.error());
            });
    if (!unconditional) continue;
    measure({.rid = fmt::format("{}/u{}", call.id, i), .input_ids = std::move(part)}, 0,
            [scoring, &score](Result<Logprobs> r) {
              if (r) score.unconditional_logprobs = std::move(*r);
              measured(scoring, r ? Status() : r.error());
            });
  }
}

// p(text | prompt), summed over the spellings of the text; the choices at once, each with one
// request at a time.
void EngineScoring::score_exactly(const ScoreCall& call, const std::shared_ptr<Scoring>& scoring) {
  auto prompt = std::make_shared<const std::vector<TokenId>>(requests_.encode(call.prompt));
  if (prompt->empty())
    return scoring->done(fail(invalid_argument(
        "the exact probability of a choice needs a prompt before it: append text first")));
  scoring->num_open = call.choices.size();
  for (size_t i = 0; i < call.choices.size(); ++i) {
    auto num_requests = std::make_shared<int>(0);
    const std::string id = fmt::format("{}/{}", call.id, i);
    const AskNext next = [this, prompt, num_requests, id,
                          key = EngineRequests::cache_key(call.prompt),
                          images = EngineRequests::images_of(call.prompt)](
                             const std::vector<TokenId>& tokens, const std::vector<TokenId>& wanted,
                             std::function<void(Result<std::vector<float>>)> done) {
      GenerateRequest request =
          next_token_request(fmt::format("{}.{}", id, (*num_requests)++), *prompt, tokens, wanted);
      request.extra_key = key;
      request.images = images;
      measure_next(std::move(request), std::move(done));
    };
    exact_probability(speller(), call.choices[i], {}, next,
                      [scoring, i](const Result<ExactProbability>& r) {
                        if (r) scoring->scores[i].exact_logprob = r->logprob;
                        measured(scoring, r ? Status() : r.error());
                      });
  }
}

void EngineScoring::measure(GenerateRequest request, size_t begin,
                            std::function<void(Result<Logprobs>)> done) {
  const std::string rid = request.rid;
  request.sampling.max_new_tokens = 0;
  request.sampling.temperature = 0.0f;
  request.return_logprob = true;
  request.logprob_start_len = static_cast<int32_t>(begin);
  const size_t num_wanted = request.input_ids.size() - begin;
  auto logprobs = std::make_shared<Logprobs>();
  auto sink = [logprobs, begin, num_wanted, done, rid, this](TokenEvent&& event) {
    if (!event.input_logprobs.empty()) {
      if (begin == 0) logprobs->emplace_back(std::nullopt);
      for (const TokenLogprobs& lp : event.input_logprobs) logprobs->emplace_back(lp.logprob);
    }
    if (!event.finish) return;
    if (begin == 0 && logprobs->empty()) logprobs->emplace_back(std::nullopt);
    if (!event.finish->status.ok()) {
      done(fail(event.finish->status));
    } else if (logprobs->size() != num_wanted) {
      done(fail(error(StatusCode::kInternal, "{} log-probabilities for {} tokens", logprobs->size(),
                      num_wanted)));
    } else {
      done(std::move(*logprobs));
    }
    requests_.ended(rid, 1);
  };
  requests_.send({.request = std::move(request),
                  .sink = std::move(sink),
                  .refused = [done](Status why) { done(fail(std::move(why))); }});
}

void EngineScoring::measure_next(GenerateRequest request,
                                 std::function<void(Result<std::vector<float>>)> done) {
  const std::string rid = request.rid;
  auto found = std::make_shared<std::vector<float>>();
  auto sink = [this, rid, found, done](TokenEvent&& event) {
    take_next_token(event, *found);
    if (!event.finish) return;
    if (event.finish->status.ok()) {
      done(std::move(*found));
    } else {
      done(fail(event.finish->status));
    }
    requests_.ended(rid, 1);
  };
  requests_.send({.request = std::move(request),
                  .sink = std::move(sink),
                  .refused = [done](Status why) { done(fail(std::move(why))); }});
}

std::shared_ptr<const Speller> EngineScoring::speller() {
  std::call_once(speller_made_, [&] {
    speller_ = std::make_shared<const Speller>(requests_.engine().tokenizer()->vocab());
  });
  return speller_;
}

}  // namespace espalier::lang
