#include "engine/startup/draft_folder.h"

#include <algorithm>
#include <string>

#include "base/log.h"
#include "engine/text_io/open_tokenizer.h"
#include "models/draft_model.h"
#include "models/load_draft_head.h"
#include "models/model_plan.h"

namespace espalier {
namespace {

Status other_sizes(const ModelInfo& target, const ModelInfo& draft) {
  if (target.vocab_size == draft.vocab_size) return {};
  return invalid_argument(
      "speculative_draft_model_path: the draft model has a vocabulary of {} tokens, and the model "
      "one of {}: take a draft model of the same vocabulary",
      draft.vocab_size, target.vocab_size);
}

// Each id is the same token. One vocabulary may go on where the other one ends.
Status check_tokens(const Tokenizer& target, const Tokenizer& draft) {
  const int32_t both = std::min(target.vocab_size(), draft.vocab_size());
  for (TokenId id = 0; id < both; ++id) {
    const std::string own = target.id_to_token(id), other = draft.id_to_token(id);
    if (own == other || own.empty() || other.empty()) continue;
    return invalid_argument(
        "speculative_draft_model_path: token {} is '{}' in the draft model's vocabulary and '{}' "
        "in the model's: take a draft model of the same vocabulary",
        id, other, own);
  }
  return {};
}

// Where a folder has no vocabulary, all that is known of it is its size.
Status check_vocabulary(const EngineConfig& config, const ModelInfo& target,
                        const ModelInfo& draft) {
  if (config.model.skip_tokenizer_init) return other_sizes(target, draft);
  const auto of_draft = open_tokenizer(config.speculation.speculative_draft_model_path);
  if (!of_draft && of_draft.error().code() == StatusCode::kNotFound)
    return other_sizes(target, draft);
  if (!of_draft) return of_draft.error().with_context("the draft model");
  ESP_ASSIGN_OR_RETURN(const auto own, open_tokenizer(config.model.tokenizer_path.empty()
                                                          ? config.model.model_path
                                                          : config.model.tokenizer_path));
  return check_tokens(*own, **of_draft);
}

bool goes_with_head(const EngineConfig& config, const ModelInfo& target) {
  return config.compute.device == "cpu" && config.compute.pp_size == 1 && !target.pooled &&
         !target.images && !config.tiers.enable_hierarchical_cache &&
         config.disaggregation.disaggregation_mode == "null" &&
         config.model.load_format == LoadFormat::kAuto &&
         config.speculation.speculative_draft_model_path.empty();
}

bool has_head(const EngineConfig& config) {
  const auto plan = plan_model(model_load_options(config));
  if (!plan) return false;
  const auto head = read_draft_spec(config.model.model_path / "draft", plan->spec);
  return head && !head->draft->is_mtp();
}

}  // namespace

void choose_drafter(const ModelInfo& target, EngineConfig& config) {
  std::string& algorithm = config.speculation.speculative_algorithm;
  if (algorithm != "auto") return;
  algorithm = "none";
  if (!goes_with_head(config, target) || !has_head(config)) return;
  algorithm = "EAGLE3";
  log_info("speculative_algorithm=EAGLE3 reason=\"the model's folder has a draft head\"");
}

Status check_draft_folder(const EngineConfig& config, const ModelInfo& target) {
  const SpeculationSettings& settings = config.speculation;
  if (!settings.has_draft_head()) return {};
  const ModelLoadOptions options = model_load_options(config);
  if (!settings.has_draft_model()) {
    return check_draft_kind_of(options.draft_path, settings.speculative_algorithm == "NEXTN"
                                                       ? DraftSpec::Kind::kMtp
                                                       : DraftSpec::Kind::kEagle3);
  }
  auto draft = read_model_info({.path = options.draft_model_path});
  if (!draft) return draft.error().with_context("the draft model");
  ESP_RETURN_IF_ERROR(check_draft_model(target, *draft));
  return check_vocabulary(config, target, *draft);
}

}  // namespace espalier
