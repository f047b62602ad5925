#include "engine/loop.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/check.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/thread.h"
#include "engine/constrained/token_healing.h"
#include "engine/requests/embedding.h"
#include "engine/sampling/sampler.h"

namespace espalier {
namespace {

Status exhausted_grammar() {
  return invalid_argument(
      "the grammar needs more states for this text than it may have, or leaves the text at too "
      "many "
      "places at once; bound its repetitions more tightly or split it");
}

SchedulerConfig scheduler_config(const EngineConfig& c, const Executor& executor) {
  return {.max_running = c.max_running_requests,
          .max_waiting = c.max_running_requests + c.max_queued_requests,  // the registry's bound
          .chunked_prefill_size = std::min(c.chunked_prefill_size, c.max_prefill_tokens),
          .context_length = c.context_length,
          .inter_token_seconds_max = c.max_inter_token_latency_ms * 1e-3,
          .policy = *parse_schedule_policy(c.schedule_policy),
          .fair_share = *parse_fair_share(c.fair_share),
          .max_overtakes = c.schedule_max_overtakes,
          .priority_preemption_threshold =
              c.disable_priority_preemption ? 0 : c.priority_scheduling_preemption_threshold,
          .time_tree_work = c.time_tree_work,
          .draft_samples_max = c.disable_drafts ? 0 : executor.draft_samples_max(),
          .find_shared_prefixes = c.device == "cuda" && !c.disable_cascade_attention &&
                                  !c.enable_deterministic_inference,
          .conservativeness = c.schedule_conservativeness};
}

Status stopping() { return error(StatusCode::kUnavailable, "the engine was shut down"); }

}  // namespace

EngineLoop::EngineLoop(const EngineConfig& config, const ModelInfo& info, Executor& executor,
                       PrefixCache& cache, RequestRegistry& registry, SessionTable& sessions,
                       const Tokenizer* tokenizer)
    : config_(config),
      vocab_size_(info.vocab_size),
      pooled_(info.pooled),
      executor_(executor),
      cache_(cache),
      registry_(registry),
      sessions_(sessions),
      tokenizer_(tokenizer),
      masks_(tokenizer, samples_, info.vocab_size, config.grammar_mask_threads),
      scheduler_(scheduler_config(config, executor), cache, clock_, *this),
      max_sequence_tokens_(std::min(config.context_length, scheduler_.max_sequence_tokens())),
      thread_([this] { run(); }) {}

EngineLoop::~EngineLoop() {
  inbox_.stop();
  thread_.join();
}

void EngineLoop::push(Message message) { inbox_.push(std::move(message)); }

// One turn commits the step before and leaves the next one running; the executor is waited for
// once, while it has work. A step's masks are computed when the tokens before it are known and
// while its forward runs.
void EngineLoop::run() {
  set_thread_name("scheduler");
  publish_stats();
  while (take_inbox()) {  // 1 inbox; parks while there is nothing
    waited_ = {};
    ForwardBatch* const launched = launch_next();             // 2 next, 3 launch
    if (in_flight_ != nullptr) wait_and_commit(*in_flight_);  // 4 wait
    in_flight_ = launched;
    if (launched != nullptr) provide_masks(*launched);  // 5 masks
    publish_stats();                                    // before callers hear of what they count
    emit();                                             // 6 emit
    totals_.host_seconds_total += to_seconds(clock_.now() - turn_start_ - waited_);
  }
}

// False when the engine is being destroyed and nothing is left.
bool EngineLoop::take_inbox() {
  messages_.clear();
  const bool still = idle() || (paused_ && in_flight_ == nullptr && news_.empty());
  const bool park = still && flushes_.empty() && pauses_.empty();
  if (park && config_.check_invariants) scheduler_.check_invariants();
  if (park && idle()) report_leak();
  const bool stopped = inbox_.take(messages_, park);
  turn_start_ = clock_.now();
  for (Message& message : messages_) std::visit([this](auto& m) { handle(m); }, message);
  if (stopped) abort_all(stopping());
  answer_pauses();
  answer_flushes();
  return !stopped || !idle() || !requests_.empty();
}

// Nobody runs, so nobody holds anything: every page is free, or cached for whoever comes. What is
// held all the same is a leak: it is told, and the engine goes on with what is left.
void EngineLoop::report_leak() {
  const PrefixCacheSizes pages = cache_.sizes();
  if (pages.in_use() == 0 || std::exchange(leak_told_, true)) return;
  log_error("kv memory leaked pages={} protected={} total={}", pages.in_use(), pages.protected_,
            pages.total);
}

void EngineLoop::handle(ArrivalMessage& message) {
  LiveRequest& request = *message.request;
  request.num_unfinished = request.samples.size();
  requests_.emplace(request.id, std::move(message.request));
  start_when_ready(request);
}

void EngineLoop::start_when_ready(LiveRequest& request) {
  if (!request.awaits_tokens && !request.awaits_grammar) start(request);
}

void EngineLoop::handle(TokensMessage& message) {
  const auto it = requests_.find(message.id);
  if (it == requests_.end() || !it->second->awaits_tokens) return;  // aborted meanwhile
  LiveRequest& request = *it->second;
  if (!message.prompt_ids)
    return finish_unscheduled(request, FinishReason::Type::kError, message.prompt_ids.error());
  request.prompt_ids = std::move(*message.prompt_ids);
  request.awaits_tokens = false;
  start_when_ready(request);
}

void EngineLoop::handle(GrammarMessage& message) {
  const auto it = requests_.find(message.id);
  if (it == requests_.end() || !it->second->awaits_grammar) return;  // aborted meanwhile
  LiveRequest& request = *it->second;
  if (!message.grammar)
    return finish_unscheduled(request, FinishReason::Type::kError, message.grammar.error());
  request.awaits_grammar = false;
  for (Sample& sample : request.samples) {
    sample.matcher.emplace(*message.grammar);
    sample.has_grammar = true;
  }
  if (request.jump_forward && draft_history_ == nullptr)
    draft_history_ = std::make_unique<DraftHistory>(masks_.jump_forward());
  if (request.drafts)
    request.draft_scope = mix64(std::hash<std::string>()(key_of(*request.sampling.grammar))) ^
                          std::hash<std::string>()(request.cache_namespace);
  start_when_ready(request);
}

void EngineLoop::handle(AbortMessage& message) {
  const auto it = requests_.find(message.id);
  if (it != requests_.end())
    abort(*it->second, error(StatusCode::kAborted, "request '{}' was aborted", it->second->rid));
}

void EngineLoop::handle(JoinMessage& message) { message.done(join(message.request)); }

// All of it on this thread, between two steps: what the tree holds is computed, and no step in
// flight knows the pages that are free.
Result<JoinedPrompt> EngineLoop::join(const JoinRequest& request) {
  JoinedPrompt joined = joined_prompt(request);
  std::vector<PageId> from;
  std::vector<SequencePages> held;  // what is copied stays until it is
  for (const std::vector<TokenId>& branch : request.branches) {
    std::vector<TokenId> tokens = request.prefix;
    tokens.insert(tokens.end(), branch.begin(), branch.end());
    const SequencePages& pages = held.emplace_back(cache_.begin(request.extra_key, tokens));
    if (static_cast<size_t>(pages.num_pages()) < tokens.size())
      return fail(error(StatusCode::kFailedPrecondition,
                        "a branch to be joined is not cached: {} of its {} tokens are",
                        pages.num_pages(), tokens.size()));
    const auto first = held.size() == 1 ? size_t{0} : request.prefix.size();
    const std::span<const PageId> own = pages.table().subspan(first);
    from.insert(from.end(), own.begin(), own.end());
  }
  SequencePages pages = cache_.begin(joined.extra_key, joined.input_ids);
  const auto present = static_cast<size_t>(pages.num_pages());  // joined before
  if (!cache_.grow(pages, static_cast<int32_t>(joined.input_ids.size())))
    return fail(error(StatusCode::kResourceExhausted, "no room in the cache for {} joined tokens",
                      joined.input_ids.size()));
  ESP_RETURN_IF_ERROR(
      executor_.copy_pages(std::span(from).subspan(present), pages.table().subspan(present)));
  cache_.finish(std::move(pages), joined.input_ids);
  return joined;
}

void EngineLoop::handle(PauseMessage& message) {
  paused_ = true;
  if (message.mode == Engine::PauseMode::kAbort)
    abort_all(error(StatusCode::kAborted, "generation was paused"));
  pauses_.push_back(std::move(message));
}

void EngineLoop::handle(ContinueMessage& message) {
  paused_ = false;
  message.done.set_value(Status());
}

// A pause is told when the last step is committed.
void EngineLoop::answer_pauses() {
  if (pauses_.empty() || in_flight_ != nullptr) return;
  for (const PauseMessage& pause : pauses_) {
    if (pause.mode == Engine::PauseMode::kRetract) scheduler_.retract_all();
  }
  publish_stats();  // before the callers ask what is running now
  for (PauseMessage& pause : pauses_) pause.done.set_value(Status());
  pauses_.clear();
}

void EngineLoop::start(LiveRequest& request) {
  const auto refuse = [&](const Status& why) {
    finish_unscheduled(request, FinishReason::Type::kError, why);
  };
  if (const Status status = join_session(request); !status.ok()) return refuse(status);
  if (request.token_healing) heal(request);
  if (const Status status = check_prompt(request); !status.ok()) return refuse(status);
  const auto max_new_tokens = resolve_max_new_tokens(
      request.sampling, static_cast<int32_t>(request.prompt_ids.size()), max_sequence_tokens_);
  if (!max_new_tokens) return refuse(max_new_tokens.error());
  for (int32_t i = 0; i < static_cast<int32_t>(request.samples.size()); ++i)
    if (const Status status = add_sequence(request, i, *max_new_tokens); !status.ok())
      finish(request.samples[static_cast<size_t>(i)],
             {.type = FinishReason::Type::kError, .status = status}, {.arrived = request.arrived});
}

// Puts what the request continues before what it brings.
Status EngineLoop::join_session(LiveRequest& request) {
  if (!request.session) return {};
  auto started =
      sessions_.start(*request.session, request.rid, request.id, std::move(request.prompt_ids));
  if (!started) return started.error();
  request.prompt_ids = std::move(started->prompt_ids);
  for (const RequestId id : started->replaced)
    if (const auto it = requests_.find(id); it != requests_.end())
      abort(*it->second, error(StatusCode::kAborted, "request '{}' was replaced by '{}'",
                               it->second->rid, request.rid));
  return {};
}

// Takes the prompt's last tokens back; each sample begins with their text.
void EngineLoop::heal(LiveRequest& request) {
  std::vector<TokenId>& prompt = request.prompt_ids;
  const size_t kept = prompt.size() - num_tokens_to_heal(masks_.tokens_by_bytes(), prompt);
  std::string text;
  for (size_t i = kept; i < prompt.size(); ++i)
    text += masks_.tokens_by_bytes().bytes_of(prompt[i]);
  prompt.resize(kept);
  for (Sample& sample : request.samples) {
    sample.healing = text;
    sample.heals = !text.empty();
    sample.output.skip(text);
  }
}

Status EngineLoop::check_prompt(const LiveRequest& request) const {
  const auto prompt_tokens = static_cast<int32_t>(request.prompt_ids.size());
  if (prompt_tokens == 0)
    return invalid_argument("the prompt is empty: at least one token is needed to continue from");
  for (TokenId id : request.prompt_ids)
    if (id < 0 || id >= vocab_size_)
      return invalid_argument("the prompt holds token {}, but the model's are in [0, {})", id,
                              vocab_size_);
  if (request.return_logprob && request.logprob_start_len > prompt_tokens)
    return invalid_argument("logprob_start_len is {}, but the prompt has {} tokens",
                            request.logprob_start_len, prompt_tokens);
  return {};
}

PooledTokens EngineLoop::pooled_tokens(const LiveRequest& request) const {
  if (!request.embed) return PooledTokens::kNone;
  return pooled_->all_tokens ? PooledTokens::kAll : PooledTokens::kLast;
}

Status EngineLoop::add_sequence(LiveRequest& request, int32_t index, int32_t max_new_tokens) {
  Sample& sample = request.samples[static_cast<size_t>(index)];
  auto spec = std::make_shared<SamplingSpec>(request.sampling.spec);
  spec->seed = sample_seed(request.seed, index);
  sample.output.set_max_new_tokens(max_new_tokens);
  sample.sequence = ++last_sequence_;
  sample.return_logprob = request.return_logprob;
  sample.in_session = request.session.has_value();
  sample.event.stats.prompt_tokens = static_cast<int32_t>(request.prompt_ids.size());
  sample.event.stats.arrived = request.arrived;
  samples_.emplace(sample.sequence, &sample);
  const Status status =
      scheduler_.add({.id = sample.sequence,
                      .prompt_ids = request.prompt_ids,
                      .sampling = std::move(spec),
                      .max_new_tokens = max_new_tokens,
                      .stop_ids = request.sampling.stop_ids,
                      .has_grammar = sample.matcher || !sample.healing.empty(),
                      .logprob_start_len = request.return_logprob ? request.logprob_start_len : -1,
                      .pooled = pooled_tokens(request),
                      .cache_namespace = request.cache_namespace,
                      .priority = request.priority,
                      .arrived = request.arrived});
  if (!status.ok()) samples_.erase(std::exchange(sample.sequence, 0));
  return status;
}

void EngineLoop::abort(LiveRequest& request, const Status& why) {
  if (request.awaits_tokens || request.awaits_grammar)
    return finish_unscheduled(request, FinishReason::Type::kAbort, why);
  for (Sample& sample : request.samples)
    if (!sample.finished)
      scheduler_.abort(sample.sequence, {.type = FinishReason::Type::kAbort, .status = why});
}

void EngineLoop::abort_all(const Status& why) {
  for (auto& [id, request] : requests_) abort(*request, why);
}

// A flush waits until the last step is committed, whose entries may be of requests that have ended.
void EngineLoop::answer_flushes() {
  if (flushes_.empty()) return;
  Status status;
  const bool in_use = !requests_.empty() && !(paused_ && scheduler_.stats().num_running == 0);
  if (in_use)
    status = error(StatusCode::kFailedPrecondition,
                   "the cache is in use: {} requests run or wait; abort them or try again later",
                   requests_.size());
  else if (in_flight_ != nullptr || (!paused_ && !idle()))
    return;
  else
    cache_.flush();
  publish_stats();
  for (std::promise<Status>& done : flushes_) done.set_value(status);
  flushes_.clear();
}

ForwardBatch* EngineLoop::launch_next() {
  if (paused_ || (in_flight_ != nullptr && config_.disable_overlap_schedule)) return nullptr;
  ForwardBatch& batch = batches_[next_batch_];
  if (!scheduler_.next(batch)) return nullptr;
  next_batch_ = (next_batch_ + 1) % Executor::kMaxInFlight;
  executor_.launch(batch);
  return &batch;
}

void EngineLoop::wait_and_commit(const ForwardBatch& batch) {
  const TimePoint start = clock_.now();
  const StepResult& result = executor_.wait(batch.step);
  waited_ = clock_.now() - start;
  totals_.forward_seconds_total += result.forward_seconds;
  scheduler_.commit(batch, result);
}

// The masks of a step whose tokens before are known by now, while its forward runs.
void EngineLoop::provide_masks(const ForwardBatch& batch) {
  if (std::ranges::none_of(batch.entries, &BatchEntry::has_mask)) return;
  const TimePoint start = clock_.now();
  const MaskView masks = masks_.fill(batch);
  executor_.provide_masks(batch.step, masks);
  totals_.num_masks_total += std::ssize(masks.words) / masks.words_per_mask;
  totals_.mask_seconds_total += to_seconds(clock_.now() - start);
}

// A token of a constrained sample: its grammar goes on, or ends the sample when nothing but the end
// can follow. Where the text may end a stop token ends it, as end-of-sequence does.
std::optional<FinishReason> EngineLoop::advance_grammar(Sample& sample, TokenId token) {
  grammar::Matcher& matcher = *sample.matcher;
  const auto& stops = sample.request->sampling.stop_ids;
  if (!matcher.accept_token(token)) {
    if (matcher.can_end() && std::binary_search(stops.begin(), stops.end(), token))
      return FinishReason{.type = FinishReason::Type::kStop, .matched = token};
    return FinishReason{
        .type = FinishReason::Type::kError,
        .status = matcher.exhausted()
                      ? exhausted_grammar()
                      : error(StatusCode::kInternal, "token {} is not of the grammar", token)};
  }
  return end_of_grammar(sample, token);
}

std::optional<FinishReason> EngineLoop::end_of_grammar(Sample& sample, TokenId token) {
  grammar::Matcher& matcher = *sample.matcher;
  if (!matcher.must_end()) return std::nullopt;
  const auto& stops = sample.request->sampling.stop_ids;
  FinishReason reason{.type = FinishReason::Type::kStop};
  if (matcher.ended())
    reason.matched = token;
  else if (!stops.empty())
    reason.matched = stops.front();
  return reason;
}

// A token of a sample that spells the prompt's end anew: what it has beyond is the output's.
std::optional<FinishReason> EngineLoop::advance_healing(Sample& sample, TokenId token) {
  const std::string_view bytes = masks_.tokens_by_bytes().bytes_of(token);
  const size_t common = std::min(bytes.size(), sample.healing.size());
  const bool fits = common > 0 && bytes.substr(0, common) == sample.healing.substr(0, common);
  sample.healing.erase(0, common);
  sample.heals = !sample.healing.empty();
  const std::string_view rest = bytes.substr(common);
  if (!fits || (!rest.empty() && sample.matcher && !sample.matcher->accept_bytes(rest)))
    return FinishReason{.type = FinishReason::Type::kError,
                        .status = error(StatusCode::kInternal,
                                        "token {} does not continue the prompt's end", token)};
  if (!sample.matcher || rest.empty()) return std::nullopt;
  return end_of_grammar(sample, token);
}

void EngineLoop::on_forced(SequenceId id, std::vector<TokenId>& forced) {
  Sample& sample = *samples_.at(id);
  if (!sample.has_grammar || !sample.request->jump_forward || sample.heals) return;
  grammar::Matcher& matcher = *sample.matcher;
  if (matcher.ended()) return;
  masks_.jump_forward().append_forced(matcher, sample.recent, forced);
  if (!sample.return_logprob) return;
  // The token that ends it is sampled: its forward gives the log-probabilities of those before.
  size_t kept = 0, read = 0;
  for (; kept < forced.size(); ++kept) {
    if (!matcher.accept_token(forced[kept])) break;
    ++read;
    if (matcher.must_end()) break;
  }
  matcher.rollback(read);
  forced.resize(kept);
}

bool EngineLoop::forces_behind_any(SequenceId id) {
  if (config_.disable_overlap_schedule) return false;
  Sample& sample = *samples_.at(id);
  const std::span<const TokenId> choices = masks_.choices_of(sample);
  return !choices.empty() &&
         masks_.jump_forward().forces_behind_all(*sample.matcher, sample.recent, choices);
}

void EngineLoop::on_draft(SequenceId id, Drafts& drafts) {
  Sample& sample = *samples_.at(id);
  if (uses_draft_history(sample))
    draft_history_->append(sample.request->draft_scope, *sample.matcher, sample.recent, drafts);
}

// The next token and two behind it: for one guess it is not worth waiting.
bool EngineLoop::drafts_behind_next(SequenceId id) {
  Sample& sample = *samples_.at(id);
  return uses_draft_history(sample) &&
         draft_history_->any(sample.request->draft_scope, *sample.matcher, sample.recent, 3);
}

bool EngineLoop::uses_draft_history(const Sample& sample) const {
  return sample.has_grammar && sample.request->drafts && !sample.heals && !sample.matcher->ended();
}

void EngineLoop::on_forced_logprobs(SequenceId id, std::vector<TokenLogprobs>&& logprobs) {
  Sample& sample = *samples_.at(id);
  ESP_CHECK(std::ssize(logprobs) <= sample.num_logprobs_due, "log-probabilities nobody waits for");
  for (TokenLogprobs& one : logprobs)
    sample.event.logprobs.end()[-sample.num_logprobs_due--] = std::move(one);
  list(sample);
}

void EngineLoop::on_input_logprobs(SequenceId id, int32_t first,
                                   std::vector<TokenLogprobs>&& logprobs) {
  Sample& sample = *samples_.at(id);
  const int32_t known = std::max(1, sample.request->logprob_start_len) + sample.num_input_logprobs;
  ESP_CHECK(first <= known, "input log-probabilities from {}, but only those before {} are known",
            first, known);
  // After a retraction the prompt is computed again, and so are those that are known.
  for (auto i = static_cast<size_t>(known - first); i < logprobs.size(); ++i) {
    sample.event.input_logprobs.push_back(std::move(logprobs[i]));
    ++sample.num_input_logprobs;
  }
}

std::optional<FinishReason> EngineLoop::on_token(SequenceId id, TokenId token,
                                                 TokenLogprobs&& logprobs,
                                                 const RequestStats& stats) {
  Sample& sample = *samples_.at(id);
  OutputProcessor::Output out = sample.output.push(token);
  sample.event.text += out.text;
  sample.event.ids.push_back(token);
  const bool forced = stats.forced_tokens > std::exchange(sample.num_forced, stats.forced_tokens);
  if (sample.return_logprob) {
    if (forced) ++sample.num_logprobs_due;
    sample.event.logprobs.push_back(std::move(logprobs));
  }
  sample.event.stats = stats;
  if (sample.in_session) sessions_.append(sample.request->id, token);
  ++new_tokens_;
  ++sample.num_tokens;
  list(sample);
  if (sample.has_grammar || sample.heals) {
    if (sample.recent.size() == 2 * JumpForward::kWindowMax)
      sample.recent.erase(sample.recent.begin(), sample.recent.begin() + JumpForward::kWindowMax);
    if (!forced && uses_draft_history(sample))
      draft_history_->learn(sample.request->draft_scope, *sample.matcher, sample.recent, token);
    sample.recent.push_back(token);
    auto ended = sample.heals ? advance_healing(sample, token) : advance_grammar(sample, token);
    if (ended && (!out.finish || ended->type == FinishReason::Type::kError)) return ended;
  }
  return std::move(out.finish);
}

void EngineLoop::on_token_soon(SequenceId id) const {
  if (const auto it = samples_.find(id); it != samples_.end()) it->second->prefetch();
}

void EngineLoop::on_pooled(SequenceId id, std::vector<float>&& vector) {
  Sample& sample = *samples_.at(id);
  sample.event.embedding = std::move(vector);
  shape_embedding(sample.event.embedding, *pooled_, sample.request->dimensions);
}

void EngineLoop::on_finish(SequenceId id, FinishReason reason, const RequestStats& stats) {
  const auto it = samples_.find(id);
  finish(*it->second, std::move(reason), stats);
  samples_.erase(it);
}

void EngineLoop::finish(Sample& sample, FinishReason reason, const RequestStats& stats) {
  ESP_CHECK(!sample.finished, "request '{}' ended twice", sample.request->rid);
  sample.finished = true;
  if (sample.request->session)
    sessions_.finish(sample.request->id, reason.type != FinishReason::Type::kError);
  sample.event.text += sample.output.flush();
  sample.event.stats = stats;
  // It was aborted or failed before their forward: they are not known.
  for (; sample.num_logprobs_due > 0; --sample.num_logprobs_due)
    sample.event.logprobs.end()[-sample.num_logprobs_due].logprob = std::nanf("");
  if (reason.type == FinishReason::Type::kAbort)
    ++totals_.num_aborted_total;
  else
    ++totals_.num_finished_total;
  if (reason.type == FinishReason::Type::kError) {
    ++totals_.num_failed_total;
    // A mask that could not be made lets no token come.
    if (sample.matcher && sample.matcher->exhausted() &&
        reason.status == no_token_left(sample.request->sampling.spec))
      reason.status = exhausted_grammar();
    if (is_not_finite(reason.status)) ++totals_.num_not_finite_total;
  }
  sample.event.finish = std::move(reason);
  list(sample);
}

void EngineLoop::finish_unscheduled(LiveRequest& request, FinishReason::Type type,
                                    const Status& why) {
  const RequestStats stats{.prompt_tokens = static_cast<int32_t>(request.prompt_ids.size()),
                           .arrived = request.arrived,
                           .finished = clock_.now()};
  request.awaits_tokens = request.awaits_grammar = false;
  for (Sample& sample : request.samples)
    if (!sample.finished) finish(sample, {.type = type, .status = why}, stats);
}

void EngineLoop::list(Sample& sample) {
  if (!sample.has_news) news_.push_back(&sample);
  sample.has_news = true;
}

void EngineLoop::emit() {
  constexpr size_t kAhead = 8;
  for (size_t i = 0; i < news_.size(); ++i) {
    if (i + kAhead < news_.size()) __builtin_prefetch(news_[i + kAhead]->request);
    emit(*news_[i]);
  }
  news_.clear();
}

// A sink that only reads leaves the event's memory for the next one, so that steady decode needs no
// more. The rid is free again before its caller hears the last event, and so may use it at once.
void EngineLoop::emit(Sample& sample) {
  LiveRequest& request = *sample.request;
  TokenEvent& event = sample.event;
  event.index = static_cast<int32_t>(&sample - request.samples.data());
  sample.has_news = false;
  if (sample.num_logprobs_due > 0) return;  // they come with the next step
  if (!sample.finished || request.num_unfinished > 1) {
    if (sample.finished) {
      registry_.release_sample();
      --request.num_unfinished;
    }
    request.sink(std::move(event));
    event.text.clear();  // NOLINT(bugprone-use-after-move): see above
    event.ids.clear();
    event.logprobs.clear();
    event.input_logprobs.clear();
    return;
  }
  registry_.release_sample();
  --request.num_unfinished;
  registry_.release_rid(request.rid);
  const auto last = requests_.extract(request.id);
  request.sink(std::move(event));
  registry_.settle();
}

void EngineLoop::publish_stats() {
  const SchedulerStats s = scheduler_.stats();
  const PrefixCacheSizes pages = cache_.sizes();
  const int32_t page_size = cache_.page_size();
  totals_.num_running = s.num_running;
  totals_.num_waiting = s.num_waiting;
  totals_.num_retractions_total = s.num_retractions;
  totals_.prompt_tokens_total = s.prompt_tokens;
  totals_.cached_tokens_total = s.cached_tokens;
  totals_.generation_tokens_total = s.generated_tokens;
  totals_.num_steps_total = s.steps;
  totals_.num_entries_total = s.entries;
  totals_.tree_seconds_total = s.tree_seconds;
  totals_.forced_tokens_total = s.forced_tokens;
  totals_.forwards_saved_total = s.forwards_saved;
  totals_.drafted_tokens_total = s.drafted_tokens;
  totals_.accepted_drafts_total = s.accepted_drafts;
  totals_.kv_tokens_total = pages.total * page_size;
  totals_.kv_tokens_running = pages.in_use() * page_size;
  totals_.kv_tokens_cached = (pages.evictable + pages.protected_) * page_size;
  if (new_tokens_ > 0) throughput_.add(clock_.now(), std::exchange(new_tokens_, 0));
  std::lock_guard lock(published_mutex_);
  published_ = totals_;
  published_throughput_ = throughput_;
}

EngineStats EngineLoop::stats() const {
  std::unique_lock lock(published_mutex_);
  EngineStats s = published_;
  const ThroughputWindow throughput = published_throughput_;
  lock.unlock();
  s.gen_throughput = throughput.per_second(clock_.now());
  s.num_requests_total = registry_.num_requests_total();
  // Those that are being tokenised wait too.
  s.num_waiting =
      std::max(s.num_waiting, static_cast<int32_t>(registry_.num_samples()) - s.num_running);
  return s;
}

}  // namespace espalier
