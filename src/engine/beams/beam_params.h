// What a request states of beam search, checked and resolved. Pure functions, thread-safe.
#pragma once

#include <optional>

#include "base/status.h"
#include "engine/beams/beam_search.h"
#include "engine/requests/request.h"
#include "engine/sampling/params.h"

namespace espalier {

inline constexpr int32_t kBeamsMax = 64;
inline constexpr size_t kBeamStopIdsMax = 64;  // stop tokens of a search, the model's included

// How many sequences run for a request at once: its samples, or its beams.
int32_t num_sequences_of(const SamplingParams& params);

// Nothing where the request has no use_beam_search. kInvalidArgument names a field that contradicts
// it or needs it; kUnimplemented one that does not go with it.
Result<std::optional<BeamOptions>> resolve_beams(const GenerateRequest& request,
                                                 const ResolvedSampling& sampling,
                                                 int32_t vocab_size);

// The sampling of each of a search's steps: the candidates' log-probabilities, behind penalties,
// bias and mask, without temperature and filters.
SamplingSpec beam_sampling(const SamplingSpec& spec, const BeamOptions& options);

}  // namespace espalier
