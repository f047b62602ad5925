#include "engine/exact_choices.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <unordered_map>

namespace espalier {
namespace {

// A beginning of a tokenisation, with its probability.
struct Node {
  double probability = 1;
  size_t num_bytes = 0;  // of the choice, read
  std::vector<TokenId> tokens;
  friend bool operator<(const Node& a, const Node& b) { return a.probability < b.probability; }
};

class Speller {
 public:
  explicit Speller(const VocabView& vocab) {
    for (TokenId id = 0; id < vocab.vocab_size(); ++id) {
      const std::string_view bytes = vocab.token_bytes[static_cast<size_t>(id)];
      if (bytes.empty()) continue;
      ids_[bytes].push_back(id);
      longest_ = std::max(longest_, bytes.size());
    }
  }
  // The tokens that `text` begins with, and their sizes.
  std::vector<std::pair<TokenId, size_t>> beginnings(std::string_view text) const {
    std::vector<std::pair<TokenId, size_t>> out;
    for (size_t n = 1; n <= std::min(longest_, text.size()); ++n)
      if (const auto it = ids_.find(text.substr(0, n)); it != ids_.end())
        for (const TokenId id : it->second) out.emplace_back(id, n);
    return out;
  }

 private:
  std::unordered_map<std::string_view, std::vector<TokenId>> ids_;
  size_t longest_ = 0;
};

class Search {
 public:
  Search(Engine& engine, const std::vector<TokenId>& prompt, const ExactChoicesOptions& options)
      : engine_(engine),
        prompt_(prompt),
        options_(options),
        speller_(engine.tokenizer()->vocab()) {}

  Result<ExactChoice> run(const std::string& choice) {
    std::priority_queue<Node> open;
    open.push({});
    double sum = 0, left = 1;  // left: of all that is open
    ExactChoice out;
    while (!open.empty() && left > options_.relative_error_max * sum) {
      const Node node = open.top();
      open.pop();
      left -= node.probability;
      const auto next = speller_.beginnings(std::string_view(choice).substr(node.num_bytes));
      if (next.empty()) continue;  // the vocabulary goes no further this way
      ESP_ASSIGN_OR_RETURN(const std::vector<double> probabilities, forward(node, next));
      for (size_t i = 0; i < next.size(); ++i) {
        const double probability = node.probability * probabilities[i];
        const size_t num_bytes = node.num_bytes + next[i].second;
        if (num_bytes == choice.size()) {
          sum += probability;
          ++out.num_tokenisations;
          continue;
        }
        Node child{.probability = probability, .num_bytes = num_bytes, .tokens = node.tokens};
        child.tokens.push_back(next[i].first);
        open.push(std::move(child));
        left += probability;
      }
      // Differences of what is nearly equal: added up anew before it is trusted.
      if (left <= options_.relative_error_max * sum) left = total(open);
    }
    if (out.num_tokenisations == 0)
      return fail(invalid_argument("the vocabulary cannot spell the choice '{}'", choice));
    out.logprob = std::log(sum);
    out.left_out_max = open.empty() ? 0 : total(open);
    return out;
  }
  int64_t num_forwards() const { return num_forwards_; }

 private:
  static double total(std::priority_queue<Node> open) {
    double sum = 0;
    for (; !open.empty(); open.pop()) sum += open.top().probability;
    return sum;
  }

  Result<std::vector<double>> forward(const Node& node,
                                      const std::vector<std::pair<TokenId, size_t>>& next) {
    if (++num_forwards_ > options_.num_forwards_max)
      return fail(error(StatusCode::kResourceExhausted,
                        "the choices have too many tokenisations: more than {} forwards; take "
                        "shorter choices or a larger error",
                        options_.num_forwards_max));
    GenerateRequest request{.return_logprob = true, .extra_key = options_.extra_key};
    request.input_ids = prompt_;
    request.input_ids.insert(request.input_ids.end(), node.tokens.begin(), node.tokens.end());
    request.sampling.max_new_tokens = 1;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    for (const auto& [id, size] : next) request.token_ids_logprob.push_back(id);
    ESP_ASSIGN_OR_RETURN(const GenerateResult answer, engine_.generate(std::move(request)));
    std::vector<double> out;
    for (const auto& [id, logprob] : answer.output_logprobs.at(0).wanted)
      out.push_back(std::exp(static_cast<double>(logprob)));
    return out;
  }

  Engine& engine_;
  const std::vector<TokenId>& prompt_;
  const ExactChoicesOptions& options_;
  const Speller speller_;
  int64_t num_forwards_ = 0;
};

}  // namespace

Result<ExactChoices> exact_choices(Engine& engine, const std::vector<TokenId>& prompt_ids,
                                   const std::vector<std::string>& choices,
                                   const ExactChoicesOptions& options) {
  if (engine.tokenizer() == nullptr)
    return fail(error(StatusCode::kFailedPrecondition,
                      "choices are texts, and this engine runs without a tokenizer"));
  if (prompt_ids.empty()) return fail(invalid_argument("the prompt is empty"));
  if (choices.empty()) return fail(invalid_argument("there are no choices"));
  Search search(engine, prompt_ids, options);
  ExactChoices out;
  double best = -std::numeric_limits<double>::infinity();
  for (const std::string& choice : choices) {
    if (choice.empty()) return fail(invalid_argument("a choice is empty"));
    ESP_ASSIGN_OR_RETURN(out.choices.emplace_back(), search.run(choice));
    best = std::max(best, out.choices.back().logprob);
  }
  double sum = 0;
  for (const ExactChoice& choice : out.choices) sum += std::exp(choice.logprob - best);
  for (const ExactChoice& choice : out.choices)
    out.shares.push_back(std::exp(choice.logprob - best) / sum);
  out.num_forwards = search.num_forwards();
  return out;
}

}  // namespace espalier
