// Which draft tokens a step verifies, chosen for all of its requests together. A device's step time
// depends on the number of rows alone (StepCost), and a longer step delays the requests without
// draft tokens too. So plans maximise the geometric mean of the requests' expected tokens a second
// (proportional fairness): where all have the same draft tokens that is the throughput, and where
// few have some, these do not make the step so long that the others pay for it. What gains in the
// geometric mean gains in the throughput, which is never less. Draft tokens are taken in the order
// of what they add to it, whichever request they belong to. Nothing is drafted unless the plan
// exceeds a step without draft tokens by a margin, the host's wait for a verifying step included.
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
    bool is_first = false;     // of its size: it is paid for, and no cost is learnt from it
  };
  // A step of decode entries alone has been committed, the last that was planned.
  void observe_step(const Step& step);

  const StepCost& cost() const { return cost_; }

 private:
  struct Candidate {
    double gain = 0;      // that it adds to the logarithm of its request's expected tokens
    double reached = 0;   // the probability that it is accepted
    double expected = 0;  // accepted draft tokens of its chain up to it
    int32_t chain = 0;
    bool operator<(const Candidate& other) const {
      return gain != other.gain ? gain < other.gain : chain > other.chain;
    }
  };
  // The draft tokens of a step, how many of them are expected to be accepted, and the sum over the
  // requests of the logarithm of their expected tokens.
  struct Ends {
    int32_t num = 0;
    double expected = 0, gain = 0;
  };
  // The draft tokens so far, and the best end so far.
  struct Choice {
    Ends now, best;
    double best_rate = 0;
  };
  double rate(const Ends& ends, const StepCost::Curve& curve, int32_t num_entries) const;
  bool next(const DraftChain& chain, int32_t at, double reached, double expected,
            Candidate& candidate) const;
  void consider(Choice& choice, const StepCost::Curve& curve, int32_t num_entries) const;
  void grow(Choice& choice, const StepCost::Curve& curve, int32_t num_entries, int32_t samples_max,
            std::span<DraftChain> chains);
  void settle(const Step& step, bool is_late, double plain);
  void calibrate(const Step& step);

  const DraftPolicy& policy_;
  StepCost cost_;
  std::vector<Candidate> heap_, taken_;
  int32_t num_entries_ = 1;  // of the last plan
  Ends planned_;             // the same
  bool waited_ = false;      // the last plan decided to wait
  bool is_late_ = false;     // the next step that is observed was not launched ahead
  // Of late: the tokens that plans expected to be accepted, and those that were.
  double offered_ = 0, accepted_ = 0;
  double calibration_ = 1;  // accepted tokens over expected ones
  double credit_ = 0;       // seconds that verifying steps may still lose
  bool has_credit_ = false;
};

}  // namespace espalier
