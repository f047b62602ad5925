// The arguments of the primitives, by SGLang's names and in its order (designated initialisers must
// keep the order): gen("joke", {.max_tokens = 64, .stop = "\n", .temperature = 0}).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier::lang {

// One string or several: .stop = "\n", .stop = {"\n", "END"}.
class Strings : public std::vector<std::string> {
 public:
  Strings() = default;
  // NOLINTBEGIN: implicit, that is what it is for
  Strings(const char* one) : vector{std::string(one)} {}
  Strings(std::string one) : vector{std::move(one)} {}
  Strings(std::initializer_list<std::string> all) : vector(all) {}
  Strings(std::vector<std::string> all) : vector(std::move(all)) {}
  // NOLINTEND
};

// What the text of a gen must read as. kInt and the others hold the model to it by a regular
// expression.
enum class Dtype { kText, kString, kInt, kFloat, kBool };

// How select decides; lang/choices.h.
enum class ChoicesMethod {
  kTokenLengthNormalized,
  kGreedyTokenSelection,
  kUnconditionalLikelihoodNormalized,
  kExact,
};
inline constexpr auto token_length_normalized = ChoicesMethod::kTokenLengthNormalized;
inline constexpr auto greedy_token_selection = ChoicesMethod::kGreedyTokenSelection;
inline constexpr auto unconditional_likelihood_normalized =
    ChoicesMethod::kUnconditionalLikelihoodNormalized;
inline constexpr auto exact_likelihood = ChoicesMethod::kExact;

std::string_view choices_method_name(ChoicesMethod method);  // "token_length_normalized"
Result<ChoicesMethod> parse_choices_method(std::string_view name);

// When a beam search ends that has as many answers as beams: when its best beam would not displace
// one if it ended now, at once, or when no beam can displace one.
enum class EarlyStopping : uint8_t { kNo, kYes, kNever };

// Absent means: the run's default, and where that is absent the back end's.
struct GenOptions {
  std::optional<int32_t> max_tokens, min_tokens;
  std::optional<int32_t> n;  // above 1 the variable is a list, and the first goes into the prompt
  Strings stop;
  std::vector<int32_t> stop_token_ids;
  Strings stop_regex;
  std::optional<float> temperature, top_p;
  std::optional<int32_t> top_k;
  std::optional<float> min_p, top_n_sigma, frequency_penalty, presence_penalty;
  std::optional<bool> ignore_eos, return_logprob;
  std::optional<int32_t> logprob_start_len, top_logprobs_num;
  std::optional<bool> return_text_in_logprobs;
  Dtype dtype = Dtype::kText;
  Strings choices;  // makes it a select
  ChoicesMethod choices_method = ChoicesMethod::kTokenLengthNormalized;
  std::string regex, json_schema, ebnf;  // at most one; "" is none
  std::optional<uint64_t> seed;
  std::optional<bool> use_beam_search;  // the n likeliest answers instead of draws
  std::optional<int32_t> beam_width;    // absent: n
  std::optional<float> length_penalty;
  std::optional<EarlyStopping> early_stopping;

  // What is absent here taken from `defaults`.
  GenOptions with_defaults(const GenOptions& defaults) const;
};

// What contradicts itself: two grammars, a negative length, a dtype beside a regex.
Status validate(const GenOptions& options);

// The regular expression of a dtype; "" for kText.
std::string_view dtype_regex(Dtype dtype);

}  // namespace espalier::lang
