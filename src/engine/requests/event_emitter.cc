#include "engine/requests/event_emitter.h"

#include <cmath>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/requests/embedding.h"
#include "engine/sampling/sampler.h"

namespace espalier {
namespace {

// Without the memory of the others.
void keep_top(std::vector<TokenLogprobs>& logprobs, int32_t count) {
  for (TokenLogprobs& one : logprobs)
    if (std::ssize(one.top) > count) one.top = {one.top.begin(), one.top.begin() + count};
}

}  // namespace

void EventEmitter::add_pending(SampleState& sample) {
  if (!sample.has_pending_event) pending_.push_back(&sample);
  sample.has_pending_event = true;
}

void EventEmitter::on_scheduled(SequenceId id) {
  parts_.registry.on_scheduled(parts_.requests.sample(id).request->rid);
}

void EventEmitter::on_forced_logprobs(SequenceId id, std::vector<TokenLogprobs>&& logprobs) {
  SampleState& sample = parts_.requests.sample(id);
  ESP_CHECK(std::ssize(logprobs) <= sample.num_logprobs_due,
            "log-probabilities of tokens that were not forced");
  for (TokenLogprobs& one : logprobs)
    sample.event.logprobs.end()[-sample.num_logprobs_due--] = std::move(one);
  add_pending(sample);
}

void EventEmitter::on_input_logprobs(SequenceId id, int32_t first,
                                     std::vector<TokenLogprobs>&& logprobs) {
  SampleState& sample = parts_.requests.sample(id);
  const int32_t known = std::max(1, sample.request->logprob_start_len) + sample.num_input_logprobs;
  ESP_CHECK(first <= known, "input log-probabilities from {}, but only those before {} are known",
            first, known);
  // A search's steps compute as many as they need of each position, the prompt's too.
  if (sample.beam >= 0) keep_top(logprobs, sample.request->beams->options.top_logprobs_num);
  // After a retraction the prompt is computed again, with the log-probabilities that are known.
  for (auto i = static_cast<size_t>(known - first); i < logprobs.size(); ++i) {
    sample.event.input_logprobs.push_back(std::move(logprobs[i]));
    ++sample.num_input_logprobs;
  }
}

std::optional<FinishReason> EventEmitter::on_token(SequenceId id, TokenId token, TokenOrigin origin,
                                                   TokenLogprobs&& logprobs,
                                                   const RequestStats& stats) {
  SampleState& sample = parts_.requests.sample(id);
  OutputProcessor::Output out = sample.output.push(token, stop_work_left_);
  sample.event.text += out.text;
  sample.event.ids.push_back(token);
  const bool forced = origin == TokenOrigin::kForced;
  if (sample.return_origins) sample.event.origins.push_back(origin);
  if (sample.return_logprob) {
    const SamplingSpec& spec = sample.request->sampling.spec;
    const bool is_due = forced && spec.computes_forced_logprobs();
    if (is_due) ++sample.num_logprobs_due;
    sample.event.logprobs.push_back(forced && !is_due ? certain_logprobs(token, spec)
                                                      : std::move(logprobs));
  }
  sample.event.stats = stats;
  if (sample.in_session) parts_.sessions.append(sample.request->id, token);
  ++new_tokens_;
  ++sample.num_tokens;
  add_pending(sample);
  if (sample.speculates) parts_.proposals.observe_token(sample, token);
  if (sample.has_grammar || sample.heals) {
    auto ended = parts_.proposer.advance(sample, token, forced);
    if (ended && (!out.finish || ended->type == FinishReason::Type::kError)) return ended;
  }
  return std::move(out.finish);
}

void EventEmitter::on_token_soon(SequenceId id) const {
  const RequestTable::Samples& samples = parts_.requests.samples();
  if (const auto it = samples.find(id); it != samples.end()) it->second->prefetch();
}

void EventEmitter::on_next_logprobs(SequenceId id, TokenLogprobs&& logprobs) {
  SampleState& sample = parts_.requests.sample(id);
  if (sample.beam >= 0)
    sample.request->beams->search->take(sample.beam, std::move(logprobs));
  else
    sample.event.next_logprobs = std::move(logprobs);
}

void EventEmitter::on_prefilled(SequenceId id, const PrefillProgress& progress) {
  parts_.disaggregation->on_prefilled(id, progress);
}

void EventEmitter::on_pooled(SequenceId id, std::vector<float>&& vector) {
  SampleState& sample = parts_.requests.sample(id);
  sample.event.embedding = std::move(vector);
  shape_embedding(sample.event.embedding, *parts_.pooled, sample.request->dimensions);
}

// Each chunk of a prompt has its event, so that states of one chunk at most wait here.
void EventEmitter::on_hidden_states(SequenceId id, std::vector<float>&& states) {
  SampleState& sample = parts_.requests.sample(id);
  std::vector<float>& all = sample.event.hidden_states;
  if (all.empty())
    all = std::move(states);
  else
    all.insert(all.end(), states.begin(), states.end());
  add_pending(sample);
}

void EventEmitter::on_verified(SequenceId id, std::span<const int32_t> entries_by_accepted) {
  parts_.requests.sample(id).event.entries_by_accepted.assign(entries_by_accepted.begin(),
                                                              entries_by_accepted.end());
}

void EventEmitter::on_finish(SequenceId id, FinishReason reason, const RequestStats& stats) {
  if (parts_.disaggregation != nullptr) parts_.disaggregation->on_finish(id, reason);
  SampleState& sample = parts_.requests.sample(id);
  if (sample.beam >= 0)
    end_beam_step(sample, std::move(reason), stats);
  else
    finish(sample, std::move(reason), stats);
  parts_.requests.remove_sequence(id);
}

// A step that ends by itself has given its distribution.
void EventEmitter::end_beam_step(SampleState& sample, FinishReason&& reason,
                                 const RequestStats& stats) {
  BeamState& state = *sample.request->beams;
  sample.sequence = 0;
  RequestStats& total = state.stats;
  if (total.scheduled == TimePoint{}) {
    total.scheduled = stats.scheduled;
    total.cached_tokens = stats.cached_tokens;
    total.cached_tokens_host = stats.cached_tokens_host;
    total.cached_tokens_storage = stats.cached_tokens_storage;
  }
  total.num_retractions += stats.num_retractions;
  total.finished = stats.finished;
  if (reason.type != FinishReason::Type::kLength && !state.ended) state.ended = std::move(reason);
  if (--state.num_running == 0) ended_beams_.push_back(sample.request->id);
}

void EventEmitter::finish_beam(SampleState& sample, const BeamSearch::Hypothesis& found,
                               RequestStats stats) {
  const LiveRequest& request = *sample.request;
  const auto num_tokens = found.beam.tokens.size();
  for (const TokenId token : found.beam.tokens) {
    int64_t work_left = StopMatcher::kWorkPerStep;  // as its steps had
    sample.event.text += sample.output.push(token, work_left).text;
  }
  sample.event.ids = found.beam.tokens;
  sample.event.beam = {.score = found.score, .cumulative_logprob = found.beam.logprob};
  if (sample.return_origins) sample.event.origins.assign(num_tokens, TokenOrigin::kSampled);
  sample.event.logprobs = found.beam.logprobs;
  sample.event.input_logprobs = request.beam_samples[0].event.input_logprobs;
  stats.completion_tokens = sample.num_tokens = static_cast<int32_t>(num_tokens);
  new_tokens_ += std::ssize(found.beam.tokens);
  finish(sample, found.finish, stats);
}

void EventEmitter::count(const SampleState& sample, FinishReason& reason) {
  if (reason.type == FinishReason::Type::kAbort)
    ++counts_.aborted;
  else
    ++counts_.finished;
  if (reason.type != FinishReason::Type::kError) return;
  ++counts_.failed;
  // A mask that could not be computed allows no token.
  if (sample.matcher && sample.matcher->exhausted() &&
      reason.status == no_token_left(sample.request->sampling.spec))
    reason.status = exhausted_grammar();
  if (is_not_finite(reason.status)) ++counts_.not_finite;
}

void EventEmitter::finish(SampleState& sample, FinishReason reason, const RequestStats& stats) {
  ESP_CHECK(!sample.finished, "request '{}' ended twice", sample.request->rid);
  sample.finished = true;
  if (sample.request->session)
    parts_.sessions.finish(sample.request->id, reason.type != FinishReason::Type::kError);
  parts_.proposals.finish(sample);
  sample.event.text += sample.output.flush();
  sample.event.stats = stats;
  // It was aborted or failed before the step that computes them: they are not known.
  for (; sample.num_logprobs_due > 0; --sample.num_logprobs_due)
    sample.event.logprobs.end()[-sample.num_logprobs_due].logprob = std::nanf("");
  count(sample, reason);
  parts_.watch.ended(sample, stats);
  sample.event.finish = std::move(reason);
  add_pending(sample);
}

void EventEmitter::finish_unscheduled(LiveRequest& request, FinishReason::Type type,
                                      const Status& why) {
  const RequestStats stats{.prompt_tokens = static_cast<int32_t>(request.prompt_ids.size()),
                           .arrived = request.arrived,
                           .finished = parts_.clock.now()};
  request.awaits_tokens = request.awaits_grammar = request.awaits_images = false;
  request.awaits_weights = false;
  for (SampleState& sample : request.samples)
    if (!sample.finished) finish(sample, {.type = type, .status = why}, stats);
}

void EventEmitter::emit() {
  constexpr size_t kAhead = 8;
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (i + kAhead < pending_.size()) __builtin_prefetch(pending_[i + kAhead]->request);
    emit(*pending_[i]);
  }
  pending_.clear();
}

