#include "lang/backends/engine_backend.h"

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <cmath>
#include <concepts>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>

#include "engine/requests/exact_search.h"
#include "lang/backends/engine_answer.h"
#include "seams/request_fields.h"

namespace espalier::lang {
namespace {

namespace json = boost::json;

// How an option of the language becomes a sampling parameter; what is absent keeps its default.
template <typename T, typename Param>
void set_param(Param& param, const std::optional<T>& option) {
  if (option) param = *option;
}
void set_param(std::optional<std::string>& param, const std::string& option) {
  if (!option.empty()) param = option;
}
template <typename T, typename List>
requires std::derived_from<List, std::vector<T>>
void set_param(std::vector<T>& param, const List& option) { param = option; }

SamplingParams sampling_of(const GenOptions& o) {
  SamplingParams p;
  for_each_request_field([&](const auto& field) {
    if constexpr (HasField<decltype(field.option), const GenOptions>)
      set_param(field.param(p), field.option(o));
  });
  const std::string_view dtype = dtype_regex(o.dtype);
  if (!dtype.empty()) p.regex = std::string(dtype);
  return p;
}

// The requests of one back end: those that the engine holds, so that the back end's end can end
// them, and those that wait because the engine takes no more. Shared by the back end and the sinks.
class Held {
 public:
  struct Waiting {
    GenerateRequest request;
    EventSink sink;
    std::function<void(Status)> refused;
  };

  explicit Held(int64_t max_samples) : max_samples_(max_samples) {}

  // True: it may be submitted. Else it waits, moved from.
  bool admit(Waiting& w) {
    std::lock_guard lock(mutex_);
    rids_.insert(w.request.rid);
    if (!waiting_.empty() || !fits(w)) {
      waiting_.push_back(std::move(w));
      return false;
    }
    num_samples_ += samples_of(w.request);
    return true;
  }
  // One has ended. What may be submitted in its place; the last act of a request, after which the
  // back end may be gone unless something is given.
  std::vector<Waiting> remove(const std::string& rid, int64_t num_samples) {
    std::lock_guard lock(mutex_);
    num_samples_ -= num_samples;
    std::vector<Waiting> next;
    while (!waiting_.empty() && fits(waiting_.front())) {
      num_samples_ += samples_of(waiting_.front().request);
      next.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    rids_.erase(rid);
    if (rids_.empty()) empty_.notify_all();
    return next;
  }
  // Takes those of a call that wait out of the queue: CALL, CALL/0, CALL/1 ... ("": all).
  std::vector<Waiting> take_waiting(const std::string& call) {
    std::lock_guard lock(mutex_);
    std::vector<Waiting> taken;
    std::deque<Waiting> others;
    for (Waiting& w : waiting_)
      if (is_part(w.request.rid, call)) {
        rids_.erase(w.request.rid);
        taken.push_back(std::move(w));
      } else {
        others.push_back(std::move(w));
      }
    waiting_ = std::move(others);
    if (rids_.empty()) empty_.notify_all();
    return taken;
  }
  std::vector<std::string> rids(const std::string& call) const {
    std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    for (const std::string& rid : rids_)
      if (is_part(rid, call)) found.push_back(rid);
    return found;
  }
  void wait_empty() {
    std::unique_lock lock(mutex_);
    empty_.wait(lock, [&] { return rids_.empty(); });
  }
  static int64_t samples_of(const GenerateRequest& request) {
    return std::max(1, request.sampling.n);
  }

 private:
  static bool is_part(const std::string& rid, const std::string& call) {
    return call.empty() ||
           (rid.starts_with(call) && (rid.size() == call.size() || rid[call.size()] == '/'));
  }
  bool fits(const Waiting& w) const {
    return num_samples_ == 0 || num_samples_ + samples_of(w.request) <= max_samples_;
  }

  const int64_t max_samples_;
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  std::set<std::string> rids_;
  std::deque<Waiting> waiting_;
  int64_t num_samples_ = 0;
};

// One request's events, gathered; they come one at a time, on the engine's thread.
struct Gathered {
  CallEvents events;
  std::vector<GenerateResult> results;
  std::vector<TokenId> input_ids;  // whose log-probabilities are wanted
  bool with_text = false;          // in log-probabilities
  int64_t num_told = 0;            // log-probabilities of output tokens, of a stream
  size_t num_open = 0;
  Status failed;
};

// What the requests of one score() measure.
struct Scoring {
  std::mutex mutex;
  std::vector<ChoiceScore> scores;
  size_t num_open = 0;
  Status failed;
  ScoreDone done;
};

class EngineBackend final : public Backend {
 public:
  EngineBackend(std::shared_ptr<Engine> engine, ChatFrames frames)
      : engine_(std::move(engine)),
        frames_(std::move(frames)),
        held_(std::make_shared<Held>(int64_t{engine_->config().max_running_requests} +
                                     engine_->config().max_queued_requests)) {}

