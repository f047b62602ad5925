#include "engine/requests/inbox_handler.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "engine/beams/beam_params.h"
#include "engine/sampling/params.h"

namespace espalier {

void InboxHandler::handle(Message& message) {
  std::visit([this](auto& m) { on(m); }, message);
}

void InboxHandler::on(ArrivalMessage& message) {
  LiveRequest& request = parts_.requests.add(std::move(message.request));
  request.num_unfinished = request.samples.size();
  start_when_ready(request);
}

void InboxHandler::on(TokensMessage& message) {
  LiveRequest* const request = parts_.requests.find(message.id);
  if (request == nullptr || !request->awaits_tokens) return;  // aborted meanwhile
  if (!message.prompt_ids)
    return parts_.events.finish_unscheduled(*request, FinishReason::Type::kError,
                                            message.prompt_ids.error());
  request->prompt_ids = std::move(*message.prompt_ids);
  request->awaits_tokens = false;
  start_when_ready(*request);
}

void InboxHandler::on(GrammarMessage& message) {
  LiveRequest* const request = parts_.requests.find(message.id);
  if (request == nullptr || !request->awaits_grammar) return;  // aborted meanwhile
  if (!message.grammar)
    return parts_.events.finish_unscheduled(*request, FinishReason::Type::kError,
                                            message.grammar.error());
  request->awaits_grammar = false;
  parts_.proposer.start(*request, *message.grammar);
  start_when_ready(*request);
}

void InboxHandler::on(ImagesMessage& message) {
  LiveRequest* const request = parts_.requests.find(message.id);
  if (request == nullptr || !request->awaits_images) return;  // aborted meanwhile
  if (!message.images)
    return parts_.events.finish_unscheduled(*request, FinishReason::Type::kError,
                                            message.images.error());
  request->images = std::move(*message.images);
  request->awaits_images = false;
  start_when_ready(*request);
}

void InboxHandler::on(AbortMessage& message) {
  if (LiveRequest* const request = parts_.requests.find(message.id))
    abort(*request, error(StatusCode::kAborted, "request '{}' was aborted", request->rid));
}

void InboxHandler::on(EvictMessage& message) {
  if (LiveRequest* const request = parts_.requests.find(message.id))
    end(*request, FinishReason::Type::kError, message.why);
}

void InboxHandler::on(JoinMessage& message) { message.done(join(message.request)); }

namespace {
// What a step may wait for an observer, and how many nodes are read between two looks at the clock.
constexpr Duration kObserverTime = std::chrono::microseconds(100);
constexpr uint32_t kNodesAtOnce = 64;
}  // namespace

// Ends early when the time is over: `next` says where the observer goes on.
void InboxHandler::on(CacheNodesMessage& message) {
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + kObserverTime;
  CacheNodesQuery part = std::move(message.query);
  uint32_t num_left = part.num_max;
  CacheNodes read;
  do {
    part.num_max = std::min(num_left, kNodesAtOnce);
    num_left -= part.num_max;
    CacheNodes more = parts_.caches.first().read_nodes(part);
    if (parts_.tiers != nullptr) parts_.tiers->locate(part.names, more);
    if (!part.names.empty()) read.tiers_of_names = std::move(more.tiers_of_names);
    part.names.clear();
    part.from = read.next = more.next;
    read.num_nodes = more.num_nodes;
    read.now = more.now;
    read.has_tiers = more.has_tiers;
    std::ranges::move(more.nodes, std::back_inserter(read.nodes));
  } while (part.from != 0 && num_left > 0 && clock.now() < deadline);
  message.done(std::move(read));
}

void InboxHandler::on(FlushMessage& message) { flushes_.push_back(std::move(message.done)); }

void InboxHandler::on(PauseMessage& message) {
  paused_ = true;
  if (message.mode == Engine::PauseMode::kAbort)
    abort_all(error(StatusCode::kAborted, "generation was paused"));
  pauses_.push_back(std::move(message));
}

void InboxHandler::on(ContinueMessage& message) {
  paused_ = false;
  message.done.set_value(Status());
}

void InboxHandler::on(HoldMessage& message) {
  if (message.abort_all)
    end_started(FinishReason::Type::kAbort,
                error(StatusCode::kAborted, "the weights are replaced"));
  hold_.begin(std::move(message.done));
}

// Requests of a paused engine do not go on with weights that serve none.
void InboxHandler::on(ReleaseMessage& message) {
  if (!message.refusal.ok()) end_started(FinishReason::Type::kError, message.refusal);
  for (const RequestId id : hold_.release(std::move(message.weights), std::move(message.refusal))) {
    LiveRequest* const request = parts_.requests.find(id);
    if (request == nullptr || !request->awaits_weights) continue;  // aborted meanwhile
    request->awaits_weights = false;
    start_when_ready(*request);
  }
}

void InboxHandler::on(ProfileMessage& message) { parts_.watch.handle(message.call); }

void InboxHandler::start_when_ready(LiveRequest& request) {
  if (request.is_waiting()) return;
  if (hold_.defers()) {
    request.awaits_weights = true;
    return hold_.defer(request.id);
  }
  if (const Status status = start(request); !status.ok())
    parts_.events.finish_unscheduled(request, FinishReason::Type::kError, status);
}

// A failure is of the whole request. A sample that the scheduler refuses fails alone.
Status InboxHandler::start(LiveRequest& request) {
  ESP_RETURN_IF_ERROR(hold_.refusal());
  request.weight_epoch = hold_.weights().epoch;
  request.cache_namespace = namespace_of_weights(hold_.weights(), request.cache_namespace);
  ESP_RETURN_IF_ERROR(continue_session(request));
  if (request.token_healing) parts_.proposer.heal(request);
  ESP_RETURN_IF_ERROR(check_tokens(request));
  ESP_RETURN_IF_ERROR(place_pictures(request));
  const auto prompt_tokens = static_cast<int32_t>(request.prompt_ids.size());
  if (request.return_logprob && request.logprob_start_len > prompt_tokens)
    return invalid_argument("logprob_start_len is {}, but the prompt has {} tokens",
                            request.logprob_start_len, prompt_tokens);
  const auto max_new_tokens =
      resolve_max_new_tokens(request.sampling, prompt_tokens, parts_.length_limit);
  if (!max_new_tokens) return max_new_tokens.error();
  ESP_RETURN_IF_ERROR(check_budget(request, *max_new_tokens));
  if (request.beams != nullptr) return start_search(request, *max_new_tokens);
  for (int32_t i = 0; i < static_cast<int32_t>(request.samples.size()); ++i)
    if (const Status status = add_sequence(request, i, *max_new_tokens); !status.ok())
      parts_.events.finish(request.samples[static_cast<size_t>(i)],
                           {.type = FinishReason::Type::kError, .status = status},
                           {.arrived = request.arrived});
  return {};
}

// Puts the tokens that the request continues in front of its own.
Status InboxHandler::continue_session(LiveRequest& request) {
  if (!request.session) return {};
  auto started = parts_.sessions.start(*request.session, request.rid, request.id,
                                       std::move(request.prompt_ids));
  if (!started) return started.error();
  request.prompt_ids = std::move(started->prompt_ids);
  for (const RequestId id : started->replaced)
    if (LiveRequest* const replaced = parts_.requests.find(id))
      abort(*replaced, error(StatusCode::kAborted, "request '{}' was replaced by '{}'",
                             replaced->rid, request.rid));
  return {};
}

Status InboxHandler::check_tokens(const LiveRequest& request) const {
  if (request.prompt_ids.empty())
    return invalid_argument("the prompt is empty: at least one token is needed to continue from");
  for (TokenId id : request.prompt_ids)
    if (id < 0 || id >= parts_.vocab_size)
      return invalid_argument("the prompt holds token {}, but the model's are in [0, {})", id,
                              parts_.vocab_size);
  return {};
}

// A placeholder without a picture would be read as if it were a word.
Status InboxHandler::place_pictures(LiveRequest& request) const {
  if (!parts_.images) return {};
  const std::vector<EncodedImage> images = std::exchange(request.images, {});
  auto spans = place_images(*parts_.images, images, request.prompt_ids, parts_.append_time);
  if (!spans) return spans.error();
  if (!images.empty()) request.spans = *std::move(spans);
  return {};
}

// A budget that no complete text fits into is refused, since the answer could not be of the
// grammar.
Status InboxHandler::check_budget(const LiveRequest& request, int32_t max_new_tokens) {
  if (!request.complete_within_budget || request.samples.empty()) return {};
  const uint32_t needed = request.samples[0].matcher->tokens_to_end();
  if (needed <= static_cast<uint32_t>(max_new_tokens)) return {};
  return invalid_argument(
      "max_new_tokens is {}, but complete_within_budget needs {} tokens for the shortest text "
      "that the grammar allows: raise max_new_tokens, or leave complete_within_budget out",
      max_new_tokens, needed);
}

PooledTokens InboxHandler::pooled_tokens(const LiveRequest& request) const {
  if (!request.embed) return PooledTokens::kNone;
  return parts_.pooled->all_tokens ? PooledTokens::kAll : PooledTokens::kLast;
}

Status InboxHandler::add_sequence(LiveRequest& request, int32_t index, int32_t max_new_tokens) {
  SampleState& sample = request.samples[static_cast<size_t>(index)];
  auto spec = std::make_shared<SamplingSpec>(request.sampling.spec);
  spec->seed = sample_seed(request.seed, index);
  if (!request.hooks.empty()) spec->hook = request.hooks[static_cast<size_t>(index)];
  sample.output.set_max_new_tokens(max_new_tokens);
  sample.budget = request.complete_within_budget ? max_new_tokens : 0;
  sample.return_logprob = request.return_logprob;
  sample.return_origins = request.return_token_origins;
  sample.in_session = request.session.has_value();
  sample.event.stats.prompt_tokens = static_cast<int32_t>(request.prompt_ids.size());
  sample.event.stats.arrived = request.arrived;
  const bool constrained = sample.matcher || !sample.healing.empty();
  if (!request.embed) parts_.proposals.start(sample, max_new_tokens);
  const SequenceId id = parts_.requests.add_sequence(sample);
  const auto handoff = begin_handoff(request, index, id);
  if (!handoff) {
    parts_.requests.remove_sequence(std::exchange(sample.sequence, 0));
    return handoff.error();
  }
  SequenceSpec sequence = sequence_of(request);
  sequence.id = id;
  sequence.sampling = std::move(spec);
  sequence.max_new_tokens = max_new_tokens;
  sequence.has_grammar = constrained;
  sequence.takes_proposals = constrained || sample.speculates;
  sequence.handoff = *handoff;
  const Status status = parts_.scheduler.add(std::move(sequence));
  if (status.ok()) return status;
  if (request.bootstrap)
    parts_.disaggregation->on_finish(id, {.type = FinishReason::Type::kError, .status = status});
  parts_.requests.remove_sequence(std::exchange(sample.sequence, 0));
  return status;
}

// What all sequences of the request have in common.
SequenceSpec InboxHandler::sequence_of(const LiveRequest& request) const {
  return {.prompt_ids = request.prompt_ids,
          .stop_ids = request.sampling.stop_ids,
          .has_spans = request.spans != nullptr,
          .logprob_start_len = request.return_logprob ? request.logprob_start_len : -1,
          .pooled = pooled_tokens(request),
          .adapter = request.adapter.id(),
          .cache_namespace = request.cache_namespace,
          .tenant = request.tenant,
          .share_weight = request.tenant_weight,
          .priority = request.priority,
          .arrived = request.arrived,
          .spans = request.spans};
}

Status InboxHandler::start_search(LiveRequest& request, int32_t max_new_tokens) {
  SequenceSpec first = sequence_of(request);
  first.sampling = std::make_shared<const SamplingSpec>(
      beam_sampling(request.sampling.spec, request.beams->options));
  first.is_search_step = true;
  first.has_grammar = request.samples[0].has_grammar;
  return parts_.beams.start(request, std::move(first), max_new_tokens);
}

Result<Handoff> InboxHandler::begin_handoff(const LiveRequest& request, int32_t index,
                                            SequenceId id) const {
  if (!request.bootstrap) return Handoff::kNone;
  ESP_RETURN_IF_ERROR(parts_.disaggregation->begin({.id = id,
                                                    .bootstrap = *request.bootstrap,
                                                    .index = index,
                                                    .cache_namespace = request.cache_namespace,
                                                    .tokens = request.prompt_ids}));
  return parts_.disaggregation->handoff();
}

void InboxHandler::end(LiveRequest& request, FinishReason::Type type, const Status& why) {
  if (request.is_waiting()) return parts_.events.finish_unscheduled(request, type, why);
  if (request.beams != nullptr) return parts_.beams.abort(request, {.type = type, .status = why});
  for (SampleState& sample : request.samples)
    if (!sample.finished) parts_.scheduler.abort(sample.sequence, {.type = type, .status = why});
}

void InboxHandler::abort_all(const Status& why) {
  parts_.requests.for_each([&](LiveRequest& request) { abort(request, why); });
}

void InboxHandler::end_started(FinishReason::Type type, const Status& why) {
  parts_.requests.for_each([&](LiveRequest& request) {
    if (!request.is_waiting()) end(request, type, why);
  });
}

void InboxHandler::free_memory(bool shed) {
  const std::vector<RequestId> failed = parts_.events.take_out_of_memory();
  if (failed.empty() && !shed) return;
  const Status why = error(StatusCode::kResourceExhausted,
                           "the system gives no more memory for this answer: try again later");
  for (const RequestId id : failed)
    if (LiveRequest* const request = parts_.requests.find(id)) abort(*request, why);
  if (LiveRequest* const largest = shed ? largest_request() : nullptr) abort(*largest, why);
}

// The one with the most samples, or beams, and log-probabilities; of equal ones the newest.
LiveRequest* InboxHandler::largest_request() {
  LiveRequest* largest = nullptr;
  const auto weight = [](const LiveRequest& r) {
    const int32_t num_top = r.beams != nullptr ? r.beams->options.candidates_per_beam : 0;
    const auto entries =
        static_cast<size_t>(1 + std::max(num_top, r.sampling.spec.top_logprobs_num));
    return std::pair(std::max(r.samples.size(), r.beam_samples.size()) * entries, r.arrived);
  };
  parts_.requests.for_each([&](LiveRequest& request) {
    if (largest == nullptr || weight(*largest) < weight(request)) largest = &request;
  });
  return largest;
}

// All of it between two steps: what the tree holds is computed, and no step in flight uses the free
// pages.
Result<JoinedPrompt> InboxHandler::join(const JoinRequest& request) {
  ESP_RETURN_IF_ERROR(hold_.defers() ? error(StatusCode::kUnavailable,
                                             "the weights are being replaced: try again later")
                                     : hold_.refusal());
  PrefixCache& cache = parts_.caches.first();  // of one rank: see can_join_branches()
  JoinedPrompt joined = joined_prompt(request);
  const std::string own_key = namespace_of_weights(hold_.weights(), request.extra_key);
  std::vector<PageId> from;
  std::vector<SequencePages> sources;  // locked until they are copied
  for (const std::vector<TokenId>& branch : request.branches) {
    std::vector<TokenId> tokens = request.prefix;
    tokens.insert(tokens.end(), branch.begin(), branch.end());
    const SequencePages& pages = sources.emplace_back(cache.begin(own_key, tokens));
    if (static_cast<size_t>(pages.num_pages()) < tokens.size())
      return fail(error(StatusCode::kFailedPrecondition,
                        "a branch to be joined is not cached: {} of its {} tokens are",
                        pages.num_pages(), tokens.size()));
    const auto first = sources.size() == 1 ? size_t{0} : request.prefix.size();
    const std::span<const PageId> own = pages.table().subspan(first);
    from.insert(from.end(), own.begin(), own.end());
  }
  SequencePages pages =
      cache.begin(namespace_of_weights(hold_.weights(), joined.extra_key), joined.input_ids);
  const auto present = static_cast<size_t>(pages.num_pages());  // joined before
  if (!cache.grow(pages, static_cast<int32_t>(joined.input_ids.size())))
    return fail(error(StatusCode::kResourceExhausted, "no room in the cache for {} joined tokens",
                      joined.input_ids.size()));
  ESP_RETURN_IF_ERROR(
      parts_.executor.copy_pages(std::span(from).subspan(present), pages.table().subspan(present)));
  cache.finish(std::move(pages), joined.input_ids);
  return joined;
}

void InboxHandler::answer(bool step_in_flight) {
  if (!pauses_.empty() && !step_in_flight) answer_pauses();
  if (hold_.is_pending() && !step_in_flight && (paused_ || parts_.scheduler.idle()))
    hold_.apply(
        {.any = !parts_.scheduler.idle(), .num_running = parts_.scheduler.stats().num_running});
  if (!flushes_.empty()) answer_flushes(step_in_flight);
}

void InboxHandler::answer_pauses() {
  for (const PauseMessage& pause : pauses_)
    if (pause.mode == Engine::PauseMode::kRetract) parts_.scheduler.retract_all();
  parts_.stats.publish();  // before the callers read how many run now
  for (PauseMessage& pause : pauses_) pause.done.set_value(Status());
  pauses_.clear();
}

void InboxHandler::answer_flushes(bool step_in_flight) {
  Status status;
  const bool in_use =
      !parts_.requests.empty() && !(paused() && parts_.scheduler.stats().num_running == 0);
  if (in_use)
    status = error(StatusCode::kFailedPrecondition,
                   "the cache is in use: {} requests run or wait; abort them or try again later",
                   parts_.requests.size());
  else if (step_in_flight || (!paused() && !parts_.scheduler.idle()))
    return;
  else
    parts_.caches.flush();
  parts_.stats.publish();
  for (std::promise<Status>& done : flushes_) done.set_value(status);
  flushes_.clear();
}

}  // namespace espalier