// A sink that only reads leaves the event's memory for the next one, so that steady decode
// allocates nothing.
void EventEmitter::emit(SampleState& sample) {
  LiveRequest& request = *sample.request;
  TokenEvent& event = sample.event;
  event.index = static_cast<int32_t>(&sample - request.samples.data());
  event.stats.weight_epoch = request.weight_epoch;
  sample.has_pending_event = false;
  if (sample.num_logprobs_due > 0) return;  // they come with the next step
  if (sample.finished) {
    parts_.registry.release_sample(request.rid);
    if (--request.num_unfinished == 0) return emit_last(request, event);
  }
  deliver(request, event);
  event.text.clear();
  event.ids.clear();
  event.origins.clear();
  event.logprobs.clear();
  event.input_logprobs.clear();
  event.hidden_states = std::vector<float>();  // those of a chunk are large, and decode has a row
}

// The rid is released before its caller gets the last event, and so may use it again at once.
void EventEmitter::emit_last(LiveRequest& request, TokenEvent& event) {
  for (size_t i = request.samples.size(); i < request.beam_samples.size(); ++i)
    parts_.registry.release_sample(request.rid);
  parts_.registry.release_rid(request.rid);
  const std::unique_ptr<LiveRequest> last = parts_.requests.extract(request.id);
  deliver(*last, event);
  parts_.registry.settle();
}

// A sink that finds no memory for its answer ends its own request and no other's.
void EventEmitter::deliver(LiveRequest& request, TokenEvent& event) {
  try {
    request.sink(std::move(event));
  } catch (const std::bad_alloc&) {
    log_error("no memory for an answer rid={}", request.rid);
    if (request.num_unfinished > 0) out_of_memory_.push_back(request.id);
  }
}

}  // namespace espalier
