// Resolves a request's parameters into the sampling spec, stop ids, grammar and length of its
// sequences: validation and defaults by the table of request fields (seams/request_fields.h), and
// the seeds of samples. Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/requests/request.h"
#include "engine/sampling/history_params.h"
#include "grammar/grammar.h"
#include "models/model.h"
#include "seams/sampling.h"

namespace espalier {

// What parameters are checked and resolved against.
struct SamplingContext {
  int32_t vocab_size = 0;        // width of the logits
  std::vector<TokenId> eos_ids;  // any order
  GenerationDefaults defaults;   // of fields that a request does not state; empty for "openai"
  grammar::Whitespace json_whitespace = grammar::Whitespace::kBounded;  // likewise
  LogprobsMode logprobs_mode = LogprobsMode::kProcessed;
  HistoryContext history;
};

// A request's parameters, resolved except for what depends on the prompt's length.
struct ResolvedSampling {
  SamplingSpec spec;              // of every sample; its seed is set by sample_seed()
  std::vector<TokenId> stop_ids;  // sorted; end-of-sequence ids included unless ignored
  std::optional<grammar::GrammarSpec> grammar;  // what the output must be
  int32_t max_new_tokens = 0;
  enum class Length {
    kExplicit,  // requested; a length that does not fit is an error
    kDefault,   // not requested: cut to what fits
    kToContext
  } length = Length::kDefault;
};

inline constexpr int32_t kDefaultMaxNewTokens = 128;
inline constexpr float kGreedyTemperature = 1e-6f;  // below: greedy

// kInvalidArgument names the field, its value and what is allowed. A grammar's source is checked
// when it is compiled; stop and stop_regex are checked by StopMatcher::create.
Result<ResolvedSampling> resolve_sampling(const GenerateRequest& request,
                                          const SamplingContext& context);

// The grammar of a request, if it has one. Messages as above.
Result<std::optional<grammar::GrammarSpec>> resolve_grammar(const SamplingParams& params,
                                                            grammar::Whitespace whitespace);

// "processed", "original" or "raw"; else kInvalidArgument with the list.
Result<LogprobsMode> parse_logprobs_mode(std::string_view name);

// What a prompt and its output may take together.
struct LengthLimit {
  int32_t tokens = 0;
  bool by_cache = false;  // the KV cache holds fewer tokens than the context
};
// The number of tokens that a prompt may be followed by. kInvalidArgument with both numbers when
// the prompt, or the prompt with the requested output, is longer than the limit.
Result<int32_t> resolve_max_new_tokens(const ResolvedSampling& sampling, int32_t prompt_tokens,
                                       LengthLimit limit);

// Sample `index` of a request whose seed is `seed`: unrelated streams, sample 0 included.
uint64_t sample_seed(uint64_t seed, int32_t index);

// Drops defaults that no request could state (a top_k of 0 means "no limit" there), so that a
// checkpoint's odd file cannot make every request fail.
GenerationDefaults usable_defaults(GenerationDefaults defaults);

}  // namespace espalier
