// The response template of a checkpoint: `response_template` of its tokenizer_config.json, which
// says between which delimiters the reasoning, the text and the calls of an answer stand, and how
// a call is read (Hugging Face Transformers, "Response Parsing").
#pragma once

#include <boost/json/value.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/parse/response_content.h"
#include "text/regex/pcre.h"

namespace espalier {

struct ResponseField {
  enum class Role { kReasoning, kText, kCalls };
  struct Delimiter {
    PcreRegex regex;
    std::string literal;  // the one text that it matches, where there is one
  };
  std::string name;
  Role role = Role::kText;
  std::optional<Delimiter> open, close;
  ResponseContent content;
  boost::json::value transform;  // null: the content as it is
  bool transform_each = false;   // of the content's elements, not of the content
};

// Immutable; thread-safe.
struct ResponseTemplate {
  std::vector<ResponseField> fields;
  const ResponseField* implicit = nullptr;  // one of `fields`, which has no `open`
  std::optional<PcreRegex> start_anchor;    // in a prompt: the answer's message begins behind it

  // kInvalidArgument states the field and the reason. Fields other than thinking (or reasoning,
  // reasoning_content), content and tool_calls are refused, for an answer has no place for them.
  static Result<std::shared_ptr<const ResponseTemplate>> parse(const boost::json::value& spec);

  const ResponseField* find(ResponseField::Role role) const;  // null: there is none
  // What the chat template has written of the answer's message: the prompt's end.
  std::string_view begun_answer(std::string_view prompt) const;
};

// One call of a field's value, its arguments as JSON.
struct ResponseCall {
  std::string name, arguments;
};
// The calls in the text between the delimiters of `field`, which is to be of kCalls, with the named
// groups of both. Strings become other values where the schema of `tools` (a checked list, or null)
// allows no string. kInvalidArgument: the text is no call. Pure.
Result<std::vector<ResponseCall>> read_response_calls(const ResponseField& field,
                                                      std::string_view text, ResponseScope groups,
                                                      const boost::json::value* tools);

}  // namespace espalier
