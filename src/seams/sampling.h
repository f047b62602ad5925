// Sampling parameters in their two forms: as a request states them (SamplingParams) and as the
// sampler uses them (SamplingSpec). seams/request_fields.h describes each field in one row;
// parsers, validation, the frontend language and documents follow from that table. Plain data: no
// thread safety of its own, owns what it holds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "seams/control_use.h"
#include "seams/vocab_view.h"

namespace espalier {

// The numbers of a draw, with their defaults. Trivially copyable: the sampling row of a GPU slot is
// this struct and the device pointers of its lists.
//
// The order of operations, on every device. On the logits: frequency and presence penalties,
// repetition penalty, bias, what HistoryValues states, then the grammar's mask and the tokens
// banned before min_new_tokens (both make a logit -infinity). Then temperature and softmax. Then
// the filters, all on the same probabilities in descending order (the smaller id first among
// equals): top_k keeps the first k, top_p those before which the cumulative probability is at most
// p, min_p those of at least min_p times the largest, top_n_sigma those whose logit before the
// temperature is at least max - n * sigma. XTC then drops the likeliest of what is left
// (HistoryValues). The next token is drawn from what all filters keep, by the inverse of the
// cumulative probability in order of ids.
//
// sigma is the standard deviation of the logits that mask and bans leave, so it does not depend on
// the temperature (arXiv 2411.07641). A logit more than kSigmaDistanceMax below the largest counts
// as one at that distance, so that no square overflows.
struct SamplingValues {
  float temperature = 1.0f;  // 0 is greedy: the largest logit, the smallest id among equals
  float top_p = 1.0f;
  float min_p = 0.0f;
  float top_n_sigma = 0.0f;         // 0: no limit
  int32_t top_k = -1;               // -1: no limit
  float frequency_penalty = 0.0f;   // logit -= penalty * count in the output
  float presence_penalty = 0.0f;    // logit -= penalty where the output holds the token
  float repetition_penalty = 1.0f;  // divides positive, multiplies negative logits of seen tokens
  int32_t min_new_tokens = 0;       // stop tokens are banned until this many tokens are out
  uint64_t seed = 0;  // the draw at output position i is a function of (seed, i) and the logits
};
inline constexpr float kSigmaDistanceMax = 1024.0f;  // in logits

// More numbers of a draw. A GPU's sampling row does not have them: where a request states some,
// an engine on a GPU draws its tokens on the host. "The tokens so far" are the prompt's and
// the output's.
//
//   no_repeat_ngram_size n: a token is banned that would end n tokens in a row which the tokens so
//     far hold already (transformers' NoRepeatNGramLogitsProcessor).
//   dry_*: multiplier * base ^ (length - allowed_length) is taken from the logit of a token that
//     would continue a repetition of `length` tokens, at least allowed_length; of several
//     repetitions the longest counts. A repetition holds no sequence breaker and lies within the
//     last dry_range tokens.
//   xtc_*: in a share xtc_probability of the draws, all but the least likely of the kept tokens
//     whose probability is at least xtc_threshold are dropped.
//   thinking_budget: when this number of tokens follow the mark that opens the reasoning and none
//     of them closes it, only the mark that closes it is allowed.
struct HistoryValues {
  int32_t no_repeat_ngram_size = 0;  // 0: off
  float dry_multiplier = 0.0f;       // 0: off
  float dry_base = 1.75f;
  int32_t dry_allowed_length = 2;
  int32_t dry_range = -1;  // -1: all tokens so far
  float xtc_probability = 0.0f;
  float xtc_threshold = 0.1f;
  int32_t thinking_budget = -1;  // -1: no limit
};

// Changes the logits of one sample: an operator's own processor (engine/sampling/logit_library.h).
// Called by one thread at a time.
class LogitHook {
 public:
  virtual ~LogitHook() = default;
  // tokens: so far, of which the first num_prompt are the prompt's. logits: [vocab_size]; -infinity
  // bans a token, NaN is an error. Returns what went wrong; empty: nothing.
  virtual std::string apply(std::span<const TokenId> tokens, int32_t num_prompt,
                            std::span<float> logits) = 0;
};

// When a beam search ends that has as many hypotheses as beams: when the best beam, if it ended
// now, would displace none of them (kNo), at once (kYes), or when no beam can displace one
// (kNever).
enum class EarlyStopping : uint8_t { kNo, kYes, kNever };

// The sampling part of a parsed request, as a user's program states it; an absent field means the
// model's generation default where it has one, else the default of SamplingValues.
struct SamplingParams {
  std::optional<int32_t> max_new_tokens;  // absent: 128 in the native API
  bool to_context = false;                // max_new_tokens was an explicit null: up to the context
  std::optional<int32_t> min_new_tokens;
  std::optional<float> temperature;  // below 1e-6 is greedy
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<float> min_p;
  std::optional<float> top_n_sigma;
  std::optional<float> frequency_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> repetition_penalty;
  std::optional<int32_t> no_repeat_ngram_size;
  std::optional<float> dry_multiplier, dry_base;
  std::optional<int32_t> dry_allowed_length, dry_range;
  // Texts; a token that holds one is a breaker. Empty: kDryBreakers
  // (engine/sampling/history_params.h).
  std::vector<std::string> dry_sequence_breakers;
  std::optional<float> xtc_probability, xtc_threshold;
  std::optional<int32_t> thinking_budget;
  // The name of an operator's processor and a text that it is given.
  std::optional<std::string> logit_processor, logit_processor_params;
  int32_t n = 1;
  std::vector<std::string> stop;
  std::vector<std::string> stop_regex;
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool spaces_between_special_tokens = true;
  bool no_stop_trim = false;
  std::map<TokenId, float> logit_bias;
  std::optional<uint64_t> sampling_seed;  // absent: drawn from the engine's generator

