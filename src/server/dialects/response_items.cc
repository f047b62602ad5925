#include "server/dialects/response_items.h"

#include "server/dialects/chat_dialect.h"

namespace espalier::server {
namespace {

using Kind = OutputItem::Kind;

void write_logprobs(JsonWriter& w, std::string_view entries) {
  w.key("logprobs").begin_array();
  if (!entries.empty()) w.raw(entries);
  w.end_array();
}

void write_part(JsonWriter& w, const OutputItem& item) {
  const bool reasoning = item.kind == OutputItem::Kind::kReasoning;
  w.begin_object().member("type", reasoning ? "reasoning_text" : "output_text");
  w.member("text", item.text);
  if (!reasoning) {
    w.key("annotations").begin_array().end_array();
    write_logprobs(w, item.logprobs);
  }
  w.end_object();
}

std::string_view stem(Kind kind) {
  switch (kind) {
    case Kind::kReasoning:
      return "response.reasoning_text";
    case Kind::kMessage:
      return "response.output_text";
    case Kind::kCall:
      break;
  }
  return "response.function_call_arguments";
}

}  // namespace

void write_item(JsonWriter& w, const OutputItem& item) {
  w.begin_object().member("id", item.id);
  w.member("status", item.done ? "completed" : "in_progress");
  if (item.kind == OutputItem::Kind::kCall) {
    w.member("type", "function_call").member("call_id", item.call_id);
    w.member("name", item.name).member("arguments", item.text).end_object();
    return;
  }
  if (item.kind == OutputItem::Kind::kReasoning) {
    w.member("type", "reasoning").key("summary").begin_array().end_array();
  } else {
    w.member("type", "message").member("role", "assistant");
  }
  w.key("content").begin_array();
  if (item.done) write_part(w, item);
  w.end_array().end_object();
}

// A message does not begin with white space alone, which stands around calls.
void ResponseItems::consume(const ChatAnswer::Delta& delta, std::string* out) {
  if (!delta.reasoning.empty()) append_text(Kind::kReasoning, delta.reasoning, out);
  if (!delta.text.empty()) {
    blank_ += delta.text;
    if (open(Kind::kMessage) || !is_blank(blank_))
      append_text(Kind::kMessage, std::exchange(blank_, {}), out);
  }
  for (const ToolCallParts::Piece& piece : delta.pieces) {
    if (!piece.name.empty()) {
      blank_.clear();
      open_item(Kind::kCall, piece.name, out);
    }
    if (!piece.arguments.empty()) append_text(Kind::kCall, piece.arguments, out);
  }
  if (!delta.reasoning.empty() || !delta.pieces.empty()) tokens_.clear();  // they are no message's
}

// The entries of the last tokens that together have so many bytes. Tokens before them have become
// no text of a message: a parser has taken them for marks.
std::string ResponseItems::take_logprobs(size_t num_bytes) {
  size_t begin = tokens_.size();
  for (size_t found = 0; begin > 0 && found < num_bytes;) found += tokens_[--begin].num_bytes;
  std::string entries;
  for (size_t i = begin; i < tokens_.size(); ++i) {
    if (!entries.empty()) entries += ',';
    entries += tokens_[i].entry;
  }
  tokens_.clear();
  return entries;
}

void ResponseItems::append_text(Kind kind, std::string_view text, std::string* out) {
  if (!open(kind)) open_item(kind, "", out);
  OutputItem& item = items_.back();
  item.text += text;
  std::string logprobs;
  if (kind == Kind::kMessage && !tokens_.empty()) {
    logprobs = take_logprobs(text.size());
    if (!item.logprobs.empty() && !logprobs.empty()) item.logprobs += ',';
    item.logprobs += logprobs;
  }
  if (out == nullptr) return;
  append_item_event(*out, std::string(stem(kind)) + ".delta", [&](JsonWriter& w) {
    w.member("delta", text);
    if (kind == Kind::kMessage) write_logprobs(w, logprobs);
  });
}

void ResponseItems::open_item(Kind kind, std::string_view name, std::string* out) {
  close(out);
  static constexpr const char* kPrefixes[] = {"rs_", "msg_", "fc_"};
  OutputItem& item = items_.emplace_back();
  item.kind = kind;
  item.id = fmt::format("{}{}_{}", kPrefixes[static_cast<size_t>(kind)], rid_, items_.size() - 1);
  if (kind == Kind::kCall) {
    item.name = name;
    item.call_id = call_id_(num_calls_++);
  }
  if (out == nullptr) return;
  append_whole_item(*out, "response.output_item.added");
  if (kind == Kind::kMessage) append_part_event(*out, "response.content_part.added");
}

void ResponseItems::close(std::string* out) {
  if (items_.empty() || items_.back().done) return;
  OutputItem& item = items_.back();
  item.done = true;
  if (out == nullptr) return;
  const bool call = item.kind == Kind::kCall;
  append_item_event(*out, std::string(stem(item.kind)) + ".done", [&](JsonWriter& w) {
    w.member(call ? "arguments" : "text", item.text);
    if (call) w.member("name", item.name);
    if (item.kind == Kind::kMessage) write_logprobs(w, item.logprobs);
  });
  if (item.kind == Kind::kMessage) append_part_event(*out, "response.content_part.done");
  append_whole_item(*out, "response.output_item.done");
}

template <typename Write>
void ResponseItems::append_item_event(std::string& out, std::string_view type, Write write) {
  append_event(out, type, [&](JsonWriter& w) {
    w.member("item_id", items_.back().id).member("output_index", items_.size() - 1);
    if (items_.back().kind != Kind::kCall) w.member("content_index", 0);
    write(w);
  });
}

void ResponseItems::append_part_event(std::string& out, std::string_view type) {
  append_item_event(out, type, [&](JsonWriter& w) {
    w.key("part");
    write_part(w, items_.back());
  });
}

void ResponseItems::append_whole_item(std::string& out, std::string_view type) {
  append_event(out, type, [&](JsonWriter& w) {
    w.member("output_index", items_.size() - 1).key("item");
    write_item(w, items_.back());
  });
}

}  // namespace espalier::server
