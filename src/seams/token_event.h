// The events by which the engine reports a request's progress. Every accepted request ends in
// exactly one terminal event: `finish` is set in that one and in no other. Plain data; owns its
// contents.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "seams/sampling.h"

namespace espalier {

struct FinishReason {
  enum class Type { kStop, kLength, kAbort, kError };
  Type type = Type::kStop;
  // kStop: the stop token's id, or the stop string or stop regex (its pattern) that matched.
  std::variant<std::monostate, TokenId, std::string> matched;
  Status status;  // kAbort, kError: why
};

// Timings and counts of one request: final in the terminal event, up to now in the others.
struct RequestStats {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens whose keys and values came from the cache
  // Of cached_tokens: loaded from tiers below the device.
  int32_t cached_tokens_host = 0, cached_tokens_storage = 0;
  int32_t num_retractions = 0;
  int32_t forced_tokens = 0;  // of completion_tokens: appended by a grammar, not sampled
  // Batch entries that forced and accepted draft tokens would have taken one by one, less those
  // that they took.
  int32_t forwards_saved = 0;
  int32_t drafted_tokens = 0;         // proposed and verified by a step
  int32_t accepted_draft_tokens = 0;  // of drafted_tokens: equal to what was sampled or forced
  int32_t verify_steps = 0;           // entries with draft tokens
  int32_t dp_rank = 0;                // the replica that runs it
  int32_t weight_epoch = 0;           // updates of the weights before it started
  TimePoint arrived{};                // accepted by the engine
  TimePoint scheduled{};              // first chosen for a step
  TimePoint first_token{};
  TimePoint finished{};
};

// Where an output token comes from: drawn from the model's distribution after a forward of its own,
// appended by a grammar that left no choice, or accepted as a draft token that a step verified.
enum class TokenOrigin : uint8_t { kSampled, kForced, kDrafted };

// "sampled", "forced" or "drafted".
constexpr std::string_view token_origin_name(TokenOrigin origin) {
  constexpr std::string_view kNames[] = {"sampled", "forced", "drafted"};
  return kNames[static_cast<size_t>(origin)];
}

// How a beam search ranks an answer.
struct BeamScore {
  float score = 0;               // cumulative_logprob / tokens ^ length_penalty
  float cumulative_logprob = 0;  // the sum over the answer's tokens
};

struct TokenEvent {
  int32_t index = 0;  // which of the request's n samples, 0-based
  // New text: complete characters only. Text that may be the start of a stop string is withheld
  // until later tokens decide; the field may be empty.
  std::string text;
  std::vector<TokenId> ids;             // new output tokens
  std::vector<TokenOrigin> origins;     // of `ids`, where requested
  std::vector<TokenLogprobs> logprobs;  // of `ids`, where requested
  // In the first event after prefill only, where hidden states are requested in those of its
  // chunks: of the prompt positions from logprob_start_len on, without position 0, which has no
  // tokens before it.
  std::vector<TokenLogprobs> input_logprobs;
  // With the last event of a request for prefill only that asks for top_logprobs_num or
  // token_ids_logprob: of the token that would follow the prompt; its `logprob` is the likeliest's.
  std::optional<TokenLogprobs> next_logprobs;
  std::vector<float> embedding;  // in the terminal event of an embedding request
  // Where requested, of the tokens whose forward has run since the last event, the prompt's first:
  // [tokens, SamplingSpec::hidden_layers, hidden_size]. The last output token has none, for no
  // forward takes it.
  std::vector<float> hidden_states;
  // In the terminal event, where draft tokens were verified: entries by how many they accepted
  // (AcceptedLengths).
  std::vector<int32_t> entries_by_accepted;
  std::optional<BeamScore> beam;  // in the one event of an answer of a beam search
  std::optional<FinishReason> finish;
  RequestStats stats;
};

}  // namespace espalier
