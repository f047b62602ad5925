#include "lang/value.h"

#include <ostream>

#include "lang/interpreter/stream.h"

namespace espalier::lang {

Value::Value(std::shared_ptr<PromptStream> stream, std::string name, Location where)
    : stream_(std::move(stream)), name_(std::move(name)), where_(where) {}

Value Value::argument(std::shared_ptr<PromptStream> tracer, std::string name) {
  Value value(std::move(tracer), std::move(name), {});
  value.is_argument_ = true;
  return value;
}

Result<Content> Value::content() const {
  if (stream_ == nullptr) return Content{.text = text_};
  return stream_->read(name_).content;
}

Result<std::string> Value::get() const {
  if (stream_ == nullptr) return text_;
  ESP_ASSIGN_OR_RETURN(Content content, stream_->read(name_).content);
  if (content.is_list)
    return fail(error(StatusCode::kFailedPrecondition,
                      "\"{}\" is a list of {} texts: read its items", name_, content.items.size()));
  return std::move(content.text);
}

std::string Value::str() const {
  if (stream_ == nullptr) return text_;
  PromptStream::Read read = stream_->read(name_);
  if (!read.content)
    throw Error(std::move(read.content).error(), read.where.line != 0 ? read.where : where_);
  if (read.content->is_list)
    throw Error(
        error(StatusCode::kFailedPrecondition, "\"{}\" is a list of {} texts: read its items",
              name_, read.content->items.size()),
        where_);
  return std::move(read.content->text);
}

std::vector<std::string> Value::items() const {
  if (stream_ == nullptr) return {text_};
  PromptStream::Read read = stream_->read(name_);
  if (!read.content)
    throw Error(std::move(read.content).error(), read.where.line != 0 ? read.where : where_);
  if (!read.content->is_list) return {std::move(read.content->text)};
  return std::move(read.content->items);
}

bool Value::ready() const { return stream_ == nullptr || stream_->ready(name_); }

bool operator==(const Value& value, std::string_view text) {
  return std::string_view(value.str()) == text;
}

std::ostream& operator<<(std::ostream& out, const Value& value) { return out << value.str(); }

}  // namespace espalier::lang
