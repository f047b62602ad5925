// The items of an answer of /v1/responses (reasoning, a message, function calls) and the events of
// a stream that say how they grow. A message's text may come with the log-probabilities of its
// tokens. Internal to the room; not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "net/http.h"
#include "server/chat_answer.h"
#include "server/json_writer.h"

namespace espalier::server {

struct OutputItem {
  enum class Kind { kReasoning, kMessage, kCall } kind = Kind::kMessage;
  std::string id, text;  // text: of a call its arguments
  std::string name, call_id;
  std::string logprobs;  // of a message: an entry for each token, as JSON with commas between
  bool done = false;
};

void write_item(JsonWriter& w, const OutputItem& item);

class ResponseItems {
 public:
  // rid: in the items' ids. call_id: makes the id of the call of this index.
  ResponseItems(std::string rid, std::function<std::string(size_t)> call_id)
      : rid_(std::move(rid)), call_id_(std::move(call_id)) {}

  // A token of the answer, before the text that it adds is taken in. num_bytes: its length in the
  // answer's text; entry: its log-probability, as JSON.
  void add_token(size_t num_bytes, std::string entry) {
    tokens_.push_back({num_bytes, std::move(entry)});
  }
  // Takes in what is new of the answer. out: for events; null where the answer is not streamed.
  void consume(const ChatAnswer::Delta& delta, std::string* out);
  // Ends the last item.
  void close(std::string* out);
  const std::vector<OutputItem>& all() const { return items_; }

  // Appends an event with the next sequence number; `write` writes its other members.
  template <typename Write>
  void append_event(std::string& out, std::string_view type, Write write) {
    std::string payload;
    JsonWriter w(payload);
    w.begin_object().member("type", type).member("sequence_number", sequence_++);
    write(w);
    w.end_object();
    out.append("event: ").append(type).append("\n");
    net::append_sse(out, payload);
  }

 private:
  using Kind = OutputItem::Kind;

  bool open(Kind kind) const {
    return !items_.empty() && !items_.back().done && items_.back().kind == kind;
  }
  void open_item(Kind kind, std::string_view name, std::string* out);
  void append_text(Kind kind, std::string_view text, std::string* out);
  std::string take_logprobs(size_t num_bytes);
  // Events of the last item.
  template <typename Write>
  void append_item_event(std::string& out, std::string_view type, Write write);
  void append_part_event(std::string& out, std::string_view type);
  void append_whole_item(std::string& out, std::string_view type);

  const std::string rid_;
  const std::function<std::string(size_t)> call_id_;
  std::vector<OutputItem> items_;
  size_t num_calls_ = 0;
  int64_t sequence_ = 0;
  std::string blank_;  // white space that may become the beginning of a message
  struct Token {
    size_t num_bytes;
    std::string entry;
  };
  std::vector<Token> tokens_;  // whose text no item has yet
};

}  // namespace espalier::server
