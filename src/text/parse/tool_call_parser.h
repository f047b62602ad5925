// Finds tool calls in what a model generates, as the text comes, in the formats that families of
// models use; and says as structural tags what such calls look like, so that a grammar can hold a
// model to them.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier {

// What is new: text that belongs to no call, and pieces of calls in their order. The first piece of
// a call has its name; the arguments of a call are its pieces put together, as JSON.
struct ToolCallParts {
  struct Piece {
    int32_t index = 0;  // of the call in the answer
    std::string name;   // not empty: a call begins
    std::string arguments;
  };
  std::string text;
  std::vector<Piece> pieces;
};

// Not thread-safe; one for each answer. However the text is cut into pieces, text and calls put
// together are the same. White space around calls is dropped, text elsewhere is kept as it is; what
// looks like a call and is none comes out as text.
class ToolCallParser {
 public:
  virtual ~ToolCallParser() = default;
  ToolCallParts push(std::string_view text);
  ToolCallParts finish();  // what is pending; nothing may follow
  int32_t num_calls() const { return num_calls_; }

 protected:
  virtual void take(char c) = 0;
  virtual void end() = 0;

  void emit_text(std::string_view text);  // white space is pending until text follows
  void begin_call(std::string name);
  void emit_arguments(std::string_view json);

 private:
  ToolCallParts out_;
  std::string space_;
  int32_t num_calls_ = 0;
};

// By the names that SGLang's --tool-call-parser has: deepseekv3, deepseekv31, hermes, llama3,
// mistral, pythonic, qwen, qwen25, qwen3_coder; and json, a list of {"name", "parameters"}.
// kInvalidArgument lists them. `tool_names`: those that may be called; formats without marks need
// them to distinguish a call from text. `tools`: a checked list of them, or null; qwen3_coder,
// which writes strings without quotes, finds by their schemas what is a string.
Result<std::unique_ptr<ToolCallParser>> make_tool_call_parser(
    std::string_view format, std::vector<std::string> tool_names,
    std::shared_ptr<const boost::json::value> tools = nullptr);
std::vector<std::string> tool_call_format_names();

// The format that a chat template speaks, by the marks in it; "json" where there are none.
std::string detect_tool_call_format(std::string_view chat_template);

// The marks of a format that vocabularies have as tokens of their own.
std::vector<std::string> tool_call_marks(std::string_view format);

// Structural tags (grammar/frontends/structural_tag.h) for answers that call tools.
struct ToolCallGrammarOptions {
  bool required = false;  // a call must come, and nothing else; else text may stand around calls
  bool parallel = true;   // more than one may come
};
// `tools`: a checked list of {"type": "function", "function": {"name", "parameters", "strict"}}.
// Arguments of tools that are not strict are any object. "": the format has no grammar (pythonic,
// json without `required`), or nothing asks for it.
std::string tool_call_structural_tag(std::string_view format, const boost::json::value& tools,
                                     const ToolCallGrammarOptions& options);

}  // namespace espalier
