#include "engine/beams/beam_runner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/beams/beam_search.h"

namespace espalier {
namespace {

// How the candidates of one step end: at stop tokens and strings, and where the grammar does.
class CandidateEnds {
 public:
  explicit CandidateEnds(const LiveRequest& request) : request_(request) {}

  std::optional<FinishReason> operator()(const BeamSearch::Candidate& candidate) {
    std::optional<FinishReason> end = end_of_grammar(candidate);
    if (auto stopped = request_.beams->has_stops ? end_of_text(candidate) : std::nullopt)
      if (!end || end->type != FinishReason::Type::kError) end = std::move(stopped);
    if (end && end->type == FinishReason::Type::kError) failed_ = end->status;
    if (end) return end;
    const std::vector<TokenId>& stops = request_.sampling.stop_ids;
    if (!std::binary_search(stops.begin(), stops.end(), candidate.token)) return std::nullopt;
    return FinishReason{.type = FinishReason::Type::kStop, .matched = candidate.token};
  }

  // The reader of a candidate's text, which has not ended. REQUIRES stops.
  OutputProcessor reader_behind(const BeamSearch::Candidate& candidate) const {
    int64_t work_left = StopMatcher::kWorkPerStep;
    OutputProcessor reader =
        request_.beam_samples[static_cast<size_t>(candidate.beam)].output.fork();
    reader.push(candidate.token, work_left);
    return reader;
  }

  // The grammar's state behind a candidate that has not ended. REQUIRES a grammar.
  grammar::Matcher matcher_behind(const BeamSearch::Candidate& candidate) {
    grammar::Matcher fork = *request_.beam_samples[static_cast<size_t>(candidate.beam)].matcher;
    fork.accept_token(candidate.token);
    return fork;
  }

  const Status& failed() const { return failed_; }

 private:
  std::optional<FinishReason> end_of_grammar(const BeamSearch::Candidate& candidate) const {
    const auto& matcher = request_.beam_samples[static_cast<size_t>(candidate.beam)].matcher;
    if (!matcher) return std::nullopt;
    grammar::Matcher fork = *matcher;
    return advance_matcher(fork, request_.sampling.stop_ids, candidate.token);
  }

  std::optional<FinishReason> end_of_text(const BeamSearch::Candidate& candidate) const {
    int64_t work_left = StopMatcher::kWorkPerStep;
    OutputProcessor reader =
        request_.beam_samples[static_cast<size_t>(candidate.beam)].output.fork();
    return reader.push(candidate.token, work_left).finish;
  }

  const LiveRequest& request_;
  Status failed_;
};

}  // namespace

Status BeamRunner::start(LiveRequest& request, SequenceSpec first, int32_t max_new_tokens) {
  BeamState& state = *request.beams;
  state.search.emplace(state.options, max_new_tokens);
  state.stats = {.prompt_tokens = static_cast<int32_t>(first.prompt_ids.size()),
                 .arrived = request.arrived};
  state.first = std::move(first);
  for (SampleState& sample : request.samples) {
    sample.output.set_max_new_tokens(max_new_tokens);
    sample.return_logprob = request.return_logprob;
    sample.return_origins = request.return_token_origins;
    sample.event.stats = state.stats;
  }
  for (SampleState& sample : request.beam_samples) {
    sample.budget = request.complete_within_budget ? max_new_tokens : 0;
    // Its output reads the beam's text for stops; answers are read by `samples`, at the end.
    sample.output.set_max_new_tokens(std::numeric_limits<int32_t>::max());
  }
  return add_steps(request);
}

// The sequences of the next step, one for each beam.
Status BeamRunner::add_steps(LiveRequest& request) {
  BeamState& state = *request.beams;
  const std::span<const BeamSearch::Beam> beams = state.search->beams();
  for (size_t i = 0; i < beams.size(); ++i) {
    SampleState& sample = request.beam_samples[i];
    sample.num_tokens = state.search->length();
    SequenceSpec spec = state.first;
    spec.prompt_ids.insert(spec.prompt_ids.end(), beams[i].tokens.begin(), beams[i].tokens.end());
    spec.num_generated = state.search->length();
    if (spec.num_generated > 0) spec.logprob_start_len = -1;
    spec.id = parts_.requests.add_sequence(sample);
    if (Status status = parts_.scheduler.add(std::move(spec)); !status.ok()) {
      parts_.requests.remove_sequence(std::exchange(sample.sequence, 0));
      return status;
    }
    ++state.num_running;
  }
  return {};
}

void BeamRunner::advance() {
  due_ = parts_.events.take_ended_beams();
  for (const RequestId id : due_)
    if (LiveRequest* const request = parts_.requests.find(id)) advance(*request);
}

void BeamRunner::advance(LiveRequest& request) {
  BeamState& state = *request.beams;
  if (state.ended) return fail(request, *state.ended);
  BeamSearch& search = *state.search;
  if (search.length() == 0) state.stats.first_token = state.stats.finished;
  CandidateEnds ends(request);
  const std::span<const BeamSearch::Candidate> next = search.advance(std::ref(ends));
  if (!ends.failed().ok())
    return fail(request, {.type = FinishReason::Type::kError, .status = ends.failed()});
  if (next.empty()) return finish(request);
  if (request.beam_samples[0].matcher) {
    std::vector<grammar::Matcher> matchers;
    for (const BeamSearch::Candidate& candidate : next)
      matchers.push_back(ends.matcher_behind(candidate));
    for (size_t i = 0; i < matchers.size(); ++i)
      request.beam_samples[i].matcher = std::move(matchers[i]);
  }
  if (state.has_stops) {
    std::vector<OutputProcessor> readers;
    for (const BeamSearch::Candidate& candidate : next)
      readers.push_back(ends.reader_behind(candidate));
    for (size_t i = 0; i < readers.size(); ++i)
      request.beam_samples[i].output = std::move(readers[i]);
  }
  if (Status status = add_steps(request); !status.ok())
    abort(request, {.type = FinishReason::Type::kError, .status = std::move(status)});
}

void BeamRunner::abort(LiveRequest& request, const FinishReason& reason) {
  BeamState& state = *request.beams;
  if (!state.ended) state.ended = reason;
  for (SampleState& sample : request.beam_samples)
    if (sample.sequence != 0) parts_.scheduler.abort(sample.sequence, reason);
  if (state.num_running == 0) fail(request, reason);
}

void BeamRunner::fail(LiveRequest& request, const FinishReason& reason) {
  for (SampleState& sample : request.samples)
    if (!sample.finished) parts_.events.finish(sample, reason, request.beams->stats);
}

void BeamRunner::finish(LiveRequest& request) {
  const std::span<const BeamSearch::Hypothesis> found = request.beams->search->hypotheses();
  for (size_t i = 0; i < request.samples.size(); ++i) {
    SampleState& sample = request.samples[i];
    if (i < found.size()) {
      parts_.events.finish_beam(sample, found[i], request.beams->stats);
      continue;
    }
    const Status too_few = invalid_argument(
        "n is {}, but the beam search found {} answers: the grammar and the bans allow no more; "
        "lower n",
        request.samples.size(), found.size());
    parts_.events.finish(sample, {.type = FinishReason::Type::kError, .status = too_few},
                         request.beams->stats);
  }
}

}  // namespace espalier
