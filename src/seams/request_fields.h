// The tables of request fields: one row for each sampling field that a request may state
// (kRequestFields), and one for each field about the log-probabilities that it returns
// (kLogprobFields).
//
// Everything that must know all fields loops over these tables: the JSON parsers and /openapi.json
// (server), validation and defaults (engine/sampling), the options of the frontend language and its
// HTTP back ends (lang), the flags of the command (apps), the Python arguments and
// docs/request_fields.md. A new field is a member of SamplingParams (and of SamplingValues, when
// the sampler reads it, and of lang::GenOptions, when programs may state it), a row here, and its
// use. A field about log-probabilities is a member of GenerateRequest instead.
//
// A row reaches a struct's field by a generic accessor, so the table needs none of the structs and
// serves any struct that has a member of that name. HasField is true for a struct that has it.
// Constant data; thread-safe.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace espalier {

// Where a request may state a field. The frontend language takes every field that lang::GenOptions
// has a member for.
enum FieldPlaces : uint32_t {
  kInGenerate = 1,        // sampling_params of /generate
  kInCompletions = 2,     // /v1/completions
  kInChat = 4,            // /v1/chat/completions
  kInCommand = 8,         // a flag of `espalier generate`, `chat` and `run`
  kInOpenAiStandard = 16  // OpenAI's own servers take it too
};
inline constexpr uint32_t kInHttp = kInGenerate | kInCompletions | kInChat;

// The values that a numeric field may have. NaN is in no range.
struct FieldRange {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool excludes_low = false;
  bool takes_minus_one = false;   // -1 (no limit) beside [low, high]
  std::string_view allowed = "";  // completes "x is 5, but must be ..."; empty: any number

  constexpr bool holds(double value) const {
    if (takes_minus_one && value == -1) return true;
    return (excludes_low ? value > low : value >= low) && value <= high;
  }
};

struct FieldRow {
  std::string_view name;  // of the member of SamplingParams, in /generate and in errors
  std::string_view openai =
      "";  // its name in the OpenAI API and in lang::GenOptions; empty: `name`
  uint32_t places = kInGenerate;
  std::string_view doc;  // one sentence without a full stop
  // Where a value is absent; empty: the initialiser of the member of SamplingValues or
  // SamplingParams.
  std::string_view absent = "";
  FieldRange range = {};
  bool is_grammar = false;  // constrains the text; at most one such field is set

  constexpr std::string_view openai_name() const { return openai.empty() ? name : openai; }
  constexpr bool in(uint32_t place) const { return (places & place) != 0; }
};

// An accessor of no struct's member.
struct NoMember {};

// Param reads the member of engine-side structs (SamplingParams, SamplingValues,
// GenerationDefaults), Option that of lang::GenOptions: accessor(struct&) -> member&.
template <typename Param, typename Option>
struct RequestField : FieldRow {
  Param param = {};
  Option option = {};
};

template <typename Accessor, typename Struct>
concept HasField = std::invocable<const Accessor&, Struct&>;

template <typename Param, typename Option>
constexpr RequestField<Param, Option> request_field(const FieldRow& row, Param, Option) {
  return {row};
}
// The member has one name in every struct.
template <typename Param>
constexpr RequestField<Param, Param> request_field(const FieldRow& row, Param) {
  return {row};
}

// SFINAE on the member: the accessor is invocable only with structs that have it.
#define ESP_MEMBER(name) [](auto& s) -> decltype((s.name)) { return s.name; }

inline constexpr FieldRange kPenaltyRange{.low = -2, .high = 2, .allowed = "in [-2, 2]"};

