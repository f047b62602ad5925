#include "router/protobuf.h"

namespace espalier::router {

namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

}  // namespace

bool ProtoReader::read_varint(uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return true;
  }
  return broken();
}

bool ProtoReader::read_fixed(size_t size, uint64_t& value) {
  if (rest_.size() < size) return broken();
  value = 0;
  for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(rest_[i]);
  rest_.remove_prefix(size);
  return true;
}

bool ProtoReader::next(ProtoField& field) {
  uint64_t tag = 0;
  if (!ok_ || rest_.empty() || !read_varint(tag)) return false;
  field = {.number = static_cast<uint32_t>(tag >> 3)};
  switch (tag & 7) {
    case kVarint:
      return read_varint(field.value);
    case kFixed64:
      return read_fixed(8, field.value);
    case kFixed32:
      return read_fixed(4, field.value);
    case kBytes: {
      uint64_t size = 0;
      if (!read_varint(size)) return false;
      if (size > rest_.size()) return broken();
      field.bytes = rest_.substr(0, size);
      rest_.remove_prefix(size);
      return true;
    }
    default:
      return broken();
  }
}

void put_number(std::string& message, uint32_t number, uint64_t value) {
  put_varint(message, uint64_t{number} << 3 | kVarint);
  put_varint(message, value);
}

void put_bytes(std::string& message, uint32_t number, std::string_view bytes) {
  put_varint(message, uint64_t{number} << 3 | kBytes);
  put_varint(message, bytes.size());
  message += bytes;
}

}  // namespace espalier::router
