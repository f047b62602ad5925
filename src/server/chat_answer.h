// What an answer in chat is made of: reasoning, text, tool calls, read out of the text as it comes.
// Internal to the room.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/parse/reasoning_parser.h"
#include "text/parse/tool_call_parser.h"

namespace espalier::server {

// How the answers of one request are read; the same for all of its samples.
struct AnswerFormat {
  std::optional<ReasoningFormat> reasoning;
  bool stream_reasoning = true;  // else it comes as one piece
  std::string tool_format;       // empty: calls are not looked for
  std::vector<std::string> tool_names;
  std::shared_ptr<const boost::json::value> tools;  // the same with their schemas, or null
  bool parallel = true;                             // else calls behind the first are dropped
  bool tools_make_grammar = false;                  // the request's structural tag is made of them
  std::shared_ptr<const ResponseTemplate> response_template = nullptr;  // the model's, or null
};

// One sample's. Not thread-safe.
class ChatAnswer {
 public:
  struct Delta {
    std::string reasoning, text;
    std::vector<ToolCallParts::Piece> pieces;
  };
  struct Call {
    std::string name, arguments;
  };

  explicit ChatAnswer(const AnswerFormat& format);

  // `text`: all that the sample has generated; what is new of it is read. With `finished` nothing
  // is withheld.
  Delta read(std::string_view text, bool finished);

  // So far.
  const std::string& reasoning() const { return reasoning_; }
  const std::string& text() const { return text_; }
  const std::vector<Call>& calls() const { return calls_; }

 private:
  void add(ReasoningParser::Parts&& parts, Delta& delta);
  void add(ToolCallParts&& parts, Delta& delta);

  const AnswerFormat format_;
  std::optional<ReasoningParser> reasoning_parser_;
  std::unique_ptr<ToolCallParser> tool_parser_;
  size_t num_read_ = 0;
  bool finished_ = false;
  std::string buffered_reasoning_;  // without stream_reasoning
  std::string reasoning_, text_;
  std::vector<Call> calls_;
};

}  // namespace espalier::server
