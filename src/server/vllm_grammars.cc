#include "server/vllm_grammars.h"

#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

namespace espalier::server {
namespace {

namespace json = boost::json;

// A schema, as an object or as its text.
Status read_vllm_json(const Json& value, std::string_view where, SamplingParams& out) {
  if (value.is_string()) return read_value(value, where, out.json_schema);
  if (!value.is_object() && !value.is_bool())
    return invalid_argument("{} must be a JSON Schema or its text, but it is {}", where,
                            describe(value));
  out.json_schema = json::serialize(value);
  return {};
}

Status read_vllm_regex(const Json& value, std::string_view where, SamplingParams& out) {
  return read_value(value, where, out.regex);
}

Status read_vllm_grammar(const Json& value, std::string_view where, SamplingParams& out) {
  return read_value(value, where, out.ebnf);
}

Status read_vllm_choice(const Json& value, std::string_view where, SamplingParams& out) {
  if (!value.is_array() || value.get_array().empty())
    return invalid_argument("{} must be a list of at least one text, but it is {}", where,
                            value.is_array() ? "empty" : describe(value));
  return read_value(value, where, out.choices);
}

Status read_vllm_json_object(const Json& value, std::string_view where, SamplingParams& out) {
  bool wanted = false;
  ESP_RETURN_IF_ERROR(read_value(value, where, wanted));
  if (wanted) out.json_schema = R"({"type":"object"})";
  return {};
}

// Tags, as an object or as their text.
Status read_vllm_tags(const Json& value, std::string_view where, SamplingParams& out) {
  if (value.is_string()) return read_value(value, where, out.structural_tag);
  if (!value.is_object())
    return invalid_argument("{} must be structural tags or their text, but it is {}", where,
                            describe(value));
  out.structural_tag = json::serialize(value);
  return {};
}

// vLLM's other members choose between its back ends, and have no effect.
Status read_structured_outputs(const Json& value, std::string_view where, SamplingParams& out) {
  using S = SamplingParams;
  static const Fields<S> fields = {
      custom<S>("json", "", "", read_vllm_json),
      custom<S>("regex", "", "", read_vllm_regex),
      custom<S>("choice", "", "", read_vllm_choice),
      custom<S>("grammar", "", "", read_vllm_grammar),
      custom<S>("json_object", "", "", read_vllm_json_object),
      custom<S>("structural_tag", "", "", read_vllm_tags),
  };
  return read_fields(fields, value, std::string(where) + ".", out);
}

}  // namespace

const std::array<VllmGrammarField, 5> kVllmGrammarFields = {{
    {"structured_outputs",
     R"({"type":"object","properties":{"json":{},"regex":{"type":"string"},"choice":{"type":"array","items":{"type":"string"}},"grammar":{"type":"string"},"json_object":{"type":"boolean"},"structural_tag":{}}})",
     "as vLLM takes it: one of json, regex, choice, grammar, json_object and structural_tag",
     read_structured_outputs},
    {"guided_json", R"({"type":["object","boolean","string"]})",
     "a JSON Schema or its text, as vLLM took it", read_vllm_json},
    {"guided_regex", R"({"type":"string"})", "as regex", read_vllm_regex},
    {"guided_choice", R"({"type":"array","items":{"type":"string"}})", "as choices",
     read_vllm_choice},
    {"guided_grammar", R"({"type":"string"})", "as ebnf", read_vllm_grammar},
}};

}  // namespace espalier::server