  ~EngineBackend() override {
    cancel("");
    held_->wait_empty();
  }

  const std::shared_ptr<Engine>& engine() const { return engine_; }
  std::string name() const override { return "engine"; }
  RoleFrame role_frame(Role role, std::optional<Role> previous) const override {
    return frames_.frame(role, previous);
  }
  bool can_prefetch() const override { return !engine_->config().disable_radix_cache; }
  bool can_join() const override { return engine_->can_join_branches(); }

  void generate(GenerateCall call, CallEvents events) override {
    if (!call.prompt.media.empty()) return events.on_done(fail(no_media(call.prompt)));
    GenerateRequest request = request_of(call.id, call.prompt);
    request.sampling = sampling_of(call.options);
    request.return_logprob = call.options.return_logprob.value_or(false);
    request.logprob_start_len = call.options.logprob_start_len.value_or(-1);
    request.top_logprobs_num = call.options.top_logprobs_num.value_or(0);
    if (call.prompt.text.empty() && engine_->tokenizer()->encode("").empty())
      return events.on_done(
          fail(invalid_argument("the prompt is empty: append text before a gen")));
    auto gathered = std::make_shared<Gathered>();
    gathered->with_text = call.options.return_text_in_logprobs.value_or(false);
    if (request.return_logprob && request.logprob_start_len >= 0) {
      request.input_ids = encode(call.prompt);
      const auto begin =
          std::min(request.input_ids.size(), static_cast<size_t>(request.logprob_start_len));
      gathered->input_ids.assign(request.input_ids.begin() + static_cast<std::ptrdiff_t>(begin),
                                 request.input_ids.end());
    }
    gathered->events = std::move(events);
    submit(std::move(request), std::move(gathered));
  }

  void prefetch(std::string id, const Prompt& prompt, std::function<void(Status)> done) override {
    GenerateRequest request = request_of(std::move(id), prompt);
    request.sampling.max_new_tokens = 0;
    auto gathered = std::make_shared<Gathered>();
    gathered->events.on_done = [done = std::move(done)](const Result<Completion>& r) {
      done(r ? Status() : r.error());
    };
    submit(std::move(request), std::move(gathered));
  }

  void cancel(const std::string& id) override {
    for (Held::Waiting& w : held_->take_waiting(id))
      w.refused(error(StatusCode::kAborted, "the call was cancelled"));
    for (const std::string& rid : held_->rids(id)) engine_->abort(rid, Engine::AbortScope::kExact);
  }

  void score(ScoreCall call, ScoreDone done) override;
  void join(JoinCall call, JoinDone done) override;

  Status flush_cache() override { return engine_->flush_cache(); }
  Result<std::string> server_info() override {
    const ModelInfo& info = engine_->model_info();
    const EngineStats stats = engine_->stats();
    return json::serialize(
        json::object{{"model_path", engine_->config().model_path.string()},
                     {"architecture", info.architecture},
                     {"num_parameters", info.num_parameters},
                     {"context_length", engine_->context_length()},
                     {"max_total_num_tokens", engine_->config().max_total_tokens},
                     {"num_running", stats.num_running},
                     {"num_waiting", stats.num_waiting},
                     {"prompt_tokens_total", stats.prompt_tokens_total},
                     {"cached_tokens_total", stats.cached_tokens_total},
                     {"generation_tokens_total", stats.generation_tokens_total},
                     {"gen_throughput", stats.gen_throughput}});
  }

