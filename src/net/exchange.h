// One request of a connection and its answer: what a connection keeps about the exchange under way.
// Internal to the room.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "net/http.h"
#include "net/request_reader.h"

namespace espalier::net {

// How an exchange stands; shared with the handle of its answer, which reads it from any thread.
enum class Outcome : int { kOpen, kAnswered, kGone };
using SharedOutcome = std::shared_ptr<std::atomic<Outcome>>;

// Not thread-safe: belongs to the connection's I/O thread. An object serves one exchange after
// another; before the first it is done.
class Exchange {
 public:
  enum class Answer { kNone, kStreaming, kDone };

  void begin(RequestTraits traits, bool keep_alive);

  uint64_t id() const { return id_; }  // counts up; 0: there was none yet
  Answer answer() const { return answer_; }
  const RequestTraits& traits() const { return traits_; }
  const SharedOutcome& outcome() const { return outcome_; }
  bool keeps_alive() const { return keep_alive_; }
  void close_after() { keep_alive_ = false; }  // the connection ends with this answer
  bool is_chunked() const { return chunked_; }

  // The answer becomes a stream: chunked, or ended by the connection's end for HTTP/1.0.
  void start_stream();
  // Status line and headers, with a blank line. `content_length`: none for a stream.
  void append_head(std::string& out, int status, const Headers& headers,
                   std::optional<size_t> content_length, std::string_view date) const;

  // Called when the client goes before the answer is complete. Replaces an earlier callback.
  void set_disconnect(std::function<void()> callback) { disconnect_ = std::move(callback); }
  // The answer is complete. Returns the disconnect callback, for the caller to destroy.
  std::function<void()> finish();
  // The client has gone. Returns the callback to call; null when the answer was complete.
  std::function<void()> lose();

 private:
  uint64_t id_ = 0;
  Answer answer_ = Answer::kDone;
  bool keep_alive_ = true;
  bool chunked_ = false;
  RequestTraits traits_;
  SharedOutcome outcome_;  // null before the first exchange
  std::function<void()> disconnect_;
};

}  // namespace espalier::net
