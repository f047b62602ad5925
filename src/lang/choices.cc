#include "lang/choices.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

namespace espalier::lang {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double mean(const std::vector<std::optional<float>>& logprobs) {
  double sum = 0;
  int count = 0;
  for (const auto& logprob : logprobs) {
    if (!logprob) continue;
    sum += *logprob;
    ++count;
  }
  return count == 0 ? 0.0 : sum / count;
}

Decision best_of(const std::vector<ChoiceScore>& choices, std::vector<double> scores) {
  const size_t index = static_cast<size_t>(
      std::distance(scores.begin(), std::max_element(scores.begin(), scores.end())));
  return {index, choices[index].text, std::move(scores)};
}

Decision by_mean(const std::vector<ChoiceScore>& choices) {
  std::vector<double> scores;
  for (const ChoiceScore& choice : choices) scores.push_back(mean(choice.logprobs));
  return best_of(choices, std::move(scores));
}

// A choice that has no token in this column competes with the mean of those it had.
double column_score(const ChoiceScore& choice, size_t column) {
  if (column >= choice.logprobs.size()) return mean(choice.logprobs);
  return choice.logprobs[column].value_or(0.0f);
}

Decision by_greedy(const std::vector<ChoiceScore>& choices) {
  size_t num_columns = 0;
  for (const ChoiceScore& choice : choices)
    num_columns = std::max(num_columns, choice.logprobs.size());
  std::vector<size_t> left(choices.size());
  std::iota(left.begin(), left.end(), size_t{0});
  std::vector<double> scores(choices.size(), kNever);
  for (size_t column = 0; column < num_columns && left.size() > 1; ++column) {
    double best = kNever;
    for (size_t i : left) best = std::max(best, column_score(choices[i], column));
    std::erase_if(left, [&](size_t i) { return column_score(choices[i], column) < best; });
  }
  for (size_t i : left) scores[i] = mean(choices[i].logprobs);
  return best_of(choices, std::move(scores));
}

Result<Decision> by_unconditional(const std::vector<ChoiceScore>& choices) {
  std::vector<double> scores;
  for (const ChoiceScore& choice : choices) {
    if (choice.unconditional_logprobs.size() != choice.logprobs.size())
      return fail(error(StatusCode::kInternal,
                        "choice \"{}\" has {} log-probabilities and {} unconditional ones",
                        choice.text, choice.logprobs.size(), choice.unconditional_logprobs.size()));
    double sum = 0;
    int count = 0;
    for (size_t i = 0; i < choice.logprobs.size(); ++i) {
      if (!choice.logprobs[i]) continue;
      sum += *choice.logprobs[i] - choice.unconditional_logprobs[i].value_or(0.0f);
      ++count;
    }
    scores.push_back(count == 0 ? 0.0 : sum / count);
  }
  return best_of(choices, std::move(scores));
}

Result<Decision> by_exact(const std::vector<ChoiceScore>& choices) {
  std::vector<double> scores;
  for (const ChoiceScore& choice : choices) {
    if (!choice.exact_logprob)
      return fail(
          error(StatusCode::kInternal, "choice \"{}\" was not scored exactly", choice.text));
    scores.push_back(*choice.exact_logprob);
  }
  return best_of(choices, std::move(scores));
}

}  // namespace

Status validate_choices(const std::vector<std::string>& choices) {
  if (choices.empty()) return invalid_argument("select has no choices: give one or more");
  std::map<std::string_view, size_t> seen;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty()) return invalid_argument("choice {} of the select is empty", i);
    const auto [it, is_new] = seen.emplace(choices[i], i);
    if (!is_new)
      return invalid_argument("choices {} and {} of the select are equal: \"{}\"", it->second, i,
                              choices[i]);
  }
  return {};
}

Result<Decision> decide(ChoicesMethod method, const std::vector<ChoiceScore>& choices) {
  if (choices.empty()) return fail(invalid_argument("select has no choices: give one or more"));
  switch (method) {
    case ChoicesMethod::kTokenLengthNormalized:
      return by_mean(choices);
    case ChoicesMethod::kGreedyTokenSelection:
      return by_greedy(choices);
    case ChoicesMethod::kUnconditionalLikelihoodNormalized:
      return by_unconditional(choices);
    case ChoicesMethod::kExact:
      return by_exact(choices);
  }
  return fail(error(StatusCode::kInternal, "no such choices method"));
}

}  // namespace espalier::lang
