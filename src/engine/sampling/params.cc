#include "engine/sampling/params.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/rng.h"

namespace espalier {
namespace {

template <typename T>
Status out_of_range(std::string_view field, T value, std::string_view allowed) {
  return invalid_argument("{} is {}, but must be {}", field, value, allowed);
}

// NaN fails every comparison, so it is refused by each of these.
bool within(float value, float low, float high) { return value >= low && value <= high; }
bool within_open(float value, float low, float high) { return value > low && value <= high; }
bool finite_not_negative(float value) { return std::isfinite(value) && value >= 0; }

Status check_ids(std::string_view field, std::span<const TokenId> ids, int32_t vocab_size) {
  for (TokenId id : ids)
    if (id < 0 || id >= vocab_size)
      return invalid_argument("{} holds {}, but token ids must be in [0, {})", field, id,
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

Status check_values(const SamplingSpec& s) {
  if (!finite_not_negative(s.temperature))
    return out_of_range("temperature", s.temperature, "a finite number of at least 0");
  if (!within_open(s.top_p, 0, 1)) return out_of_range("top_p", s.top_p, "in (0, 1]");
  if (s.top_k != -1 && s.top_k < 1)
    return out_of_range("top_k", s.top_k, "-1 (no limit) or at least 1");
  if (!within(s.min_p, 0, 1)) return out_of_range("min_p", s.min_p, "in [0, 1]");
  if (!within(s.frequency_penalty, -2, 2))
    return out_of_range("frequency_penalty", s.frequency_penalty, "in [-2, 2]");
  if (!within(s.presence_penalty, -2, 2))
    return out_of_range("presence_penalty", s.presence_penalty, "in [-2, 2]");
  if (!within_open(s.repetition_penalty, 0, 2))
    return out_of_range("repetition_penalty", s.repetition_penalty, "in (0, 2]");
  return {};
}

Status check_lengths(const ResolvedSampling& r) {
  const int32_t min_new_tokens = r.spec.min_new_tokens;
  if (r.max_new_tokens < 0)
    return out_of_range("max_new_tokens", r.max_new_tokens,
                        "at least 0, or null for up to the context");
  if (min_new_tokens < 0) return out_of_range("min_new_tokens", min_new_tokens, "at least 0");
  if (r.length != ResolvedSampling::Length::kToContext && min_new_tokens > r.max_new_tokens)
    return invalid_argument("min_new_tokens is {}, but must be in [0, max_new_tokens], which is {}",
                            min_new_tokens, r.max_new_tokens);
  return {};
}

SamplingSpec make_spec(const GenerateRequest& request, const GenerationDefaults& d) {
  const SamplingParams& p = request.sampling;
  SamplingSpec s;
  s.temperature = p.temperature.value_or(d.temperature.value_or(1.0f));
  s.top_p = p.top_p.value_or(d.top_p.value_or(1.0f));
  s.top_k = p.top_k.value_or(d.top_k.value_or(-1));
  s.min_p = p.min_p.value_or(d.min_p.value_or(0.0f));
  s.frequency_penalty = p.frequency_penalty.value_or(0.0f);
  s.presence_penalty = p.presence_penalty.value_or(0.0f);
  s.repetition_penalty = p.repetition_penalty.value_or(d.repetition_penalty.value_or(1.0f));
  s.logit_bias.assign(p.logit_bias.begin(), p.logit_bias.end());
  s.min_new_tokens = p.min_new_tokens.value_or(0);
  s.return_logprob = request.return_logprob;
  s.top_logprobs_num = request.top_logprobs_num;
  s.token_ids_logprob = request.token_ids_logprob;
  return s;
}

std::vector<TokenId> make_stop_ids(const SamplingParams& p, const std::vector<TokenId>& eos_ids) {
  std::vector<TokenId> ids = p.stop_token_ids;
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
  if (p.n < 1 || p.n > kMaxSamples)
    return fail(out_of_range("n", p.n, fmt::format("in [1, {}]", kMaxSamples)));
  ESP_RETURN_IF_ERROR(check_ids("stop_token_ids", p.stop_token_ids, context.vocab_size));
  ESP_RETURN_IF_ERROR(check_bias(p.logit_bias, context.vocab_size));
  ESP_RETURN_IF_ERROR(check_logprobs(request, context.vocab_size));
  ResolvedSampling r{.spec = make_spec(request, context.defaults),
                     .stop_ids = make_stop_ids(p, context.eos_ids)};
  ESP_ASSIGN_OR_RETURN(r.grammar, resolve_grammar(p, context.json_whitespace));
  set_length(p, context.defaults, r);
  ESP_RETURN_IF_ERROR(check_values(r.spec));
  ESP_RETURN_IF_ERROR(check_lengths(r));
  if (r.spec.temperature < kGreedyTemperature) r.spec.temperature = 0;
  if (r.spec.min_new_tokens > 0) r.spec.banned_before_min = r.stop_ids;
  return r;
}

Result<int32_t> resolve_max_new_tokens(const ResolvedSampling& sampling, int32_t prompt_tokens,
                                       int32_t limit) {
  using Length = ResolvedSampling::Length;
  const int32_t room = limit - prompt_tokens;
  const bool prefill_only = sampling.length != Length::kToContext && sampling.max_new_tokens == 0;
  if (room < (prefill_only ? 0 : 1))
    return fail(
        invalid_argument("the prompt has {} tokens, but at most {} fit: prompt and output share {} "
                         "tokens; shorten it",
                         prompt_tokens, prefill_only ? limit : limit - 1, limit));
  if (sampling.length == Length::kExplicit && sampling.max_new_tokens > room)
    return fail(invalid_argument(
        "the prompt has {} tokens and max_new_tokens is {}, but prompt and output share {} tokens; "
        "ask for at most {}, or null for all that fit",
        prompt_tokens, sampling.max_new_tokens, limit, room));
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
  if (d.temperature && !finite_not_negative(*d.temperature)) d.temperature.reset();
  if (d.top_p && !within_open(*d.top_p, 0, 1)) d.top_p.reset();
  if (d.min_p && !within(*d.min_p, 0, 1)) d.min_p.reset();
  if (d.top_k && *d.top_k < 1) d.top_k.reset();
  if (d.repetition_penalty && !within_open(*d.repetition_penalty, 0, 2))
    d.repetition_penalty.reset();
  if (d.max_new_tokens && *d.max_new_tokens < 1) d.max_new_tokens.reset();
  return d;
}

}  // namespace espalier