inline constexpr std::tuple kRequestFields = {
    request_field({.name = "max_new_tokens",
                   .openai = "max_tokens",
                   .places = kInHttp | kInCommand | kInOpenAiStandard,
                   .doc = "tokens of the answer at most; 0: prefill only",
                   .absent = "128; 16 for /v1/completions; up to the context for chat, and where "
                             "/generate is given null",
                   .range = {.low = 0, .allowed = "at least 0, or null for up to the context"}},
                  ESP_MEMBER(max_new_tokens), ESP_MEMBER(max_tokens)),
    request_field({.name = "min_new_tokens",
                   .openai = "min_tokens",
                   .places = kInHttp | kInCommand,
                   .doc = "tokens before the answer may end",
                   .range = {.low = 0, .allowed = "at least 0"}},
                  ESP_MEMBER(min_new_tokens), ESP_MEMBER(min_tokens)),
    request_field({.name = "n",
                   .places = kInHttp | kInOpenAiStandard,
                   .doc = "samples of each prompt",
                   .range = {.low = 1, .high = 1024, .allowed = "in [1, 1024]"}},
                  ESP_MEMBER(n)),
    request_field({.name = "stop",
                   .places = kInHttp | kInCommand | kInOpenAiStandard,
                   .doc = "strings that end the answer"},
                  ESP_MEMBER(stop)),
    request_field(
        {.name = "stop_token_ids", .places = kInHttp, .doc = "token ids that end the answer"},
        ESP_MEMBER(stop_token_ids)),
    request_field({.name = "stop_regex",
                   .places = kInHttp | kInCommand,
                   .doc = "regular expressions that end the answer"},
                  ESP_MEMBER(stop_regex)),
    request_field({.name = "temperature",
                   .places = kInHttp | kInCommand | kInOpenAiStandard,
                   .doc = "divides the logits; 0 takes the likeliest token",
                   .range = {.low = 0,
                             .high = std::numeric_limits<float>::max(),
                             .allowed = "a finite number of at least 0"}},
                  ESP_MEMBER(temperature)),
    request_field({.name = "top_p",
                   .places = kInHttp | kInCommand | kInOpenAiStandard,
                   .doc = "keeps the likeliest tokens that sum to this probability",
                   .range = {.low = 0, .high = 1, .excludes_low = true, .allowed = "in (0, 1]"}},
                  ESP_MEMBER(top_p)),
    request_field({.name = "top_k",
                   .places = kInHttp | kInCommand,
                   .doc = "keeps this many likeliest tokens; -1: no limit",
                   .range = {.low = 1,
                             .high = std::numeric_limits<int32_t>::max(),
                             .takes_minus_one = true,
                             .allowed = "-1 (no limit) or at least 1"}},
                  ESP_MEMBER(top_k)),
    request_field({.name = "min_p",
                   .places = kInHttp | kInCommand,
                   .doc = "keeps tokens of at least this share of the likeliest's probability",
                   .range = {.low = 0, .high = 1, .allowed = "in [0, 1]"}},
                  ESP_MEMBER(min_p)),
    request_field({.name = "top_n_sigma",
                   .places = kInHttp | kInCommand,
                   .doc = "keeps tokens whose logit is within this many standard deviations of the "
                          "largest; 0: no limit",
                   .range = {.low = 0,
                             .high = std::numeric_limits<float>::max(),
                             .allowed = "a finite number of at least 0"}},
                  ESP_MEMBER(top_n_sigma)),
    request_field({.name = "frequency_penalty",
                   .places = kInHttp | kInCommand | kInOpenAiStandard,
                   .doc = "taken from a token's logit for each time the output holds it",
                   .range = kPenaltyRange},
                  ESP_MEMBER(frequency_penalty)),
    request_field({.name = "presence_penalty",
                   .places = kInHttp | kInCommand | kInOpenAiStandard,
                   .doc = "taken from a token's logit when the output holds it",
                   .range = kPenaltyRange},
                  ESP_MEMBER(presence_penalty)),
    request_field({.name = "repetition_penalty",
                   .places = kInHttp | kInCommand,
                   .doc = "divides positive and multiplies negative logits of tokens seen",
                   .range = {.low = 0, .high = 2, .excludes_low = true, .allowed = "in (0, 2]"}},
                  ESP_MEMBER(repetition_penalty)),
    request_field(
        {.name = "no_repeat_ngram_size",
         .places = kInHttp,
         .doc = "no so many tokens in a row come twice, the prompt's included; 0: off; "
                "not on GPUs",
         .range = {.low = 0, .high = std::numeric_limits<int32_t>::max(), .allowed = "at least 0"}},
        ESP_MEMBER(no_repeat_ngram_size)),
    request_field(
        {.name = "dry_multiplier",
         .places = kInHttp,
         .doc = "strength of the DRY penalty on tokens that continue a repetition; 0: off; "
                "not on GPUs",
         .range = {.low = 0,
                   .high = std::numeric_limits<float>::max(),
                   .allowed = "a finite number of at least 0"}},
        ESP_MEMBER(dry_multiplier)),
    request_field({.name = "dry_base",
                   .places = kInHttp,
                   .doc = "by which the DRY penalty grows with each token of the repetition",
                   .range = {.low = 1,
                             .high = std::numeric_limits<float>::max(),
                             .allowed = "a finite number of at least 1"}},
                  ESP_MEMBER(dry_base)),
    request_field(
        {.name = "dry_allowed_length",
         .places = kInHttp,
         .doc = "tokens of the shortest repetition that DRY penalises",
         .range = {.low = 1, .high = std::numeric_limits<int32_t>::max(), .allowed = "at least 1"}},
        ESP_MEMBER(dry_allowed_length)),
    request_field({.name = "dry_range",
                   .places = kInHttp,
                   .doc = "the last tokens in which DRY looks for repetitions; -1: all",
                   .range = {.low = 0,
                             .high = std::numeric_limits<int32_t>::max(),
                             .takes_minus_one = true,
                             .allowed = "-1 (all) or at least 0"}},
                  ESP_MEMBER(dry_range)),
    request_field({.name = "dry_sequence_breakers",
                   .places = kInHttp,
                   .doc = "texts that no repetition goes across",
                   .absent = "a line break, :, \" and *"},
                  ESP_MEMBER(dry_sequence_breakers)),
    request_field({.name = "xtc_probability",
                   .places = kInHttp,
                   .doc = "the share of draws in which XTC drops all but the least likely of the "
                          "tokens above xtc_threshold; not on GPUs",
                   .range = {.low = 0, .high = 1, .allowed = "in [0, 1]"}},
                  ESP_MEMBER(xtc_probability)),
    request_field({.name = "xtc_threshold",
                   .places = kInHttp,
                   .doc = "the least probability of a token that XTC counts",
                   .range = {.low = 0, .high = 1, .allowed = "in [0, 1]"}},
                  ESP_MEMBER(xtc_threshold)),
    request_field({.name = "thinking_budget",
                   .places = kInHttp,
                   .doc = "tokens of reasoning after which its end is forced; -1: no limit; not on "
                          "GPUs",
                   .range = {.low = 0,
                             .high = std::numeric_limits<int32_t>::max(),
                             .takes_minus_one = true,
                             .allowed = "-1 (no limit) or at least 0"}},
                  ESP_MEMBER(thinking_budget)),
    request_field({.name = "logit_processor",
                   .places = kInHttp,
                   .doc = "the name of a processor of --logit-processor-library; not on GPUs"},
                  ESP_MEMBER(logit_processor)),
    request_field({.name = "logit_processor_params",
                   .places = kInHttp,
                   .doc = "a text that this processor is given"},
                  ESP_MEMBER(logit_processor_params)),
    request_field({.name = "ignore_eos",
                   .places = kInHttp | kInCommand,
                   .doc = "continues after the end-of-sequence token"},
                  ESP_MEMBER(ignore_eos)),
    request_field({.name = "skip_special_tokens",
                   .places = kInHttp,
                   .doc = "leaves special tokens out of the text"},
                  ESP_MEMBER(skip_special_tokens)),
    request_field({.name = "spaces_between_special_tokens",
                   .doc = "separates special tokens by spaces in the text"},
                  ESP_MEMBER(spaces_between_special_tokens)),
    request_field(
        {.name = "no_stop_trim", .places = kInHttp, .doc = "keeps the stop string in the text"},
        ESP_MEMBER(no_stop_trim)),
    request_field({.name = "logit_bias",
                   .places = kInHttp | kInOpenAiStandard,
                   .doc = "added to the logits of tokens: {token id: bias}"},
                  ESP_MEMBER(logit_bias)),
    request_field({.name = "regex",
                   .places = kInHttp,
                   .doc = "regular expression that the text must match",
                   .is_grammar = true},
                  ESP_MEMBER(regex)),
    request_field({.name = "json_schema",
                   .places = kInGenerate | kInCompletions,
                   .doc = "JSON Schema, as a string, that the text must follow",
                   .is_grammar = true},
                  ESP_MEMBER(json_schema)),
    request_field({.name = "ebnf",
                   .places = kInHttp,
                   .doc = "EBNF grammar that the text must follow",
                   .is_grammar = true},
                  ESP_MEMBER(ebnf)),
    request_field(
        {.name = "structural_tag", .doc = "structural tags, as a string", .is_grammar = true},
        ESP_MEMBER(structural_tag)),
    request_field({.name = "choices",
                   .places = kInHttp,
                   .doc = "texts, one of which the answer must be",
                   .is_grammar = true},
                  ESP_MEMBER(choices), NoMember{}),
    request_field({.name = "json_whitespace",
                   .places = kInHttp,
                   .doc = "compact, bounded or any, where a grammar constrains the text to JSON",
                   .absent = "the engine's"},
                  ESP_MEMBER(json_whitespace)),
    request_field({.name = "jump_forward",
                   .places = kInHttp,
                   .doc = "false: tokens that a grammar forces are sampled too"},
                  ESP_MEMBER(jump_forward)),
    request_field({.name = "drafts",
                   .places = kInHttp,
                   .doc = "false: no draft tokens, neither from answers of the same grammar "
                          "nor by --speculative-algorithm; no answer depends on them"},
                  ESP_MEMBER(draft_tokens)),
    request_field({.name = "token_healing",
                   .places = kInHttp,
                   .doc = "generates the prompt's last tokens anew where longer ones fit"},
                  ESP_MEMBER(token_healing)),
    request_field({.name = "complete_within_budget",
                   .places = kInHttp,
                   .doc = "ends what a grammar constrains within max_new_tokens, by the shortest "
                          "way where few tokens are left"},
                  ESP_MEMBER(complete_within_budget)),
    request_field({.name = "use_beam_search",
                   .places = kInHttp,
                   .doc = "searches for the n likeliest answers by beam search instead of drawing"},
                  ESP_MEMBER(use_beam_search)),
    request_field({.name = "beam_width",
                   .places = kInHttp,
                   .doc = "beams of a beam search",
                   .absent = "n",
                   .range = {.low = 1, .high = 64, .allowed = "in [1, 64]"}},
                  ESP_MEMBER(beam_width)),
    request_field({.name = "best_of",
                   .doc = "another name of beam_width",
                   .absent = "n",
                   .range = {.low = 1, .high = 64, .allowed = "in [1, 64]"}},
                  ESP_MEMBER(best_of)),
    request_field({.name = "length_penalty",
                   .places = kInHttp,
                   .doc = "the score of a beam search's answer is the sum of its log-probabilities "
                          "divided by its length to this power",
                   .absent = "1",
                   .range = {.low = -64, .high = 64, .allowed = "in [-64, 64]"}},
                  ESP_MEMBER(length_penalty)),
    request_field({.name = "early_stopping",
                   .places = kInHttp,
                   .doc = "whether a beam search ends as soon as it has as many answers as beams; "
                          "\"never\": not before no better one can come",
                   .absent = "false"},
                  ESP_MEMBER(early_stopping)),
    request_field({.name = "sampling_seed",
                   .openai = "seed",
                   .places = kInHttp | kInCommand | kInOpenAiStandard,
                   .doc = "the same seed gives the same draws",
                   .absent = "drawn"},
                  ESP_MEMBER(sampling_seed), ESP_MEMBER(seed)),
};

