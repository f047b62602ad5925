#include "engine/sampling/params.h"

#include <algorithm>
#include <cmath>
#include <concepts>
#include <string_view>

#include "base/rng.h"
#include "seams/request_fields.h"

namespace espalier {
namespace {

template <typename T>
Status out_of_range(std::string_view field, T value, std::string_view allowed) {
  return invalid_argument("{} is {}, but must be {}", field, value, allowed);
}

// The number that a request states for a field, if it states one.
template <typename T>
std::optional<T> stated(const std::optional<T>& value) {
  return value;
}
std::optional<int32_t> stated(int32_t value) { return value; }
template <typename T>
concept Numeric = requires(const T& value) {
  { *stated(value) } -> std::convertible_to<double>;
};

// The first stated number that lies outside its field's range.
Status check_ranges(const SamplingParams& p) {
  Status status;
  for_each_request_field([&](const auto& field) {
    if constexpr (Numeric<std::remove_cvref_t<decltype(field.param(p))>>) {
      const auto value = stated(field.param(p));
      if (status.ok() && value && !field.range.allowed.empty() && !field.range.holds(*value))
        status = out_of_range(field.name, *value, field.range.allowed);
    }
  });
  return status;
}

Status check_ids(std::string_view field, std::span<const TokenId> ids, int32_t vocab_size) {
  for (TokenId id : ids)
    if (id < 0 || id >= vocab_size)
      return invalid_argument(
          "{} holds the out-of-vocabulary token id {}: token ids must be in [0, {})", field, id,
          vocab_size);
  return {};
}

Status check_bias(const std::map<TokenId, float>& bias, int32_t vocab_size) {
  for (const auto& [id, value] : bias) {
    if (id < 0 || id >= vocab_size)
      return invalid_argument("logit_bias holds token {}, but token ids must be in [0, {})", id,
                              vocab_size);
    if (!std::isfinite(value))
      return invalid_argument("logit_bias of token {} is {}, but must be finite", id, value);
  }
  return {};
}

Status check_logprobs(const GenerateRequest& r, int32_t vocab_size) {
  if (r.logprob_start_len < -1)
    return out_of_range("logprob_start_len", r.logprob_start_len,
                        "-1 (output only) or a position in the prompt");
  if (r.top_logprobs_num < 0 || r.top_logprobs_num > vocab_size)
    return out_of_range("top_logprobs_num", r.top_logprobs_num,
                        fmt::format("in [0, {}]", vocab_size));
  if (r.token_ids_logprob.size() > static_cast<size_t>(vocab_size))
    return invalid_argument(
        "token_ids_logprob holds {} ids, but there are {} tokens: name each once",
        r.token_ids_logprob.size(), vocab_size);
  return check_ids("token_ids_logprob", r.token_ids_logprob, vocab_size);
}

Status check_lengths(const ResolvedSampling& r) {
  const int32_t min_new_tokens = r.spec.min_new_tokens;
  if (r.length != ResolvedSampling::Length::kToContext && min_new_tokens > r.max_new_tokens)
    return invalid_argument("min_new_tokens is {}, but must be in [0, max_new_tokens], which is {}",
                            min_new_tokens, r.max_new_tokens);
  return {};
}

SamplingSpec make_spec(const GenerateRequest& request, const GenerationDefaults& d) {
  const SamplingParams& p = request.sampling;
  SamplingSpec s;
  for_each_request_field([&](const auto& field) {
    using Param = decltype(field.param);
    if constexpr (HasField<Param, SamplingValues> || HasField<Param, HistoryValues>) {
      auto& value = field.param(s);
      if constexpr (HasField<Param, const GenerationDefaults>)
        value = field.param(d).value_or(value);
      value = field.param(p).value_or(value);
    }
  });
  s.logit_bias.assign(p.logit_bias.begin(), p.logit_bias.end());
  for_each_logprob_field([&](const auto& field) {
    using Param = decltype(field.param);
    if constexpr (HasField<Param, SamplingSpec> && HasField<Param, const GenerateRequest>)
      field.param(s) = field.param(request);
  });
  return s;
}

// Clients state the stop tokens of other models too, as SGLang lets them: an id beyond the
// vocabulary never comes, so it is left out.
std::vector<TokenId> make_stop_ids(const SamplingParams& p, const std::vector<TokenId>& eos_ids,
                                   int32_t vocab_size) {
  std::vector<TokenId> ids = p.stop_token_ids;
  std::erase_if(ids, [&](TokenId id) { return id >= vocab_size; });
  if (!p.ignore_eos) ids.insert(ids.end(), eos_ids.begin(), eos_ids.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void set_length(const SamplingParams& p, const GenerationDefaults& d, ResolvedSampling& r) {
  if (p.to_context) {
    r.length = ResolvedSampling::Length::kToContext;
  } else if (p.max_new_tokens) {
    r.length = ResolvedSampling::Length::kExplicit;
    r.max_new_tokens = *p.max_new_tokens;
  } else {
    r.max_new_tokens = d.max_new_tokens.value_or(kDefaultMaxNewTokens);
  }
}

Result<grammar::Whitespace> whitespace_of(const std::string& name) {
  if (name == "compact") return grammar::Whitespace::kCompact;
  if (name == "bounded") return grammar::Whitespace::kBounded;
  if (name == "any") return grammar::Whitespace::kAny;
  return fail(
      invalid_argument("json_whitespace is '{}', but must be compact, bounded or any", name));
}

}  // namespace

Result<LogprobsMode> parse_logprobs_mode(std::string_view name) {
  if (name == "processed") return LogprobsMode::kProcessed;
  if (name == "original") return LogprobsMode::kOriginal;
  if (name == "raw") return LogprobsMode::kRaw;
  return fail(
      invalid_argument("logprobs_mode is '{}', but must be processed, original or raw", name));
}

Result<std::optional<grammar::GrammarSpec>> resolve_grammar(const SamplingParams& p,
                                                            grammar::Whitespace whitespace) {
  using Kind = grammar::GrammarSpec::Kind;
  struct Field {
    std::string_view name;
    Kind kind;
    const std::string* source;  // null: absent
  };
  const auto text = [](const std::optional<std::string>& t) { return t ? &*t : nullptr; };
  const std::string choices;  // stands for them
  const Field fields[] = {{"json_schema", Kind::kJsonSchema, text(p.json_schema)},
                          {"regex", Kind::kRegex, text(p.regex)},
                          {"ebnf", Kind::kEbnf, text(p.ebnf)},
                          {"structural_tag", Kind::kStructuralTag, text(p.structural_tag)},
                          {"choices", Kind::kChoices, p.choices.empty() ? nullptr : &choices}};
  const Field* chosen = nullptr;
  for (const Field& field : fields) {
    if (field.source == nullptr) continue;
    if (chosen != nullptr)
      return fail(invalid_argument("{} and {} are both set, but a request has at most one grammar",
                                   chosen->name, field.name));
    chosen = &field;
  }
  if (p.json_whitespace) {
    ESP_ASSIGN_OR_RETURN(whitespace, whitespace_of(*p.json_whitespace));
  }
  if (chosen == nullptr) return std::nullopt;
  return grammar::GrammarSpec{.kind = chosen->kind,
                              .source = *chosen->source,
                              .choices = p.choices,
                              .whitespace = whitespace,
                              .reasoning_begin = p.reasoning_begin,
                              .reasoning_end = p.reasoning_end};
}

Result<ResolvedSampling> resolve_sampling(const GenerateRequest& request,
                                          const SamplingContext& context) {
  const SamplingParams& p = request.sampling;
  ESP_RETURN_IF_ERROR(check_ranges(p));
  for (const TokenId id : p.stop_token_ids)
    if (id < 0)
      return fail(
          invalid_argument("stop_token_ids holds {}, but token ids must be at least 0", id));
  ESP_RETURN_IF_ERROR(check_bias(p.logit_bias, context.vocab_size));
  ESP_RETURN_IF_ERROR(check_logprobs(request, context.vocab_size));
  ResolvedSampling r{.spec = make_spec(request, context.defaults),
                     .stop_ids = make_stop_ids(p, context.eos_ids, context.vocab_size)};
  ESP_ASSIGN_OR_RETURN(r.grammar, resolve_grammar(p, context.json_whitespace));
  set_length(p, context.defaults, r);
  ESP_RETURN_IF_ERROR(check_lengths(r));
  ESP_RETURN_IF_ERROR(resolve_history(p, context.history, r.spec));
  r.spec.logprobs_mode = context.logprobs_mode;
  if (r.spec.temperature < kGreedyTemperature) r.spec.temperature = 0;
  // Nothing is drawn, and the distribution behind the prompt is without a temperature.
  if (r.length == ResolvedSampling::Length::kExplicit && r.max_new_tokens == 0)
    r.spec.temperature = 0;
  if (r.spec.min_new_tokens > 0) r.spec.banned_before_min = r.stop_ids;
  return r;
}

Result<int32_t> resolve_max_new_tokens(const ResolvedSampling& sampling, int32_t prompt_tokens,
                                       LengthLimit limit) {
  using Length = ResolvedSampling::Length;
  const int32_t room = limit.tokens - prompt_tokens;
  const std::string_view why =
      limit.by_cache ? " (the KV cache holds no more: the server's --max-total-tokens)" : "";
  const bool prefill_only = sampling.length != Length::kToContext && sampling.max_new_tokens == 0;
  if (room < (prefill_only ? 0 : 1))
    return fail(invalid_argument(
        "the prompt ({} tokens) is longer than the model's context length allows: "
        "at most {} tokens fit, for prompt and output share {}{}; shorten it",
        prompt_tokens, prefill_only ? limit.tokens : limit.tokens - 1, limit.tokens, why));
  if (sampling.length == Length::kExplicit && sampling.max_new_tokens > room)
    return fail(
        invalid_argument("max_new_tokens is too large: {} after a prompt of {} tokens, but prompt "
                         "and output share {} tokens{}; request at most {}, or null for all that "
                         "fit",
                         sampling.max_new_tokens, prompt_tokens, limit.tokens, why, room));
  const int32_t max_new_tokens =
      sampling.length == Length::kToContext ? room : std::min(sampling.max_new_tokens, room);
  if (sampling.spec.min_new_tokens > max_new_tokens)
    return fail(
        invalid_argument("min_new_tokens is {}, but after a prompt of {} tokens only {} more fit",
                         sampling.spec.min_new_tokens, prompt_tokens, max_new_tokens));
  return max_new_tokens;
}

uint64_t sample_seed(uint64_t seed, int32_t index) {
  return mix64(mix64(seed) + static_cast<uint64_t>(index));
}

GenerationDefaults usable_defaults(GenerationDefaults d) {
  for_each_request_field([&](const auto& field) {
    if constexpr (HasField<decltype(field.param), GenerationDefaults>) {
      auto& value = field.param(d);
      if (value && !field.range.holds(*value)) value.reset();
    }
  });
  if (d.max_new_tokens && *d.max_new_tokens < 1) d.max_new_tokens.reset();
  return d;
}

}  // namespace espalier
