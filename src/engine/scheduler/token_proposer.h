// Where tokens come from that are not sampled one by one: tokens that a grammar forces, and draft
// tokens that a step verifies (grammar history, n-grams, draft heads). The scheduler asks one
// proposer for all sequences whose spec has `takes_proposals`.
//
// Forced tokens are output as soon as they are proposed. Draft tokens change no output: they occupy
// query positions behind an entry's known tokens, and what is sampled and forced decides how many
// of them are accepted.
//
// All calls come from inside Scheduler::add(), next() and commit(), on the scheduler's thread, and
// must not call the scheduler back. The proposer outlives the scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "seams/draft_counts.h"
#include "seams/forward_batch.h"

namespace espalier {

class SequencePages;

// A sequence behind whose known tokens draft tokens are to go.
struct DraftSite {
  SequenceId id = 0;
  std::span<const TokenId> tokens;  // known so far: prompt and output
  const SequencePages& pages;
  // Of plan_draft_tokens() alone: what its limits leave, and whether the step in flight samples the
  // token behind which draft tokens would go.
  int32_t tokens_max = 0;
  bool awaits_sample = false;
};

// The decode entries of the step to be built, those that may get draft tokens as sites.
struct DraftStep {
  int32_t num_entries = 0;
  int32_t samples_max = 0;  // of all of them
  std::span<const DraftSite> sites;
};

struct StepSeconds {
  double device = 0;        // of its forward; 0: the device does not measure it
  double since_commit = 0;  // from the commit of the step before to its own; 0: nothing ran then
  bool is_first = false;    // of its size on a device that prepares for each: later ones take less
};

// Draft tokens of one entry. The proposer fills `tokens` and `samples` within the two limits.
struct DraftTokens {
  int32_t tokens_max = 0, samples_max = 0;
  std::vector<TokenId> tokens;
  // Indices into `tokens`, rising: a token is sampled behind each of these. The draft token behind
  // any other index is forced by the one before it.
  std::vector<int32_t> samples;
  Drafter drafter = Drafter::kGrammar;  // of these tokens, for the counts
  bool is_planned = false;              // as plan_draft_tokens() has chosen

  void clear() {
    tokens.clear();
    samples.clear();
    is_planned = false;
  }
};

// The base class proposes nothing.
class TokenProposer {
 public:
  virtual ~TokenProposer() = default;

  // Appends the tokens that must follow the output so far. Called after each output token that has
  // not ended the sequence, and once when the sequence is added (it may then end before it has
  // run). The tokens are committed at once (SequenceObserver::on_token for each) and computed
  // together in the sequence's next entry; what an entry in flight samples for it is dropped. With
  // return_logprob none of them may end the sequence: the scheduler removes those that would end it
  // by length or as a stop token.
  virtual void propose_forced(SequenceId, std::vector<TokenId>& /*forced*/) {}

  // Whether every sample of the entry being built forces tokens or ends the sequence. The next
  // entry would then be thrown away, so the scheduler builds none before the commit. Called when
  // all tokens before the sample are known.
  virtual bool forces_after_next(SequenceId) { return false; }

  // Whether plan_draft_tokens() decides about the steps' draft tokens.
  virtual bool plans_draft_tokens() const { return false; }

  // Called once before a step's decode entries are built: chooses the draft tokens of all sites
  // together, which propose_draft_tokens() then gives out. True: the step should be built after the
  // commit of the step in flight, so that all entries are in it with their draft tokens; false is
  // expected where no site awaits its sample. While a step verifies planned draft tokens the next
  // one is not built, and nothing is planned.
  virtual bool plan_draft_tokens(const DraftStep&) { return false; }

  // Appends draft tokens behind an entry that samples and whose tokens are all known: at most
  // draft.tokens_max tokens and draft.samples_max samples.
  virtual void propose_draft_tokens(const DraftSite&, DraftTokens& /*draft*/) {}

  // Whether propose_draft_tokens() is likely to find draft tokens behind the token that the entry
  // in flight samples. The scheduler then builds the next entry after the commit of that token.
  virtual bool draft_tokens_after_next(const DraftSite&) { return false; }

  // BatchEntry::chain_length of an entry that is being built, where the executor has a draft head;
  // `samples`: 0 becomes the length where it does not sample. Called once for each entry.
  virtual int32_t chain_length(SequenceId, bool /*samples*/) { return BatchEntry::kNoChain; }

  // An entry with a chain_length above 0 has been committed, and its sequence goes on. The chain
  // is empty where it does not follow the tokens that are known now.
  virtual void take_chain(SequenceId, std::span<const TokenId>) {}

  // A step has been committed that took so long, and its draft head so much of it.
  virtual void observe_chains(const ForwardBatch&, const StepSeconds&, double /*draft_seconds*/) {}

  // A step has been committed that took so long.
  virtual void observe_step(const ForwardBatch&, const StepSeconds&) {}
};

}  // namespace espalier