// What an answer says of probabilities: members of /generate's body beside sampling_params, of
// GenerateRequest and SamplingSpec where the engine reads them, and of lang::GenOptions where
// programs may state them. The OpenAI dialects have their own fields for this (logprobs,
// top_logprobs).
inline constexpr std::tuple kLogprobFields = {
    request_field({.name = "return_logprob", .doc = "log-probabilities in meta_info"},
                  ESP_MEMBER(return_logprob)),
    request_field({.name = "logprob_start_len",
                   .doc = "prompt position from which input log-probabilities are returned; -1: "
                          "none (absent with max_new_tokens 0: all)",
                   .range = {.low = -1, .allowed = "-1 (output only) or a position in the prompt"}},
                  ESP_MEMBER(logprob_start_len)),
    request_field({.name = "top_logprobs_num",
                   .doc = "best tokens to return at each position",
                   .range = {.low = 0, .allowed = "at least 0 and at most the vocabulary's size"}},
                  ESP_MEMBER(top_logprobs_num)),
    request_field({.name = "token_ids_logprob",
                   .doc = "ids whose log-probability is wanted at each position"},
                  ESP_MEMBER(token_ids_logprob)),
    request_field({.name = "return_text_in_logprobs", .doc = "token texts beside ids"},
                  ESP_MEMBER(return_text_in_logprobs)),
};
#undef ESP_MEMBER

// Calls visit(row) for every row, in the table's order.
template <typename Visit>
constexpr void for_each_request_field(Visit&& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, kRequestFields);
}
// The same for the fields about log-probabilities.
template <typename Visit>
constexpr void for_each_logprob_field(Visit&& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, kLogprobFields);
}

}  // namespace espalier