  // The grammar that the output must match exactly; at most one of these fields is set.
  std::optional<std::string> json_schema, regex, ebnf, structural_tag;
  std::vector<std::string> choices;
  std::optional<std::string> json_whitespace;  // compact, bounded or any; absent: the engine's
  // The grammar does not constrain the text from reasoning_begin (empty: from the start) to the
  // first reasoning_end (empty: there is no such part).
  std::string reasoning_begin, reasoning_end;
  bool jump_forward = true;  // false: forced tokens are sampled too
  bool draft_tokens = true;  // false: no draft tokens
  // The prompt's last tokens, where longer ones could stand, are generated anew: the output's
  // tokens begin with their text (which its text does not repeat).
  bool token_healing = false;
  // Masks leave enough of max_new_tokens for the grammar to end (grammar::Matcher's
  // fill_mask_within()).
  bool complete_within_budget = false;

  // Beam search instead of draws (engine/beams/beam_params.h): `n` answers of beam_width beams,
  // which best_of names too; absent: n.
  bool use_beam_search = false;
  std::optional<int32_t> beam_width, best_of;
  std::optional<float> length_penalty;  // absent: 1
  std::optional<EarlyStopping> early_stopping;
};

// Of which logits the log-probabilities of output tokens are. Those of prompt tokens are always of
// the raw logits.
enum class LogprobsMode : uint8_t {
  // As the draw sees them before its filters: after penalties, bias, mask, bans and temperature (1
  // where greedy), so those of the tokens that a grammar allows sum to 1. SGLang's default.
  kProcessed,
  kOriginal,  // without the temperature: SGLang's SGLANG_RETURN_ORIGINAL_LOGPROB
  kRaw,       // the model's logits
};

// What the scheduler hands to the executor, and the executor to its sampler, for one sequence.
// Immutable while its request runs; values are already validated (engine/sampling/params.h).
struct SamplingSpec : SamplingValues, HistoryValues {
  std::vector<std::pair<TokenId, float>> logit_bias;

  std::vector<TokenId> dry_breakers;               // sorted; read with a dry_multiplier
  TokenId thinking_begin = -1, thinking_end = -1;  // read with a thinking_budget
  std::shared_ptr<LogitHook> hook;                 // of this sample alone; null: none
  // Of which states the hidden states are returned, in this order: 0: the embeddings, i: behind
  // layer i, the number of layers: behind the final norm. Empty: none.
  std::vector<int32_t> hidden_layers;

  ControlUse control;  // of the forward pass of all its tokens

  // Banned until min_new_tokens are out: the end-of-sequence and stop ids.
  std::vector<TokenId> banned_before_min;

  // Log-probabilities of output tokens, natural logarithm, at least -FLT_MAX.
  bool return_logprob = false;
  LogprobsMode logprobs_mode = LogprobsMode::kProcessed;
  int32_t top_logprobs_num = 0;
  std::vector<TokenId> token_ids_logprob;  // ids whose log-probability is returned per position

  bool greedy() const { return temperature == 0.0f; }
  // A token that a grammar forces is certain, but its raw log-probability is the model's.
  bool computes_forced_logprobs() const {
    return return_logprob && logprobs_mode == LogprobsMode::kRaw;
  }
  // Whether the distribution behind a prompt is wanted though nothing is generated.
  bool wants_next_logprobs() const {
    return return_logprob && (top_logprobs_num > 0 || !token_ids_logprob.empty());
  }
  bool has_penalties() const {
    return frequency_penalty != 0.0f || presence_penalty != 0.0f || repetition_penalty != 1.0f;
  }
  // Whether the order of the tokens so far changes a draw.
  bool reads_order() const {
    return no_repeat_ngram_size > 0 || dry_multiplier > 0.0f || thinking_budget >= 0 ||
           hook != nullptr;
  }
  // Whether a draw depends on the tokens so far, so that the sampler must be given them.
  bool reads_history() const { return has_penalties() || reads_order(); }
};

// Log-probabilities at one position.
struct TokenLogprobs {
  float logprob = 0.0f;                           // of the token itself
  std::vector<std::pair<TokenId, float>> top;     // best first, top_logprobs_num of them
  std::vector<std::pair<TokenId, float>> wanted;  // in token_ids_logprob's order
};

}  // namespace espalier
