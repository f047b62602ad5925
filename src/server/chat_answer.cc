#include "server/chat_answer.h"

#include <utility>

namespace espalier::server {

ChatAnswer::ChatAnswer(const AnswerFormat& format) : format_(format) {
  if (format.reasoning) reasoning_parser_.emplace(*format.reasoning);
  if (format.tool_format.empty()) return;
  // The format was checked when the server or the request was.
  if (auto parser = make_tool_call_parser(format.tool_format, format.tool_names, format.tools,
                                          format.response_template))
    tool_parser_ = std::move(*parser);
}

ChatAnswer::Delta ChatAnswer::read(std::string_view text, bool finished) {
  Delta delta;
  const std::string_view fresh = text.substr(std::exchange(num_read_, text.size()));
  const auto answer = [&](std::string_view part) {
    if (tool_parser_ != nullptr) return add(tool_parser_->push(part), delta);
    delta.text += part;
  };
  if (reasoning_parser_) {
    ReasoningParser::Parts parts = reasoning_parser_->push(fresh);
    buffered_reasoning_ += parts.reasoning;
    answer(parts.answer);
  } else {
    answer(fresh);
  }
  if (finished && !std::exchange(finished_, true)) {
    if (reasoning_parser_) {
      ReasoningParser::Parts parts = reasoning_parser_->finish();
      buffered_reasoning_ += parts.reasoning;
      answer(parts.answer);
    }
    if (tool_parser_ != nullptr) add(tool_parser_->finish(), delta);
  }
  const bool ready =
      format_.stream_reasoning || finished || (reasoning_parser_ && !reasoning_parser_->inside());
  if (ready) delta.reasoning = std::exchange(buffered_reasoning_, {});
  reasoning_ += delta.reasoning;
  text_ += delta.text;
  return delta;
}

void ChatAnswer::add(ToolCallParts&& parts, Delta& delta) {
  delta.text += parts.text;
  for (ToolCallParts::Piece& piece : parts.pieces) {
    if (piece.index > 0 && !format_.parallel) continue;
    if (!piece.name.empty()) calls_.push_back({piece.name, {}});
    calls_.back().arguments += piece.arguments;
    delta.pieces.push_back(std::move(piece));
  }
}

}  // namespace espalier::server
