// Finds tool calls in generated text while it arrives, in the formats of several model families,
// and describes such calls as structural tags, with which a grammar constrains a model.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace espalier {

struct ResponseTemplate;  // response_template.h

// The new output of a parser: text that belongs to no call, and pieces of calls in their order. The
// first piece of a call has its name. The pieces' arguments, concatenated, are JSON.
struct ToolCallParts {
  struct Piece {
    int32_t index = 0;  // of the call in the answer
    std::string name;   // not empty: a call begins
    std::string arguments;
  };
  std::string text;
  std::vector<Piece> pieces;
};

// Not thread-safe; one parser for each answer. The concatenated text and calls do not depend on how
// the answer is cut into pieces. White space around calls is dropped, other text is unchanged, and
// text that begins like a call and is none is returned as text.
class ToolCallParser {
 public:
  virtual ~ToolCallParser() = default;
  ToolCallParts push(std::string_view text);
  ToolCallParts finish();  // the pending output; no push() may follow
  int32_t num_calls() const { return num_calls_; }

 protected:
  virtual void take(char c) = 0;
  virtual void end() = 0;

  void emit_text(std::string_view text);  // white space is pending until text follows
  void drop_space() { space_.clear(); }   // which is pending
  void keep_space() { out_.text += std::exchange(space_, {}); }
  void begin_call(std::string name);
  void emit_arguments(std::string_view json);

 private:
  ToolCallParts out_;
  std::string space_;
  int32_t num_calls_ = 0;
};

// By the names that SGLang's --tool-call-parser has (tool_call_formats.cc has the table), and json,
// a list of {"name", "parameters"}. kInvalidArgument lists them. `tool_names`: the tools that may
// be called, by which formats without marks distinguish a call from text. `tools`: a checked list
// of them, or null; formats that write strings without quotes take the types of arguments from
// their schemas. `spec`: the checkpoint's, which the format response_template needs;
// kFailedPrecondition without it.
Result<std::unique_ptr<ToolCallParser>> make_tool_call_parser(
    std::string_view format, std::vector<std::string> tool_names,
    std::shared_ptr<const boost::json::value> tools = nullptr,
    std::shared_ptr<const ResponseTemplate> spec = nullptr);
Status check_tool_call_format(std::string_view format);  // whether there is one of this name
std::vector<std::string> tool_call_format_names();

// The format of a chat template, by the marks in it; "json" for a template without marks.
std::string detect_tool_call_format(std::string_view chat_template);

// Whether a grammar constrains required calls of a format to the format "json": then that is how
// they are read.
bool json_when_required(std::string_view format);

// The marks of a format that vocabularies have as tokens of their own.
std::vector<std::string> tool_call_marks(std::string_view format);

// Structural tags (grammar/frontends/structural_tag.h) for answers that call tools.
struct ToolCallGrammarOptions {
  bool required = false;  // the answer is a call without text; else text may surround calls
  bool parallel = true;   // more than one may come
  int32_t max_calls = 0;  // of a list that a grammar writes; 0: no bound
};
// `tools`: a checked list of {"type": "function", "function": {"name", "parameters", "strict"}}.
// Arguments of tools that are not strict are any object. Empty where the options constrain nothing,
// and for a format with json_when_required() unless calls are required.
std::string tool_call_structural_tag(std::string_view format, const boost::json::value& tools,
                                     const ToolCallGrammarOptions& options);

}  // namespace espalier
