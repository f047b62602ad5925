#include "engine/sampling/history_params.h"

#include <algorithm>

#include "engine/sampling/logit_library.h"

namespace espalier {
namespace {

std::vector<TokenId> find_breakers(const std::vector<std::string>& stated,
                                   std::span<const std::string_view> token_bytes) {
  std::vector<std::string_view> texts(stated.begin(), stated.end());
  if (texts.empty()) texts.assign(std::begin(kDryBreakers), std::end(kDryBreakers));
  std::vector<TokenId> ids;
  for (size_t id = 0; id < token_bytes.size(); ++id)
    if (std::ranges::any_of(texts, [&](std::string_view text) {
          return token_bytes[id].find(text) != std::string_view::npos;
        }))
      ids.push_back(static_cast<TokenId>(id));
  return ids;
}

Status resolve_breakers(const SamplingParams& params, const HistoryContext& context,
                        SamplingSpec& spec) {
  if (spec.dry_multiplier <= 0) return {};
  if (params.dry_sequence_breakers.size() > kDryBreakersMax)
    return invalid_argument("dry_sequence_breakers holds {} texts, but may hold {} at most",
                            params.dry_sequence_breakers.size(), kDryBreakersMax);
  if (std::ranges::any_of(params.dry_sequence_breakers, &std::string::empty))
    return invalid_argument(
        "dry_sequence_breakers holds an empty text, which every token holds: leave it out");
  if (context.token_bytes.empty() && !params.dry_sequence_breakers.empty())
    return error(StatusCode::kFailedPrecondition,
                 "dry_sequence_breakers needs a tokenizer, and this engine runs without one "
                 "(skip_tokenizer_init)");
  spec.dry_breakers = find_breakers(params.dry_sequence_breakers, context.token_bytes);
  return {};
}

}  // namespace

Status resolve_history(const SamplingParams& params, const HistoryContext& context,
                       SamplingSpec& spec) {
  if (params.logit_processor_params && !params.logit_processor)
    return invalid_argument("logit_processor_params is there without logit_processor");
  if (params.logit_processor_params &&
      params.logit_processor_params->find('\0') != std::string::npos)
    return invalid_argument(
        "logit_processor_params holds a zero byte, at which a processor would stop reading: leave "
        "it out");
  if (params.logit_processor && context.processors == nullptr)
    return error(StatusCode::kFailedPrecondition,
                 "logit_processor is '{}', but the server has no processors: start it with "
                 "--logit-processor-library",
                 *params.logit_processor);
  if (spec.thinking_budget >= 0) {
    if (context.thinking_begin < 0)
      return error(StatusCode::kFailedPrecondition,
                   "thinking_budget needs a vocabulary with a token for the begin and one for the "
                   "end of the reasoning, and this engine's has none");
    spec.thinking_begin = context.thinking_begin;
    spec.thinking_end = context.thinking_end;
  }
  return resolve_breakers(params, context, spec);
}

Result<std::vector<std::shared_ptr<LogitHook>>> make_hooks(const SamplingParams& params,
                                                           const HistoryContext& context,
                                                           int32_t vocab_size) {
  std::vector<std::shared_ptr<LogitHook>> hooks;
  if (!params.logit_processor) return hooks;
  for (int32_t i = 0; i < params.n; ++i) {
    ESP_ASSIGN_OR_RETURN(
        hooks.emplace_back(),
        context.processors->make_hook(*params.logit_processor,
                                      params.logit_processor_params.value_or(""), vocab_size));
  }
  return hooks;
}

}  // namespace espalier
