#include "engine/beams/beam_params.h"

#include <algorithm>
#include <string_view>

namespace espalier {
namespace {

// The first field that is stated and means something to beam search alone; "": none.
std::string_view stated_field(const SamplingParams& p) {
  if (p.beam_width) return "beam_width";
  if (p.length_penalty) return "length_penalty";
  return p.early_stopping ? "early_stopping" : "";
}

int32_t width_of(const SamplingParams& p) { return p.beam_width.value_or(p.best_of.value_or(p.n)); }

// The first field that a search cannot follow; "": none.
std::string_view unsupported_field(const GenerateRequest& request) {
  if (request.session) return "session_params";
  if (request.bootstrap) return "bootstrap_room";
  if (request.return_hidden_states) return "return_hidden_states";
  if (request.sampling.token_healing) return "token_healing";
  return request.sampling.logit_processor ? "logit_processor" : "";
}

Status check_widths(const SamplingParams& p) {
  if (p.beam_width && p.best_of && *p.beam_width != *p.best_of)
    return invalid_argument("beam_width is {} and best_of {}, which mean the same: state one",
                            *p.beam_width, *p.best_of);
  const int32_t width = width_of(p);
  if (width > kBeamsMax)
    return invalid_argument("n is {} with use_beam_search, but a search has at most {} beams", p.n,
                            kBeamsMax);
  if (p.n > width)
    return invalid_argument(
        "n is {}, but a search of {} beams finds at most as many answers: lower n or raise "
        "beam_width",
        p.n, width);
  return {};
}

}  // namespace

int32_t num_sequences_of(const SamplingParams& params) {
  return params.use_beam_search ? std::max(params.n, width_of(params)) : params.n;
}

Result<std::optional<BeamOptions>> resolve_beams(const GenerateRequest& request,
                                                 const ResolvedSampling& sampling,
                                                 int32_t vocab_size) {
  const SamplingParams& p = request.sampling;
  if (!p.use_beam_search) {
    if (const std::string_view field = stated_field(p); !field.empty())
      return fail(invalid_argument("{} is there without use_beam_search: set that to true", field));
    if (p.best_of.value_or(p.n) != p.n)
      return fail(invalid_argument(
          "best_of is {} and n is {}: without use_beam_search all samples are returned", *p.best_of,
          p.n));
    return std::optional<BeamOptions>();
  }
  ESP_RETURN_IF_ERROR(check_widths(p));
  if (const std::string_view field = unsupported_field(request); !field.empty())
    return fail(error(StatusCode::kUnimplemented,
                      "{} does not go with use_beam_search: leave one out", field));
  if (sampling.length != ResolvedSampling::Length::kToContext && sampling.max_new_tokens == 0)
    return fail(invalid_argument("max_new_tokens is 0, and a beam search needs at least 1"));
  if (sampling.stop_ids.size() > kBeamStopIdsMax)
    return fail(invalid_argument(
        "the request has {} stop tokens with those of the model, but a beam search has at most {}: "
        "send fewer stop_token_ids",
        sampling.stop_ids.size(), kBeamStopIdsMax));
  BeamOptions options{.num_beams = width_of(p),
                      .length_penalty = p.length_penalty.value_or(1.0f),
                      .early_stopping = p.early_stopping.value_or(EarlyStopping::kNo),
                      .return_logprob = request.return_logprob,
                      .top_logprobs_num = request.top_logprobs_num};
  options.num_candidates = num_beam_candidates(options.num_beams, sampling.stop_ids.size());
  options.candidates_per_beam =
      candidates_of_one_beam(options.num_beams, sampling.stop_ids.size(), vocab_size);
  return std::optional(options);
}

SamplingSpec beam_sampling(const SamplingSpec& spec, const BeamOptions& options) {
  SamplingSpec steps = spec;
  steps.temperature = 0;
  steps.xtc_probability = 0;
  steps.logprobs_mode = LogprobsMode::kOriginal;
  steps.top_logprobs_num = std::max(options.candidates_per_beam, options.top_logprobs_num);
  if (!options.return_logprob) steps.token_ids_logprob.clear();
  steps.return_logprob = true;
  return steps;
}

}  // namespace espalier