 private:
  // The tokens of a prompt with `more` behind it. What was joined has those that its branches have.
  std::vector<TokenId> encode(const Prompt& prompt, std::string_view more = {}) const {
    const Tokenizer& tokenizer = *engine_->tokenizer();
    if (prompt.joined == nullptr)
      return tokenizer.encode(more.empty() ? prompt.text : prompt.text + std::string(more));
    std::vector<TokenId> ids = prompt.joined->ids;
    const std::vector<TokenId> rest =
        encode_part(prompt.text.substr(prompt.joined->text.size()) + std::string(more));
    ids.insert(ids.end(), rest.begin(), rest.end());
    return ids;
  }
  // Of what is not the beginning.
  std::vector<TokenId> encode_part(std::string_view text) const {
    return engine_->tokenizer()->encode(text, {.add_special_tokens = false});
  }
  static std::string key_of(const Prompt& prompt) {
    return prompt.joined == nullptr ? std::string() : prompt.joined->key;
  }
  GenerateRequest request_of(std::string rid, const Prompt& prompt) const {
    GenerateRequest request{.rid = std::move(rid)};
    if (prompt.joined == nullptr) {
      request.text = prompt.text;
    } else {
      request.input_ids = encode(prompt);
      request.extra_key = key_of(prompt);
    }
    return request;
  }
  static Status no_media(const Prompt& prompt) {
    return error(StatusCode::kUnimplemented,
                 "no model of this engine reads images or videos (\"{}\"): use a server or an API "
                 "that does",
                 prompt.media.front().path);
  }

  void submit(GenerateRequest request, std::shared_ptr<Gathered> gathered) {
    gathered->num_open = static_cast<size_t>(std::max(1, request.sampling.n));
    gathered->results.resize(gathered->num_open);
    const std::string rid = request.rid;
    // The sink may outlive everything but what it captures, and this back end waits for its end.
    auto sink = [gathered, rid, this](TokenEvent&& event) {
      GenerateResult& r = gathered->results[static_cast<size_t>(event.index)];
      r.text += event.text;
      r.output_ids.insert(r.output_ids.end(), event.ids.begin(), event.ids.end());
      std::move(event.logprobs.begin(), event.logprobs.end(),
                std::back_inserter(r.output_logprobs));
      std::move(event.input_logprobs.begin(), event.input_logprobs.end(),
                std::back_inserter(r.input_logprobs));
      if (event.index == 0 && !event.text.empty() && gathered->events.on_text) {
        if (gathered->events.on_progress) {
          Progress progress = progress_of(r, event.stats, gathered->num_told,
                                          gathered->with_text ? engine_->tokenizer() : nullptr);
          gathered->num_told = progress.num_logprobs;
          gathered->events.on_progress(std::move(progress));
        }
        gathered->events.on_text(event.text);
      }
      if (!event.finish) return;
      r.rid = rid;
      r.stats = event.stats;
      r.finish = std::move(*event.finish);
      if (gathered->failed.ok()) gathered->failed = r.finish.status;
      if (--gathered->num_open > 0) return;
      end(*gathered);
      ended(rid, static_cast<int64_t>(gathered->results.size()));
    };
    send({.request = std::move(request),
          .sink = std::move(sink),
          .refused = [gathered](Status why) { gathered->events.on_done(fail(std::move(why))); }});
  }

  // To the engine now, or when it has room.
  void send(Held::Waiting w) {
    const std::string rid = w.request.rid;
    const int64_t num_samples = Held::samples_of(w.request);
    if (held_->admit(w) && !submit_now(w)) ended(rid, num_samples);
  }
  bool submit_now(Held::Waiting& w) {
    const auto accepted = engine_->submit(std::move(w.request), std::move(w.sink));
    if (!accepted) w.refused(accepted.error());
    return accepted.has_value();
  }
  // A request's last act: nothing here is touched once the last of them is removed.
  void ended(const std::string& rid, int64_t num_samples) {
    const std::shared_ptr<Held> held = held_;
    std::vector<Held::Waiting> next = held->remove(rid, num_samples);
    while (!next.empty()) {
      Held::Waiting w = std::move(next.back());
      next.pop_back();
      const std::string next_rid = w.request.rid;
      const int64_t count = Held::samples_of(w.request);
      if (submit_now(w)) continue;
      for (Held::Waiting& more : held->remove(next_rid, count)) next.push_back(std::move(more));
    }
  }

  void end(Gathered& gathered) {
    if (!gathered.failed.ok()) return gathered.events.on_done(fail(gathered.failed));
    Completion completion;
    Usage used{.num_calls = 1};
    const Tokenizer* const tokenizer = gathered.with_text ? engine_->tokenizer() : nullptr;
    for (GenerateResult& r : gathered.results) {
      completion.samples.push_back(
          {.text = std::move(r.text), .meta = meta_of(r, gathered.input_ids, tokenizer)});
      used.completion_tokens += r.stats.completion_tokens;
    }
    used.prompt_tokens = completion.samples.front().meta.prompt_tokens;
    used.cached_tokens = completion.samples.front().meta.cached_tokens;
    count(used);
    gathered.events.on_done(std::move(completion));
  }

