#include "transfer/frame_stream.h"

#include "base/big_endian.h"

namespace espalier::transfer {

Status FrameStream::send(FrameType type, std::string_view payload,
                         std::span<const std::byte> bytes) {
  std::string head;
  append_big_endian(head, payload.size() + bytes.size(), 4);
  head += static_cast<char>(type);
  head += payload;
  ESP_RETURN_IF_ERROR(stream_.write_all(head, silence_max_));
  return stream_.write_all({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                           silence_max_);
}

Result<FrameStream::Frame> FrameStream::receive(size_t bytes_max) {
  std::array<char, kFrameHeaderBytes> header{};
  ESP_RETURN_IF_ERROR(stream_.read_exactly(header, silence_max_));
  const uint64_t size = read_big_endian(std::string_view(header.data(), 4));
  if (size > bytes_max)
    return fail(error(StatusCode::kDataLoss,
                      "a frame of more than {} bytes was received: is the other side an Espalier "
                      "server's bootstrap port?",
                      bytes_max));
  buffer_.resize(size);
  ESP_RETURN_IF_ERROR(stream_.read_exactly(buffer_, silence_max_));
  return Frame{static_cast<FrameType>(header[4]), buffer_};
}

}  // namespace espalier::transfer
