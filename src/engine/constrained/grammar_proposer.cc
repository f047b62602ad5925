#include "engine/constrained/grammar_proposer.h"

#include <algorithm>
#include <functional>
#include <string>

#include "base/rng.h"
#include "engine/constrained/token_healing.h"

namespace espalier {
namespace {

// A grammar after which nothing but the end can follow ends its sample.
std::optional<FinishReason> end_of_grammar(grammar::Matcher& matcher,
                                           const std::vector<TokenId>& stops, TokenId token) {
  if (!matcher.must_end()) return std::nullopt;
  FinishReason reason{.type = FinishReason::Type::kStop};
  if (matcher.ended())
    reason.matched = token;
  else if (!stops.empty())
    reason.matched = stops.front();
  return reason;
}

}  // namespace

// Where the text may end, a stop token ends it as end-of-sequence does.
std::optional<FinishReason> advance_matcher(grammar::Matcher& matcher,
                                            const std::vector<TokenId>& stops, TokenId token) {
  if (matcher.accept_token(token)) return end_of_grammar(matcher, stops, token);
  if (matcher.can_end() && std::binary_search(stops.begin(), stops.end(), token))
    return FinishReason{.type = FinishReason::Type::kStop, .matched = token};
  return FinishReason{
      .type = FinishReason::Type::kError,
      .status = matcher.exhausted()
                    ? exhausted_grammar()
                    : error(StatusCode::kInternal, "token {} is not of the grammar", token)};
}

Status exhausted_grammar() {
  return invalid_argument(
      "the grammar needs more states for this text than it may have, or leaves the text at too "
      "many "
      "places at once; bound its repetitions more tightly or split it");
}

GrammarProposer::GrammarProposer(const EngineConfig& config, const RequestTable& requests,
                                 StepMasks& masks)
    : overlap_(!config.compute.disable_overlap_schedule), requests_(requests), masks_(masks) {}

void GrammarProposer::start(LiveRequest& request,
                            const std::shared_ptr<grammar::CompiledGrammar>& grammar) {
  for (std::vector<SampleState>* samples : {&request.samples, &request.beam_samples})
    for (SampleState& sample : *samples) {
      sample.matcher.emplace(grammar);
      sample.has_grammar = true;
    }
  if (request.jump_forward && history_ == nullptr)
    history_ = std::make_unique<DraftHistory>(masks_.jump_forward());
  if (request.draft_tokens)
    request.draft_scope = mix64(std::hash<std::string>()(key_of(*request.sampling.grammar))) ^
                          std::hash<std::string>()(request.cache_namespace);
}

void GrammarProposer::heal(LiveRequest& request) {
  std::vector<TokenId>& prompt = request.prompt_ids;
  const TokensByBytes& tokens = masks_.tokens_by_bytes();
  const size_t kept = prompt.size() - num_tokens_to_heal(tokens, prompt);
  std::string text;
  for (size_t i = kept; i < prompt.size(); ++i) text += tokens.bytes_of(prompt[i]);
  prompt.resize(kept);
  for (SampleState& sample : request.samples) {
    sample.healing = text;
    sample.heals = !text.empty();
    sample.output.skip(text);
  }
}

bool GrammarProposer::uses_history(const SampleState& sample) const {
  return sample.has_grammar && sample.request->draft_tokens && !sample.heals &&
         !sample.matcher->ended();
}

// Keeps the last output tokens, at least JumpForward::kWindowMax of them, and learns the sampled
// ones.
void GrammarProposer::remember(SampleState& sample, TokenId token, bool forced) {
  std::vector<TokenId>& recent = sample.recent;
  if (recent.size() == 2 * JumpForward::kWindowMax)
    recent.erase(recent.begin(), recent.begin() + JumpForward::kWindowMax);
  if (!forced && uses_history(sample))
    history_->learn(sample.request->draft_scope, *sample.matcher, recent, token);
  recent.push_back(token);
}

std::optional<FinishReason> GrammarProposer::advance(SampleState& sample, TokenId token,
                                                     bool forced) {
  remember(sample, token, forced);
  if (sample.heals) return advance_healing(sample, token);
  return advance_matcher(*sample.matcher, sample.request->sampling.stop_ids, token);
}

// Bytes of the token beyond the text to heal are output, and the grammar's first ones.
std::optional<FinishReason> GrammarProposer::advance_healing(SampleState& sample, TokenId token) {
  const std::string_view bytes = masks_.tokens_by_bytes().bytes_of(token);
  const size_t common = std::min(bytes.size(), sample.healing.size());
  const bool fits = common > 0 && bytes.substr(0, common) == sample.healing.substr(0, common);
  sample.healing.erase(0, common);
  sample.heals = !sample.healing.empty();
  const std::string_view rest = bytes.substr(common);
  if (!fits || (!rest.empty() && sample.matcher && !sample.matcher->accept_bytes(rest)))
    return FinishReason{.type = FinishReason::Type::kError,
                        .status = error(StatusCode::kInternal,
                                        "token {} does not continue the prompt's end", token)};
  if (!sample.matcher || rest.empty()) return std::nullopt;
  return end_of_grammar(*sample.matcher, sample.request->sampling.stop_ids, token);
}

void GrammarProposer::propose_forced(SequenceId id, std::vector<TokenId>& forced) {
  SampleState& sample = requests_.sample(id);
  if (!sample.has_grammar || !sample.request->jump_forward || sample.heals) return;
  grammar::Matcher& matcher = *sample.matcher;
  if (matcher.ended()) return;
  masks_.jump_forward().append_forced(matcher, sample.recent, forced);
  if (!sample.request->sampling.spec.computes_forced_logprobs()) return;
  // The token that ends the sample is sampled: its entry gives the log-probabilities of those
  // before.
  size_t kept = 0, read = 0;
  for (; kept < forced.size(); ++kept) {
    if (!matcher.accept_token(forced[kept])) break;
    ++read;
    if (matcher.must_end()) break;
  }
  matcher.rollback(read);
  forced.resize(kept);
}

bool GrammarProposer::forces_after_next(SequenceId id) {
  SampleState& sample = requests_.sample(id);
  if (!overlap_) return false;
  const std::span<const TokenId> choices = masks_.choices_of(sample);
  return !choices.empty() &&
         masks_.jump_forward().forces_behind_all(*sample.matcher, sample.recent, choices);
}

void GrammarProposer::propose_draft_tokens(const DraftSite& site, DraftTokens& draft) {
  SampleState& sample = requests_.sample(site.id);
  if (uses_history(sample))
    history_->append(sample.request->draft_scope, *sample.matcher, sample.recent, draft);
}

void GrammarProposer::keep_allowed(SampleState& sample, DraftTokens& draft) {
  const std::vector<TokenId> chain = std::move(draft.tokens);
  draft.tokens.clear();
  draft.samples.clear();
  if (sample.heals || sample.matcher->ended()) return;
  if (history_ == nullptr) history_ = std::make_unique<DraftHistory>(masks_.jump_forward());
  history_->append_chain(*sample.matcher, sample.recent, chain, sample.request->jump_forward,
                         draft);
}

// The next token and two behind it: one draft token is not worth the wait.
bool GrammarProposer::draft_tokens_after_next(const DraftSite& site) {
  SampleState& sample = requests_.sample(site.id);
  return uses_history(sample) &&
         history_->any(sample.request->draft_scope, *sample.matcher, sample.recent, 3);
}

}  // namespace espalier
