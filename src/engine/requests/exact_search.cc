#include "engine/requests/exact_search.h"

#include <algorithm>
#include <cmath>
#include <queue>

namespace espalier {

Speller::Speller(const VocabView& vocab) {
  for (TokenId id = 0; id < vocab.vocab_size(); ++id) {
    const std::string_view bytes = vocab.token_bytes[static_cast<size_t>(id)];
    if (bytes.empty()) continue;
    if (std::binary_search(vocab.special_ids.begin(), vocab.special_ids.end(), id)) continue;
    ids_[bytes].push_back(id);
    longest_ = std::max(longest_, bytes.size());
  }
}

std::vector<std::pair<TokenId, size_t>> Speller::beginnings(std::string_view text) const {
  std::vector<std::pair<TokenId, size_t>> out;
  for (size_t n = 1; n <= std::min(longest_, text.size()); ++n)
    if (const auto it = ids_.find(text.substr(0, n)); it != ids_.end())
      for (const TokenId id : it->second) out.emplace_back(id, n);
  return out;
}

namespace {

// A beginning of a spelling, with its probability.
struct Beginning {
  double probability = 1;
  size_t num_bytes = 0;  // of the text, read
  std::vector<TokenId> tokens;
  friend bool operator<(const Beginning& a, const Beginning& b) {
    return a.probability < b.probability;
  }
};

std::string name_of(const std::string& text) {
  constexpr size_t kShownMax = 100;
  return text.size() <= kShownMax ? fmt::format("the choice \"{}\"", text)
                                  : fmt::format("a choice of {} bytes", text.size());
}

// Kept alive by the question that is open.
class Search : public std::enable_shared_from_this<Search> {
 public:
  Search(std::shared_ptr<const Speller> speller, std::string text, const ExactOptions& options,
         AskNext ask, std::function<void(Result<ExactProbability>)> done)
      : speller_(std::move(speller)),
        text_(std::move(text)),
        options_(options),
        ask_(std::move(ask)),
        done_(std::move(done)) {
    open_.push({});
  }

  // Asks the next question, or ends.
  void go_on() {
    while (!open_.empty() && left_ > options_.relative_error_max * sum_) {
      node_ = open_.top();
      open_.pop();
      left_ -= node_.probability;
      next_ = speller_->beginnings(std::string_view(text_).substr(node_.num_bytes));
      if (next_.empty()) continue;  // the vocabulary goes no further this way
      if (++found_.num_forwards > options_.num_forwards_max)
        return done_(
            fail(invalid_argument("{} can be spelled in too many ways: more than {} forwards; give "
                                  "a shorter text, or use another choices method",
                                  name_of(text_), options_.num_forwards_max)));
      std::vector<TokenId> wanted;
      for (const auto& [id, size] : next_) wanted.push_back(id);
      return ask_(node_.tokens, wanted,
                  [self = shared_from_this()](Result<std::vector<float>> answer) {
                    self->take(std::move(answer));
                  });
    }
    if (found_.num_spellings == 0)
      return done_(fail(invalid_argument("choices: the vocabulary cannot spell {}", name_of(text_))));
    found_.logprob = std::log(sum_);
    found_.left_out_max = total_open();
    done_(found_);
  }

 private:
  void take(Result<std::vector<float>> answer) {
    if (!answer) return done_(fail(answer.error()));
    if (answer->size() != next_.size())
      return done_(fail(error(StatusCode::kInternal, "{} log-probabilities for {} tokens",
                              answer->size(), next_.size())));
    for (size_t i = 0; i < next_.size(); ++i) {
      const double probability = node_.probability * std::exp(static_cast<double>((*answer)[i]));
      const size_t num_bytes = node_.num_bytes + next_[i].second;
      if (num_bytes == text_.size()) {
        sum_ += probability;
        ++found_.num_spellings;
        continue;
      }
      Beginning child{.probability = probability, .num_bytes = num_bytes, .tokens = node_.tokens};
      child.tokens.push_back(next_[i].first);
      open_.push(std::move(child));
      left_ += probability;
    }
    // Differences of what is nearly equal: added up anew before it is trusted.
    if (left_ <= options_.relative_error_max * sum_) left_ = total_open();
    go_on();
  }
  double total_open() const {
    double sum = 0;
    for (auto open = open_; !open.empty(); open.pop()) sum += open.top().probability;
    return sum;
  }

  const std::shared_ptr<const Speller> speller_;  // shared by the searches of a back end
  const std::string text_;
  const ExactOptions options_;
  const AskNext ask_;
  const std::function<void(Result<ExactProbability>)> done_;
  std::priority_queue<Beginning> open_;
  double sum_ = 0, left_ = 1;  // left: of all that is open
  Beginning node_;             // whose continuations are requested
  std::vector<std::pair<TokenId, size_t>> next_;
  ExactProbability found_;
};

}  // namespace

void exact_probability(std::shared_ptr<const Speller> speller, std::string text,
                       const ExactOptions& options, AskNext ask,
                       std::function<void(Result<ExactProbability>)> done) {
  std::make_shared<Search>(std::move(speller), std::move(text), options, std::move(ask),
                           std::move(done))
      ->go_on();
}

GenerateRequest next_token_request(std::string rid, const std::vector<TokenId>& prompt,
                                   const std::vector<TokenId>& tokens,
                                   std::vector<TokenId> wanted) {
  GenerateRequest request{.rid = std::move(rid), .input_ids = prompt};
  request.input_ids.insert(request.input_ids.end(), tokens.begin(), tokens.end());
  request.sampling = {.max_new_tokens = 1, .temperature = 0.0f, .ignore_eos = true};
  request.return_logprob = true;
  request.token_ids_logprob = std::move(wanted);
  return request;
}

void take_next_token(const TokenEvent& event, std::vector<float>& logprobs) {
  for (const TokenLogprobs& position : event.logprobs)
    for (const auto& [id, logprob] : position.wanted) logprobs.push_back(logprob);
}

}  // namespace espalier
