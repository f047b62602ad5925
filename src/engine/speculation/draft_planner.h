// Which draft tokens a step verifies, chosen for all of its requests together. A device's step time
// depends on the number of rows alone, so draft tokens are taken in the order of the probability
// that they are accepted, whichever request they belong to, up to the number of rows that makes the
// most expected tokens a second (StepCost). Nothing is drafted unless that exceeds a step without
// draft tokens by a margin, the host's wait for a verifying step included.
//
// Two things keep it from losing. Draft tokens are taken on credit: what verifying steps lose and
// gain against steps without draft tokens is summed up, and nothing is drafted while they have lost
// more than a share of all time. And what was expected is compared with what was accepted: where
// predictions are worse than expected, the plans count them for less.
// Not thread-safe. A plan allocates nothing once it has seen as many chains.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/speculation/draft_policy.h"
#include "engine/speculation/step_cost.h"

namespace espalier {

// What one request could draft.
struct DraftChain {
  DraftPolicy::Origin origin;           // of the first draft token
  const AcceptanceRate* own = nullptr;  // of the request and source
  double reached = 1;  // probability that what is sampled before the first draft token is right
  int32_t most = 0;    // draft tokens
  int32_t length = 0;  // how many of them the plan takes
};

class DraftPlanner {
 public:
  explicit DraftPlanner(const DraftPolicy& policy) : policy_(policy) {}

  // Sets the chains' lengths for a step of num_entries entries; returns their sum, at most
  // `samples_max`. 0: a step without draft tokens is worth more. `awaits`: the plan only decides
  // whether to wait for the step in flight, and is made again behind it.
  int32_t plan(int32_t num_entries, int32_t samples_max, std::span<DraftChain> chains,
               bool awaits = false);
  // Adds draft tokens of one more request in a step that has been planned, for instance behind the
  // last token of a prompt. Sets its length and returns it.
  int32_t extend(DraftChain& chain, int32_t samples_max);
  // False: no draft token pays beside so many entries, however certain it is.
  bool may_pay(int32_t num_entries, int32_t samples_max) const;

  struct Step {
    int32_t num_entries = 0, num_draft_tokens = 0;
    int32_t num_accepted = 0;  // of its draft tokens
    double seconds = 0;        // since the commit of the step before
  };
  // A step of decode entries alone has been committed, the last that was planned.
  void observe_step(const Step& step);

  const StepCost& cost() const { return cost_; }

 private:
  struct Candidate {
    double reached = 0;  // the probability that it is accepted
    int32_t chain = 0;
    bool operator<(const Candidate& other) const {
      return reached != other.reached ? reached < other.reached : chain > other.chain;
    }
  };
  // The draft tokens so far, what they are expected to add, and the best end so far.
  struct Choice {
    int32_t num = 0, best_num = 0;
    double expected = 0, best_expected = 0, best_rate = 0;
  };
  bool next(const DraftChain& chain, int32_t at, double reached, Candidate& candidate) const;
  void consider(Choice& choice, const StepCost::Curve& curve, int32_t num_entries) const;
  void grow(Choice& choice, const StepCost::Curve& curve, int32_t num_entries, int32_t samples_max,
            std::span<DraftChain> chains);
  void settle(const Step& step, double plain);
  void calibrate(const Step& step);

  const DraftPolicy& policy_;
  StepCost cost_;
  std::vector<Candidate> heap_, taken_;
  int32_t num_entries_ = 1, num_planned_ = 0;  // of the last plan
  double expected_ = 0;                        // accepted tokens, the same
  bool waited_ = false;                        // the last plan decided to wait
  bool in_vain_ = false;                       // and the one behind it drafted nothing
  bool is_late_ = false;  // the next step that is observed was not launched ahead
  // Of late: the tokens that plans expected to be accepted, and those that were.
  double offered_ = 0, accepted_ = 0;
  double calibration_ = 1;  // accepted tokens over expected ones
  double credit_ = 0;       // seconds that verifying steps may still lose
  bool has_credit_ = false;
};

}  // namespace espalier
