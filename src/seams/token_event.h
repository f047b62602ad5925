// What the engine tells its caller about a request. Every accepted request ends in exactly one
// terminal event: finish is set in that one and in no other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
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

// Timings and counts of one request; complete in the terminal event, so far in the others.
struct RequestStats {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens whose keys and values came from the cache
  int32_t num_retractions = 0;
  int32_t forced_tokens = 0;   // of completion_tokens: appended by a grammar, not sampled
  int32_t forwards_saved = 0;  // entries that these and right guesses would have taken, less those
                               // that they took
  int32_t drafted_tokens = 0;  // guessed ahead of being drawn
  int32_t accepted_draft_tokens = 0;  // of them: drawn or forced just so
  TimePoint arrived{};                // accepted by the engine
  TimePoint scheduled{};              // first chosen for a step
  TimePoint first_token{};
  TimePoint finished{};
};

struct TokenEvent {
  int32_t index = 0;         // which of the request's n samples, 0-based
  std::string text;          // new text: complete characters only, nothing that a stop string
                             // could still claim; empty while text is held back
  std::vector<TokenId> ids;  // new output tokens
  std::vector<TokenLogprobs> logprobs;  // of `ids`, where asked for
  // Once, with the first event after prefill: of the prompt positions from logprob_start_len on,
  // without position 0, which has none (nothing stands before it).
  std::vector<TokenLogprobs> input_logprobs;
  std::vector<float> embedding;  // with the last event of a text that becomes a vector
  std::optional<FinishReason> finish;
  RequestStats stats;
};

}  // namespace espalier
