#include "server/chat_answer.h"

#include <utility>

namespace espalier::server {

ChatAnswer::ChatAnswer(const AnswerFormat& format) : format_(format) {
  if (format.reasoning) reasoning_parser_.emplace(*format.reasoning);
  if (format.tool_format.empty()) return;
  // The format was checked when the server or the request was.
  if (auto parser = make_tool_call_parser(format.tool_format, format.tool_names, format.tools))
    tool_parser_ = std::move(*parser);
}

ChatAnswer::News ChatAnswer::read(std::string_view text, bool finished) {
  News news;
  const std::string_view fresh = text.substr(std::exchange(num_read_, text.size()));
  const auto answer = [&](std::string_view part) {
    if (tool_parser_ != nullptr) return add(tool_parser_->push(part), news);
    news.text += part;
  };
  if (reasoning_parser_) {
    ReasoningParser::Parts parts = reasoning_parser_->push(fresh);
    held_reasoning_ += parts.reasoning;
    answer(parts.answer);
  } else {
    answer(fresh);
  }
  if (finished && !std::exchange(finished_, true)) {
    if (reasoning_parser_) {
      ReasoningParser::Parts parts = reasoning_parser_->finish();
      held_reasoning_ += parts.reasoning;
      answer(parts.answer);
    }
    if (tool_parser_ != nullptr) add(tool_parser_->finish(), news);
  }
  const bool ready =
      format_.stream_reasoning || finished || (reasoning_parser_ && !reasoning_parser_->inside());
  if (ready) news.reasoning = std::exchange(held_reasoning_, {});
  reasoning_ += news.reasoning;
  text_ += news.text;
  return news;
}

void ChatAnswer::add(ToolCallParts&& parts, News& news) {
  news.text += parts.text;
  for (ToolCallParts::Piece& piece : parts.pieces) {
    if (piece.index > 0 && !format_.parallel) continue;
    if (!piece.name.empty()) calls_.push_back({piece.name, {}});
    calls_.back().arguments += piece.arguments;
    news.pieces.push_back(std::move(piece));
  }
}

}  // namespace espalier::server
