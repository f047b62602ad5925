// Frames over a TCP connection. Thread-safe as ByteStream is; borrows the stream.
#pragma once

#include <string>
#include <string_view>

#include "net/byte_stream.h"
#include "transfer/frame.h"

namespace espalier::transfer {

class FrameStream {
 public:
  FrameStream(net::ByteStream& stream, Duration silence_max)
      : stream_(stream), silence_max_(silence_max) {}

  // The payload is `payload` with `bytes` behind it. Failures are the stream's.
  Status send(FrameType type, std::string_view payload, std::span<const std::byte> bytes = {});

  struct Frame {
    FrameType type{};
    std::string_view payload;  // valid until the next receive()
  };
  // The next frame; kDataLoss where its payload is longer than `bytes_max`.
  Result<Frame> receive(size_t bytes_max);

 private:
  net::ByteStream& stream_;
  const Duration silence_max_;
  std::string buffer_;
};

}  // namespace espalier::transfer
