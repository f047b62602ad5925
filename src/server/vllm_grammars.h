// The fields by which clients of vLLM constrain an answer: structured_outputs, and the older
// guided_json, guided_regex, guided_choice and guided_grammar. They set the grammar that regex,
// ebnf, choices and response_format set, and the engine refuses two in one request. Constant data;
// thread-safe.
#pragma once

#include <array>

#include "server/json_fields.h"

namespace espalier::server {

struct VllmGrammarField {
  std::string_view name, schema, help;
  Status (*read)(const Json& value, std::string_view where, SamplingParams& out);
};
extern const std::array<VllmGrammarField, 5> kVllmGrammarFields;

// For a T with a member `sampling`.
template <typename T>
void append_vllm_grammar_fields(Fields<T>& fields) {
  for (const VllmGrammarField& field : kVllmGrammarFields)
    fields.push_back(
        custom<T>(std::string(field.name), std::string(field.schema), std::string(field.help),
                  [read = field.read](const Json& value, std::string_view where, T& out) {
                    return read(value, where, out.sampling);
                  }));
}

}  // namespace espalier::server
