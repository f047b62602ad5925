#include "nodes/link.h"

#include <array>

#include "base/big_endian.h"
#include "base/check.h"

namespace espalier::nodes {
namespace {

constexpr size_t kHeaderBytes = 5;
constexpr size_t kReasonBytesMax = 8192;

void write_header(std::string& out, MessageType type, size_t size) {
  append_big_endian(out, size, 4);
  out += static_cast<char>(type);
}

Status unexpected(MessageType type) {
  return error(StatusCode::kDataLoss,
               "a message of type {} was received where none is expected: is the other side an "
               "Espalier node of this version (--dist-init-addr)?",
               static_cast<int>(type));
}

Status too_long(size_t size, size_t bytes_max) {
  return error(StatusCode::kDataLoss,
               "a message of {} bytes was received where at most {} are expected: is the other "
               "side an Espalier node of this version (--dist-init-addr)?",
               size, bytes_max);
}

bool is_reason(MessageType type) {
  return type == MessageType::kRefused || type == MessageType::kFailed;
}

}  // namespace

Status Link::send(MessageType type, std::string_view payload, Duration timeout) {
  out_.clear();
  write_header(out_, type, payload.size());
  out_ += payload;
  return stream_->write_all(out_, timeout);
}

std::span<char> Link::begin_message(size_t bytes) {
  out_.resize(kHeaderBytes + bytes);
  return std::span(out_).subspan(kHeaderBytes);
}

Status Link::send_message(MessageType type, Duration timeout) {
  ESP_CHECK(out_.size() >= kHeaderBytes);
  std::string header;
  write_header(header, type, out_.size() - kHeaderBytes);
  header.copy(out_.data(), kHeaderBytes);
  return stream_->write_all(out_, timeout);
}

Result<Link::Header> Link::receive_header(size_t bytes_max, Duration timeout) {
  std::array<char, kHeaderBytes> header{};
  ESP_RETURN_IF_ERROR(stream_->read_exactly(header, timeout));
  const auto size = static_cast<size_t>(read_big_endian(std::string_view(header.data(), 4)));
  const auto type = static_cast<MessageType>(header[4]);
  if (size > (is_reason(type) ? kReasonBytesMax : bytes_max))
    return fail(too_long(size, bytes_max));
  return Header{size, type};
}

Result<Link::Message> Link::receive(size_t bytes_max, Duration timeout) {
  ESP_ASSIGN_OR_RETURN(const Header header, receive_header(bytes_max, timeout));
  in_.resize(header.size);
  ESP_RETURN_IF_ERROR(stream_->read_exactly(in_, timeout));
  return Message{header.type, in_};
}

Result<std::string_view> Link::receive_one(MessageType type, size_t bytes_max, Duration timeout) {
  ESP_ASSIGN_OR_RETURN(const Message message, receive(bytes_max, timeout));
  if (is_reason(message.type))
    return fail(Status(StatusCode::kFailedPrecondition, std::string(message.payload)));
  if (message.type != type) return fail(unexpected(message.type));
  return message.payload;
}

Status Link::receive_exactly(MessageType type, std::span<char> to, Duration timeout) {
  ESP_ASSIGN_OR_RETURN(const Header header, receive_header(to.size(), timeout));
  if (header.type != type) return unexpected(header.type);
  if (header.size != to.size())
    return error(StatusCode::kDataLoss, "a node sent {} bytes of a sum of {}", header.size,
                 to.size());
  return stream_->read_exactly(to, timeout);
}

Result<Link::Polled> Link::poll(size_t bytes_max, Duration wait) {
  while (true) {
    const std::string_view buffered = stream_->buffered();
    if (buffered.size() >= kHeaderBytes) {
      const auto size = static_cast<size_t>(read_big_endian(buffered.substr(0, 4)));
      if (size > bytes_max) return fail(too_long(size, bytes_max));
      if (buffered.size() >= kHeaderBytes + size) {
        in_ = buffered.substr(kHeaderBytes, size);
        const auto type = static_cast<MessageType>(buffered[4]);
        stream_->consume(kHeaderBytes + size);
        return Polled{true, {type, in_}};
      }
    }
    const Result<bool> more = stream_->read_more(wait);
    if (!more && more.error().code() == StatusCode::kDeadlineExceeded) return Polled{};
    if (!more) return fail(more.error());
    if (!*more)
      return fail(error(StatusCode::kUnavailable, "the connection was closed by the other side"));
  }
}

}  // namespace espalier::nodes
