#include "engine/requests/request_proposer.h"

#include <functional>
#include <string>

namespace espalier {

RequestProposer::RequestProposer(const EngineConfig& config, const RequestTable& requests,
                                 StepMasks& masks, const PrefixCache& cache)
    : overlap_(!config.compute.disable_overlap_schedule),
      requests_(requests),
      grammars_(config, requests, masks) {
  const SpeculationSettings& settings = config.speculation;
  if (settings.speculative_algorithm == "none") return;
  speculator_ = std::make_unique<Speculator>(Speculator::Config{
      .draft_tokens_max = settings.speculative_num_draft_tokens,
      .history_tokens = settings.speculative_ngram_capacity,
      .uses_ngrams = settings.speculative_algorithm != "RADIX",
      .tree = settings.speculative_algorithm != "NGRAM" ? cache.radix_tree() : nullptr});
}

void RequestProposer::start(SampleState& sample, int32_t max_new_tokens) {
  const LiveRequest& request = *sample.request;
  if (!speculator_ || !request.speculates || max_new_tokens < 2 ||
      request.sampling.spec.has_penalties())
    return;
  const uint64_t scope = std::hash<std::string>()(request.cache_namespace);
  // Keys of pictures are no tokens and cannot be proposed.
  const auto text_begin =
      request.spans == nullptr ? 0 : static_cast<size_t>(request.spans->spans.back().end());
  sample.speculative =
      speculator_->start(scope, std::span(request.prompt_ids).subspan(text_begin), max_new_tokens);
  sample.speculates = true;
}

void RequestProposer::observe_token(SampleState& sample, TokenId token) {
  speculator_->observe_token(*sample.speculative, token);
}

void RequestProposer::finish(SampleState& sample) {
  if (!sample.speculates) return;
  speculator_->finish(*sample.speculative);
  sample.speculative.reset();
  sample.speculates = false;
}

void RequestProposer::propose_forced(SequenceId id, std::vector<TokenId>& forced) {
  if (!requests_.sample(id).speculates) grammars_.propose_forced(id, forced);
}

bool RequestProposer::forces_after_next(SequenceId id) {
  return !requests_.sample(id).speculates && grammars_.forces_after_next(id);
}

void RequestProposer::propose_draft_tokens(const DraftSite& site, DraftTokens& draft) {
  SampleState& sample = requests_.sample(site.id);
  if (sample.speculates)
    speculator_->propose(*sample.speculative, site, draft);
  else
    grammars_.propose_draft_tokens(site, draft);
}

bool RequestProposer::draft_tokens_after_next(const DraftSite& site) {
  SampleState& sample = requests_.sample(site.id);
  if (!sample.speculates) return grammars_.draft_tokens_after_next(site);
  return overlap_ && speculator_->pays_to_wait(*sample.speculative, site);
}

void RequestProposer::observe_step(const ForwardBatch& batch, double seconds) {
  if (speculator_) speculator_->observe_step(batch, seconds);
}

}  // namespace espalier
