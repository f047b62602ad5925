#include "engine/requests/request_proposer.h"

#include <algorithm>
#include <functional>
#include <string>

namespace espalier {

RequestProposer::RequestProposer(const EngineConfig& config, const RequestTable& requests,
                                 StepMasks& masks, const RankCaches& caches,
                                 const Executor& executor)
    : requests_(requests),
      penalises_draft_tokens_(executor.penalises_draft_tokens()),
      grammars_(config, requests, masks) {
  const SpeculationSettings& settings = config.speculation;
  if (settings.speculative_algorithm == "none") return;
  if (settings.has_draft_head()) {
    head_ = std::make_unique<HeadDrafter>(HeadDrafter::Config{
        .chain_max =
            std::min(settings.speculative_num_steps, settings.speculative_num_draft_tokens),
        .samples_max = executor.draft_samples_max()});
    return;
  }
  speculator_ = std::make_unique<Speculator>(
      Speculator::Config{.draft_tokens_max = settings.speculative_num_draft_tokens,
                         .history_tokens = settings.speculative_ngram_capacity,
                         .uses_ngrams = settings.speculative_algorithm != "RADIX",
                         .tree = settings.speculative_algorithm != "NGRAM" && caches.size() == 1
                                     ? caches.first().radix_tree()
                                     : nullptr,
                         .measures_cost = settings.measures_cost});
}

void RequestProposer::start(SampleState& sample, int32_t max_new_tokens) {
  const LiveRequest& request = *sample.request;
  const SamplingSpec& sampling = request.sampling.spec;
  if ((!speculator_ && !head_) || !request.speculates || max_new_tokens < 2 ||
      sampling.reads_order() || !sampling.hidden_layers.empty() ||
      (sampling.has_penalties() && !penalises_draft_tokens_) || sample.heals ||
      (sample.has_grammar && !head_))
    return;
  sample.speculates = true;
  if (head_) {
    sample.head = std::make_unique<HeadText>(head_->start());
    return;
  }
  const uint64_t scope = std::hash<std::string>()(request.cache_namespace);
  // Keys of pictures are no tokens and cannot be proposed.
  const auto text_begin =
      request.spans == nullptr ? 0 : static_cast<size_t>(request.spans->spans.back().end());
  sample.speculative =
      speculator_->start(scope, std::span(request.prompt_ids).subspan(text_begin), max_new_tokens);
}

void RequestProposer::observe_token(SampleState& sample, TokenId token) {
  if (head_)
    head_->observe_token(*sample.head, token);
  else
    speculator_->observe_token(*sample.speculative, token);
}

void RequestProposer::finish(SampleState& sample) {
  if (!sample.speculates) return;
  if (!head_) speculator_->finish(*sample.speculative);
  sample.speculative.reset();
  sample.head.reset();
  sample.speculates = false;
}

void RequestProposer::propose_forced(SequenceId id, std::vector<TokenId>& forced) {
  if (is_constrained(requests_.sample(id))) grammars_.propose_forced(id, forced);
}

bool RequestProposer::forces_after_next(SequenceId id) {
  return is_constrained(requests_.sample(id)) && grammars_.forces_after_next(id);
}

// Earlier answers of a grammar are drafted where they are known for sure, for they were drawn so
// twice running.
void RequestProposer::propose_draft_tokens(const DraftSite& site, DraftTokens& draft) {
  SampleState& sample = requests_.sample(site.id);
  if (is_constrained(sample)) grammars_.propose_draft_tokens(site, draft);
  if (!sample.speculates || !draft.tokens.empty()) return;
  if (!head_) return speculator_->propose(*sample.speculative, site, draft);
  head_->propose(*sample.head, draft);
  if (sample.has_grammar && !draft.tokens.empty()) grammars_.keep_allowed(sample, draft);
}

bool RequestProposer::draft_tokens_after_next(const DraftSite& site) {
  SampleState& sample = requests_.sample(site.id);
  return (is_constrained(sample) && grammars_.draft_tokens_after_next(site)) ||
         (head_ && sample.speculates && sample.head->awaits_chain());
}

int32_t RequestProposer::chain_length(SequenceId id, bool samples) {
  SampleState& sample = requests_.sample(id);
  if (!head_ || !sample.speculates) return BatchEntry::kNoChain;
  return head_->chain_length(*sample.head, samples);
}

void RequestProposer::take_chain(SequenceId id, std::span<const TokenId> chain) {
  SampleState& sample = requests_.sample(id);
  if (head_ && sample.speculates) head_->take_chain(*sample.head, chain);
}

void RequestProposer::observe_chains(const ForwardBatch& batch, const StepSeconds& seconds,
                                     double draft_seconds) {
  if (head_) head_->observe_step(batch, seconds, draft_seconds);
}

// Chains are as long as their entries wanted, and come with the step in flight: all requests wait
// for them, or those without would have a step of their own.
bool RequestProposer::plan_draft_tokens(const DraftStep& step) {
  if (head_) {
    return std::ranges::any_of(step.sites, [&](const DraftSite& site) {
      const SampleState& sample = requests_.sample(site.id);
      return sample.speculates && sample.head->awaits_chain();
    });
  }
  speculator_->begin_plan(step.num_entries, step.samples_max);
  for (const DraftSite& site : step.sites)
    if (SampleState& sample = requests_.sample(site.id); sample.speculates)
      speculator_->add_to_plan(*sample.speculative, site);
  return speculator_->end_plan();
}

void RequestProposer::observe_step(const ForwardBatch& batch, const StepSeconds& seconds) {
  if (speculator_) speculator_->observe_step(batch, seconds);
}

}  // namespace espalier