  // log p of each token of `ids` from `begin` on; the first has none where nothing stands before
  // it.
  using Logprobs = std::vector<std::optional<float>>;
  void measure(GenerateRequest request, size_t begin, std::function<void(Result<Logprobs>)> done);
  // `release` is the request's last act, for the receiver to call.
  using Computed = std::function<void(const Status&, const std::function<void()>& release)>;
  void compute(GenerateRequest request, Computed done);
  void score_choices(ScoreCall call, const std::shared_ptr<Scoring>& scoring);
  void score_exactly(const ScoreCall& call, const std::shared_ptr<Scoring>& scoring);
  void ask_next(GenerateRequest request, std::function<void(Result<std::vector<float>>)> done);
  std::shared_ptr<const Speller> speller();
  // `count` requests have ended; with the last the scores are told.
  static void measured(const std::shared_ptr<Scoring>& scoring, const Status& status);

  const std::shared_ptr<Engine> engine_;
  const ChatFrames frames_;
  const std::shared_ptr<Held> held_;        // shared with what ends while this does
  std::once_flag speller_made_;             // by the first exact select
  std::shared_ptr<const Speller> speller_;  // shared with the searches
};

void EngineBackend::measure(GenerateRequest request, size_t begin,
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
    ended(rid, 1);
  };
  send({.request = std::move(request), .sink = std::move(sink), .refused = [done](Status why) {
          done(fail(std::move(why)));
        }});
}

void EngineBackend::measured(const std::shared_ptr<Scoring>& scoring, const Status& status) {
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

void EngineBackend::score(ScoreCall call, ScoreDone done) {
  if (!call.prompt.media.empty()) return done(fail(no_media(call.prompt)));
  auto scoring = std::make_shared<Scoring>();
  scoring->done = std::move(done);
  scoring->scores.resize(call.choices.size());
  for (size_t i = 0; i < call.choices.size(); ++i) scoring->scores[i].text = call.choices[i];
  if (call.method == ChoicesMethod::kExact) {
    score_exactly(call, scoring);
  } else {
    score_choices(std::move(call), scoring);
  }
}

// A choice may merge with the end of the prompt into other tokens, so all choices are scored from
// the first token in which any of them differs from the prompt.
void EngineBackend::score_choices(ScoreCall call, const std::shared_ptr<Scoring>& scoring) {
  const std::vector<TokenId> prompt = encode(call.prompt);
  std::vector<std::vector<TokenId>> wholes;
  size_t begin = prompt.size();
  for (const std::string& choice : call.choices) {
    const auto& whole = wholes.emplace_back(encode(call.prompt, choice));
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
             .extra_key = key_of(call.prompt)},
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

// p(text | prompt), summed over the spellings of the text; the choices at once, each with a
// question at a time.
void EngineBackend::score_exactly(const ScoreCall& call, const std::shared_ptr<Scoring>& scoring) {
  auto prompt = std::make_shared<const std::vector<TokenId>>(encode(call.prompt));
  if (prompt->empty())
    return scoring->done(fail(invalid_argument(
        "the exact probability of a choice needs a prompt before it: append text first")));
  scoring->num_open = call.choices.size();
  for (size_t i = 0; i < call.choices.size(); ++i) {
    auto num_asked = std::make_shared<int>(0);
    const std::string id = fmt::format("{}/{}", call.id, i);
    const AskNext ask = [this, prompt, num_asked, id, key = key_of(call.prompt)](
                            const std::vector<TokenId>& tokens, const std::vector<TokenId>& wanted,
                            std::function<void(Result<std::vector<float>>)> done) {
      GenerateRequest request =
          next_token_request(fmt::format("{}.{}", id, (*num_asked)++), *prompt, tokens, wanted);
      request.extra_key = key;
      ask_next(std::move(request), std::move(done));
    };
    exact_probability(speller(), call.choices[i], {}, ask,
                      [scoring, i](const Result<ExactProbability>& r) {
                        if (r) scoring->scores[i].exact_logprob = r->logprob;
                        measured(scoring, r ? Status() : r.error());
                      });
  }
}

// Computes a prompt and samples nothing.
void EngineBackend::compute(GenerateRequest request, Computed done) {
  request.sampling = {.max_new_tokens = 0};
  auto sink = [this, rid = request.rid, done](TokenEvent&& event) {
    if (event.finish) done(event.finish->status, [this, rid] { ended(rid, 1); });
  };
  send({.request = std::move(request),
        .sink = std::move(sink),
        .refused = [done](const Status& why) { done(why, [] {}); }});
}

// Each branch's prompt is computed to its end, which finds all but the last tokens in the cache,
// and the last of them that is done has the engine put the runs behind each other.
void EngineBackend::join(JoinCall call, JoinDone done) {
  struct Joining {
    JoinRequest request;
    std::string text;
    std::mutex mutex;
    size_t num_open = 0;
    Status failed;
    JoinDone done;
  };
  auto joining = std::make_shared<Joining>();
  joining->request = {.extra_key = key_of(call.prompt), .prefix = encode(call.prompt)};
  joining->text = call.prompt.text;
  joining->done = std::move(done);
  const std::vector<TokenId>& prefix = joining->request.prefix;
  for (const std::string& branch : call.branches) {
    // As the branch's own calls had it, unless its first letters merged with the prefix's last.
    std::vector<TokenId> ids = encode(call.prompt, branch);
    if (ids.size() > prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin())) {
      ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prefix.size()));
    } else {
      ids = encode_part(branch);
    }
    joining->text += branch;
    joining->request.branches.push_back(std::move(ids));
  }
  if (Status valid = check_join(joining->request); !valid.ok())
    return joining->done(fail(std::move(valid)));
  const size_t count = joining->num_open = joining->request.branches.size();
  std::vector<GenerateRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    const std::vector<TokenId>& branch = joining->request.branches[i];
    requests[i] = {.rid = fmt::format("{}/{}", call.id, i), .input_ids = prefix};
    requests[i].input_ids.insert(requests[i].input_ids.end(), branch.begin(), branch.end());
    requests[i].extra_key = joining->request.extra_key;
  }
  for (GenerateRequest& request : requests)
    compute(std::move(request), [this, joining](const Status& status,
                                                const std::function<void()>& release) {
      {
        std::lock_guard lock(joining->mutex);
        if (joining->failed.ok()) joining->failed = status;
        if (--joining->num_open > 0) return release();
      }
      if (!joining->failed.ok()) {
        joining->done(fail(joining->failed));
        return release();
      }
      engine_->join_branches(joining->request, [joining, release](Result<JoinedPrompt> made) {
        if (made) {
          joining->done(std::make_shared<const JoinedPrefix>(
              JoinedPrefix{joining->text, std::move(made->input_ids), std::move(made->extra_key)}));
        } else {
          joining->done(fail(made.error()));
        }
        release();
      });
    });
}

