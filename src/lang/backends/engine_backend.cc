#include "lang/backends/engine_backend.h"

#include <algorithm>
#include <boost/json.hpp>
#include <concepts>
#include <functional>
#include <mutex>

#include "lang/backends/engine_answer.h"
#include "lang/backends/engine_requests.h"
#include "lang/backends/engine_scoring.h"
#include "seams/request_fields.h"

namespace espalier::lang {
namespace {

namespace json = boost::json;

// How an option of the language becomes a sampling parameter; what is absent keeps its default.
template <typename T, typename Param>
void set_param(Param& param, const std::optional<T>& option) {
  if (option) param = *option;
}
void set_param(std::optional<espalier::EarlyStopping>& param,
               const std::optional<EarlyStopping>& option) {
  static_assert(static_cast<int>(EarlyStopping::kNever) ==
                static_cast<int>(espalier::EarlyStopping::kNever));
  if (option) param = static_cast<espalier::EarlyStopping>(*option);
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

// One request's events, gathered; they come one at a time, on the engine's thread.
struct Gathered {
  CallEvents events;
  std::vector<GenerateResult> results;   // by sample
  std::vector<TokenId> input_ids;        // whose log-probabilities are wanted
  const Tokenizer* tokenizer = nullptr;  // for texts in log-probabilities; null: without them
  int64_t num_reported = 0;              // log-probabilities of output tokens, of a stream
  size_t num_open = 0;                   // samples
  Status failed;
};

// Takes an event's text, tokens and log-probabilities. True when the last sample has ended.
bool gather(Gathered& gathered, const std::string& rid, TokenEvent&& event) {
  GenerateResult& r = gathered.results[static_cast<size_t>(event.index)];
  r.text += event.text;
  r.output_ids.insert(r.output_ids.end(), event.ids.begin(), event.ids.end());
  std::move(event.logprobs.begin(), event.logprobs.end(), std::back_inserter(r.output_logprobs));
  std::move(event.input_logprobs.begin(), event.input_logprobs.end(),
            std::back_inserter(r.input_logprobs));
  if (event.index == 0 && !event.text.empty() && gathered.events.on_text) {
    if (gathered.events.on_progress) {
      Progress progress = progress_of(r, event.stats, gathered.num_reported, gathered.tokenizer);
      gathered.num_reported = progress.num_logprobs;
      gathered.events.on_progress(std::move(progress));
    }
    gathered.events.on_text(event.text);
  }
  if (!event.finish) return false;
  r.rid = rid;
  r.stats = event.stats;
  r.next_logprobs = std::move(event.next_logprobs);
  r.beam = event.beam;
  r.finish = std::move(*event.finish);
  if (gathered.failed.ok()) gathered.failed = r.finish.status;
  return --gathered.num_open == 0;
}

// Branches whose cached keys and values are put behind each other. Shared by their requests.
struct Joining {
  JoinRequest request;
  std::string text;  // of the whole
  std::mutex mutex;
  size_t num_open = 0;
  Status failed;
  JoinDone done;
};

class EngineBackend final : public Backend {
 public:
  EngineBackend(std::shared_ptr<Engine> engine, ChatFrames frames)
      : frames_(std::move(frames)), scoring_(requests_), requests_(std::move(engine)) {}

  const std::shared_ptr<Engine>& engine() const { return requests_.shared_engine(); }
  std::string name() const override { return "engine"; }
  RoleFrame role_frame(Role role, std::optional<Role> previous) const override {
    return frames_.frame(role, previous);
  }
  bool can_prefetch() const override { return !engine()->config().cache.disable_radix_cache; }
  bool can_join() const override { return engine()->can_join_branches(); }

  void generate(GenerateCall call, CallEvents events) override;
  void prefetch(std::string id, const Prompt& prompt, std::function<void(Status)> done) override;
  void cancel(const std::string& id) override { requests_.cancel(id); }
  void score(ScoreCall call, ScoreDone done) override {
    if (Status media = check_media(call.prompt); !media.ok()) return done(fail(std::move(media)));
    scoring_.score(call, std::move(done));
  }
  void join(JoinCall call, JoinDone done) override;

  Status flush_cache() override { return engine()->flush_cache(); }
  Result<std::string> server_info() override;

 private:
  Status check_media(const Prompt& prompt) const {
    for (const Media& media : prompt.media)
      if (media.kind == Media::Kind::kVideo || !engine()->model_info().images)
        return error(StatusCode::kUnimplemented,
                     "this engine's model reads no {} (\"{}\"): use a server or an API that does",
                     media.kind == Media::Kind::kVideo ? "videos" : "images", media.path);
    return {};
  }

  void submit(GenerateRequest request, std::shared_ptr<Gathered> gathered);
  void end(Gathered& gathered);
  // `release` is the request's last act, for the receiver to call.
  using Computed = std::function<void(const Status&, const std::function<void()>& release)>;
  void compute(GenerateRequest request, Computed done);
  std::vector<TokenId> branch_tokens(const Prompt& prompt, const std::vector<TokenId>& prefix,
                                     const std::string& branch) const;
  void finish_join(const std::shared_ptr<Joining>& joining, const std::function<void()>& release);

  const ChatFrames frames_;
  EngineScoring scoring_;    // outlives the requests, whose sinks refer to it
  EngineRequests requests_;  // last: its destructor waits for every request's end
};

void EngineBackend::generate(GenerateCall call, CallEvents events) {
  if (Status media = check_media(call.prompt); !media.ok())
    return events.on_done(fail(std::move(media)));
  GenerateRequest request = requests_.request_of(call.id, call.prompt);
  request.sampling = sampling_of(call.options);
  for_each_logprob_field([&](const auto& field) {
    if constexpr (HasField<decltype(field.option), const GenOptions> &&
                  HasField<decltype(field.param), GenerateRequest>)
      set_param(field.param(request), field.option(call.options));
  });
  if (call.prompt.text.empty() && engine()->tokenizer()->encode("").empty())
    return events.on_done(fail(invalid_argument("the prompt is empty: append text before a gen")));
  auto gathered = std::make_shared<Gathered>();
  if (call.options.return_text_in_logprobs.value_or(false))
    gathered->tokenizer = engine()->tokenizer();
  if (request.return_logprob && request.logprob_start_len >= 0) {
    request.input_ids = requests_.encode(call.prompt);
    const auto begin =
        std::min(request.input_ids.size(), static_cast<size_t>(request.logprob_start_len));
    gathered->input_ids.assign(request.input_ids.begin() + static_cast<std::ptrdiff_t>(begin),
                               request.input_ids.end());
  }
  gathered->events = std::move(events);
  submit(std::move(request), std::move(gathered));
}

void EngineBackend::prefetch(std::string id, const Prompt& prompt,
                             std::function<void(Status)> done) {
  if (Status media = check_media(prompt); !media.ok()) return done(std::move(media));
  GenerateRequest request = requests_.request_of(std::move(id), prompt);
  request.sampling.max_new_tokens = 0;
  auto gathered = std::make_shared<Gathered>();
  gathered->events.on_done = [done = std::move(done)](const Result<Completion>& r) {
    done(r ? Status() : r.error());
  };
  submit(std::move(request), std::move(gathered));
}

Result<std::string> EngineBackend::server_info() {
  const ModelInfo& info = engine()->model_info();
  const EngineStats stats = engine()->stats();
  return json::serialize(
      json::object{{"model_path", engine()->config().model.model_path.string()},
                   {"architecture", info.architecture},
                   {"num_parameters", info.num_parameters},
                   {"context_length", engine()->context_length()},
                   {"max_total_num_tokens", engine()->config().cache.max_total_tokens},
                   {"num_running", stats.requests.num_running},
                   {"num_waiting", stats.requests.num_waiting},
                   {"prompt_tokens_total", stats.tokens.prompt},
                   {"cached_tokens_total", stats.tokens.cached},
                   {"generation_tokens_total", stats.tokens.generated},
                   {"gen_throughput", stats.tokens.generated_per_second}});
}

void EngineBackend::submit(GenerateRequest request, std::shared_ptr<Gathered> gathered) {
  gathered->num_open = static_cast<size_t>(std::max(1, request.sampling.n));
  gathered->results.resize(gathered->num_open);
  const std::string rid = request.rid;
  auto sink = [gathered, rid, this](TokenEvent&& event) {
    if (!gather(*gathered, rid, std::move(event))) return;
    end(*gathered);
    requests_.ended(rid, static_cast<int64_t>(gathered->results.size()));
  };
  requests_.send(
      {.request = std::move(request), .sink = std::move(sink), .refused = [gathered](Status why) {
         gathered->events.on_done(fail(std::move(why)));
       }});
}

void EngineBackend::end(Gathered& gathered) {
  if (!gathered.failed.ok()) return gathered.events.on_done(fail(gathered.failed));
  Completion completion;
  Usage used{.num_calls = 1};
  for (GenerateResult& r : gathered.results) {
    completion.samples.push_back(
        {.text = std::move(r.text), .meta = meta_of(r, gathered.input_ids, gathered.tokenizer)});
    used.completion_tokens += r.stats.completion_tokens;
  }
  used.prompt_tokens = completion.samples.front().meta.prompt_tokens;
  used.cached_tokens = completion.samples.front().meta.cached_tokens;
  count(used);
  gathered.events.on_done(std::move(completion));
}

// Computes a prompt and samples nothing.
void EngineBackend::compute(GenerateRequest request, Computed done) {
  request.sampling = {.max_new_tokens = 0};
  auto sink = [this, rid = request.rid, done](TokenEvent&& event) {
    if (event.finish) done(event.finish->status, [this, rid] { requests_.ended(rid, 1); });
  };
  requests_.send({.request = std::move(request),
                  .sink = std::move(sink),
                  .refused = [done](const Status& why) { done(why, [] {}); }});
}

// As the branch's own calls had them, unless its first letters merged with the prefix's last.
std::vector<TokenId> EngineBackend::branch_tokens(const Prompt& prompt,
                                                  const std::vector<TokenId>& prefix,
                                                  const std::string& branch) const {
  std::vector<TokenId> ids = requests_.encode(prompt, branch);
  if (ids.size() <= prefix.size() || !std::equal(prefix.begin(), prefix.end(), ids.begin()))
    return requests_.encode_part(branch);
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prefix.size()));
  return ids;
}

// Each branch's prompt is computed to its end, which finds all but the last tokens in the cache,
// and the last of them that is done has the engine put the runs behind each other.
void EngineBackend::join(JoinCall call, JoinDone done) {
  if (!call.prompt.media.empty())
    return done(fail(error(StatusCode::kUnimplemented, "branches behind images are not joined")));
  auto joining = std::make_shared<Joining>();
  joining->request = {.extra_key = EngineRequests::cache_key(call.prompt),
                      .prefix = requests_.encode(call.prompt)};
  joining->text = call.prompt.text;
  joining->done = std::move(done);
  const std::vector<TokenId>& prefix = joining->request.prefix;
  for (const std::string& branch : call.branches) {
    joining->text += branch;
    joining->request.branches.push_back(branch_tokens(call.prompt, prefix, branch));
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
    compute(std::move(request),
            [this, joining](const Status& status, const std::function<void()>& release) {
              {
                std::lock_guard lock(joining->mutex);
                if (joining->failed.ok()) joining->failed = status;
                if (--joining->num_open > 0) return release();
              }
              finish_join(joining, release);
            });
}

void EngineBackend::finish_join(const std::shared_ptr<Joining>& joining,
                                const std::function<void()>& release) {
  if (!joining->failed.ok()) {
    joining->done(fail(joining->failed));
    return release();
  }
  engine()->join_branches(joining->request, [joining, release](Result<JoinedPrompt> made) {
    if (made) {
      joining->done(std::make_shared<const JoinedPrefix>(
          JoinedPrefix{joining->text, std::move(made->input_ids), std::move(made->extra_key)}));
    } else {
      joining->done(fail(made.error()));
    }
    release();
  });
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
  ChatFrames frames =
      ChatFrames::for_folder(engine->config().model.model_path, engine->tokenizer());
  return engine_backend(std::move(engine), std::move(frames));
}

Result<std::shared_ptr<Backend>> engine_backend(const EngineConfig& config) {
  ESP_ASSIGN_OR_RETURN(auto engine, Engine::create(config));
  return engine_backend(std::shared_ptr<Engine>(std::move(engine)));
}

}  // namespace espalier::lang
