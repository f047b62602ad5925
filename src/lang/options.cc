#include "lang/options.h"

#include "seams/request_fields.h"

namespace espalier::lang {
namespace {

template <typename T>
void fill(std::optional<T>& value, const std::optional<T>& otherwise) {
  if (!value) value = otherwise;
}

template <typename T>
requires requires(const T& list) { list.empty(); }
void fill(T& value, const T& otherwise) {
  if (value.empty()) value = otherwise;
}

}  // namespace

std::string_view choices_method_name(ChoicesMethod method) {
  switch (method) {
    case ChoicesMethod::kTokenLengthNormalized:
      return "token_length_normalized";
    case ChoicesMethod::kGreedyTokenSelection:
      return "greedy_token_selection";
    case ChoicesMethod::kUnconditionalLikelihoodNormalized:
      return "unconditional_likelihood_normalized";
    case ChoicesMethod::kExact:
      return "exact";
  }
  return "";
}

Result<ChoicesMethod> parse_choices_method(std::string_view name) {
  for (ChoicesMethod method : {token_length_normalized, greedy_token_selection,
                               unconditional_likelihood_normalized, exact_likelihood})
    if (name == choices_method_name(method)) return method;
  return fail(invalid_argument(
      "no choices method is named \"{}\": use token_length_normalized, greedy_token_selection, "
      "unconditional_likelihood_normalized or exact",
      name));
}

GenOptions GenOptions::with_defaults(const GenOptions& d) const {
  GenOptions o = *this;
  for_each_request_field([&](const auto& field) {
    if constexpr (HasField<decltype(field.option), GenOptions>)
      if (!field.is_grammar) fill(field.option(o), field.option(d));
  });
  for_each_logprob_field([&](const auto& field) {
    if constexpr (HasField<decltype(field.option), GenOptions>)
      fill(field.option(o), field.option(d));
  });
  const bool has_grammar =
      !o.regex.empty() || !o.json_schema.empty() || !o.ebnf.empty() || o.dtype != Dtype::kText;
  if (!has_grammar) {
    o.dtype = d.dtype;
    o.regex = d.regex;
    o.json_schema = d.json_schema;
    o.ebnf = d.ebnf;
  }
  return o;
}

Status validate(const GenOptions& o) {
  const int num_grammars = (o.regex.empty() ? 0 : 1) + (o.json_schema.empty() ? 0 : 1) +
                           (o.ebnf.empty() ? 0 : 1) + (o.dtype == Dtype::kText ? 0 : 1);
  if (num_grammars > 1)
    return invalid_argument(
        "a gen has at most one grammar: give one of regex, json_schema, ebnf and dtype");
  if (o.max_tokens && *o.max_tokens < 0)
    return invalid_argument("max_tokens is {}: it must not be negative", *o.max_tokens);
  if (o.min_tokens && *o.min_tokens < 0)
    return invalid_argument("min_tokens is {}: it must not be negative", *o.min_tokens);
  if (o.min_tokens && o.max_tokens && *o.min_tokens > *o.max_tokens)
    return invalid_argument("min_tokens ({}) is above max_tokens ({})", *o.min_tokens,
                            *o.max_tokens);
  if (o.n && *o.n < 1) return invalid_argument("n is {}: at least one sample is written", *o.n);
  for (const std::string& stop : o.stop)
    if (stop.empty()) return invalid_argument("a stop string is empty: it would end every text");
  return {};
}

// As SGLang's frontend defines them, without its need for a stop behind a number.
std::string_view dtype_regex(Dtype dtype) {
  switch (dtype) {
    case Dtype::kText:
      return "";
    case Dtype::kString:
      return R"("[\w\d\s]*")";
    case Dtype::kInt:
      return R"([-+]?[0-9]+)";
    case Dtype::kFloat:
      return R"([-+]?[0-9]*\.?[0-9]+)";
    case Dtype::kBool:
      return "(True|False)";
  }
  return "";
}

}  // namespace espalier::lang