std::shared_ptr<const Speller> EngineBackend::speller() {
  std::call_once(speller_made_, [&] {
    speller_ = std::make_shared<const Speller>(engine_->tokenizer()->vocab());
  });
  return speller_;
}

// The log-probabilities of the wanted tokens after the request's prompt.
void EngineBackend::ask_next(GenerateRequest request,
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
    ended(rid, 1);
  };
  send({.request = std::move(request), .sink = std::move(sink), .refused = [done](Status why) {
          done(fail(std::move(why)));
        }});
}

}  // namespace

std::shared_ptr<Engine> engine_of(const Backend& backend) {
  const auto* one = dynamic_cast<const EngineBackend*>(&backend);
  return one != nullptr ? one->engine() : nullptr;
}

Result<std::shared_ptr<Backend>> engine_backend(std::shared_ptr<Engine> engine, ChatFrames frames) {
  if (engine->tokenizer() == nullptr)
    return fail(error(StatusCode::kFailedPrecondition,
                      "the language needs text: start the engine with its tokenizer"));
  return std::make_shared<EngineBackend>(std::move(engine), std::move(frames));
}

Result<std::shared_ptr<Backend>> engine_backend(std::shared_ptr<Engine> engine) {
  ChatFrames frames = ChatFrames::for_folder(engine->config().model_path, engine->tokenizer());
  return engine_backend(std::move(engine), std::move(frames));
}

Result<std::shared_ptr<Backend>> engine_backend(const EngineConfig& config) {
  ESP_ASSIGN_OR_RETURN(auto engine, Engine::create(config));
  return engine_backend(std::shared_ptr<Engine>(std::move(engine)));
}

}  // namespace espalier::lang
