// Messages over a TCP connection between two nodes: 4 bytes of length, 1 byte of type, the payload.
//
// One thread sends and one receives at a time; interrupt() is thread-safe. Owns the connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "net/byte_stream.h"

namespace espalier::nodes {

enum class MessageType : uint8_t {
  kChallenge = 1,
  kHello,
  kAccept,
  kRefused,  // why, as text
  kPlan,     // what nodes decide together before the first step
  kStep,     // a batch (step_codec.h)
  kPart,     // of a collective call: a follower's part
  kSum,      // of a collective call: the result
  kBeat,     // nothing, to show that the node lives
  kGoodbye,  // the node ends as it was requested to
  kFailed,   // the node ends: why, as text
};

class Link {
 public:
  explicit Link(std::unique_ptr<net::ByteStream> stream) : stream_(std::move(stream)) {}

  // Failures of all calls: the stream's; kDataLoss for a message that is not the expected one.
  // timeout: of each wait without a byte.
  Status send(MessageType type, std::string_view payload, Duration timeout);

  struct Message {
    MessageType type{};
    std::string_view payload;  // valid until the next call that receives
  };
  Result<Message> receive(size_t bytes_max, Duration timeout);
  // The next message, which must be of this type; a kRefused or kFailed one is a Status.
  Result<std::string_view> receive_one(MessageType type, size_t bytes_max, Duration timeout);

  // A payload that the caller writes into begin_message() and send_message() sends: no copy.
  std::span<char> begin_message(size_t bytes);
  Status send_message(MessageType type, Duration timeout);
  // A payload of exactly these sizes, into their memory.
  Status receive_exactly(MessageType type, std::span<char> to, Duration timeout);

  // A message that has arrived completely, or none within `wait`.
  struct Polled {
    bool has_message = false;
    Message message;
  };
  Result<Polled> poll(size_t bytes_max, Duration wait);

  void interrupt() { stream_->interrupt(); }
  net::ByteStream& stream() { return *stream_; }

 private:
  struct Header {
    size_t size = 0;
    MessageType type{};
  };
  Result<Header> receive_header(size_t bytes_max, Duration timeout);

  const std::unique_ptr<net::ByteStream> stream_;
  std::string in_, out_;  // keep their capacity
};

}  // namespace espalier::nodes
