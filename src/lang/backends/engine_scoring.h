// What choices cost after a prompt, measured by an engine in this process: the calls of select.
// Internal to the room.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lang/backend.h"
#include "lang/backends/engine_requests.h"

namespace espalier {
class Speller;
}

namespace espalier::lang {

// Thread-safe. `requests` outlives it, and so does it the requests: it is destroyed once they have
// ended.
class EngineScoring {
 public:
  explicit EngineScoring(EngineRequests& requests) : requests_(requests) {}

  // The log-probabilities of the choices' tokens, or for ChoicesMethod::kExact of their texts.
  void score(const ScoreCall& call, ScoreDone done);

 private:
  struct Scoring;
  using Logprobs = std::vector<std::optional<float>>;

  void score_choices(const ScoreCall& call, const std::shared_ptr<Scoring>& scoring);
  void score_exactly(const ScoreCall& call, const std::shared_ptr<Scoring>& scoring);
  // log p of each token of the request's ids from `begin` on; the first of a prompt has none.
  void measure(GenerateRequest request, size_t begin, std::function<void(Result<Logprobs>)> done);
  // The log-probabilities of the wanted tokens after the request's prompt.
  void measure_next(GenerateRequest request, std::function<void(Result<std::vector<float>>)> done);
  static void measured(const std::shared_ptr<Scoring>& scoring, const Status& status);
  std::shared_ptr<const Speller> speller();

  EngineRequests& requests_;
  std::once_flag speller_made_;             // by the first exact select
  std::shared_ptr<const Speller> speller_;  // shared with the searches
};

}  // namespace espalier::lang
