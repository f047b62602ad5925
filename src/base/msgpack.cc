#include "base/msgpack.h"

#include <bit>
#include <limits>

#include "base/big_endian.h"

namespace espalier {

using MsgpackType = MsgpackToken::Type;

void MsgpackWriter::put(uint8_t lead, uint64_t value, size_t size) {
  out_ += static_cast<char>(lead);
  append_big_endian(out_, value, size);
}

void MsgpackWriter::put_size(uint8_t lead, size_t size) {
  if (size <= std::numeric_limits<uint8_t>::max()) return put(lead, size, 1);
  if (size <= std::numeric_limits<uint16_t>::max()) return put(lead + 1, size, 2);
  put(lead + 2, size, 4);
}

void MsgpackWriter::unsigned_integer(uint64_t value) {
  if (value < 0x80) return put(static_cast<uint8_t>(value), 0, 0);
  if (value <= std::numeric_limits<uint8_t>::max()) return put(0xcc, value, 1);
  if (value <= std::numeric_limits<uint16_t>::max()) return put(0xcd, value, 2);
  if (value <= std::numeric_limits<uint32_t>::max()) return put(0xce, value, 4);
  put(0xcf, value, 8);
}

void MsgpackWriter::integer(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0) return unsigned_integer(bits);
  if (value >= -32) return put(static_cast<uint8_t>(bits & 0xff), 0, 0);
  if (value >= std::numeric_limits<int8_t>::min()) return put(0xd0, bits, 1);
  if (value >= std::numeric_limits<int16_t>::min()) return put(0xd1, bits, 2);
  if (value >= std::numeric_limits<int32_t>::min()) return put(0xd2, bits, 4);
  put(0xd3, bits, 8);
}

void MsgpackWriter::number(double value) { put(0xcb, std::bit_cast<uint64_t>(value), 8); }

void MsgpackWriter::text(std::string_view value) {
  const size_t n = value.size();
  if (n < 32) {
    put(static_cast<uint8_t>(0xa0 | n), 0, 0);
  } else {
    put_size(0xd9, n);
  }
  out_ += value;
}

void MsgpackWriter::bytes(std::string_view value) {
  put_size(0xc4, value.size());
  out_ += value;
}

void MsgpackWriter::array(size_t size) {
  if (size < 16) return put(static_cast<uint8_t>(0x90 | size), 0, 0);
  if (size <= 0xffff) return put(0xdc, size, 2);
  put(0xdd, size, 4);
}

bool MsgpackReader::take(size_t size, uint64_t& value) {
  if (left_.size() < size) return false;
  value = read_big_endian(left_.substr(0, size));
  left_.remove_prefix(size);
  return true;
}

bool MsgpackReader::take_text(uint64_t size, MsgpackToken& token, MsgpackType type) {
  if (left_.size() < size) return false;
  token.type = type;
  token.text = left_.substr(0, size);
  left_.remove_prefix(size);
  return true;
}

// 0xca to 0xd3: floats, unsigned integers of 1 to 8 bytes, signed ones.
bool MsgpackReader::read_number(uint8_t lead, MsgpackToken& token) {
  if (lead == 0xca || lead == 0xcb) {
    uint64_t bits = 0;
    if (!take(lead == 0xca ? 4 : 8, bits)) return false;
    token.type = MsgpackType::kNumber;
    token.number = lead == 0xca ? std::bit_cast<float>(static_cast<uint32_t>(bits))
                                : std::bit_cast<double>(bits);
    return true;
  }
  token.type = MsgpackType::kInteger;
  const bool is_signed = lead >= 0xd0;
  const size_t size = size_t{1} << (lead - (is_signed ? 0xd0 : 0xcc));
  if (!take(size, token.bits)) return false;
  const size_t unused = 64 - 8 * size;
  if (is_signed)
    token.bits = static_cast<uint64_t>(static_cast<int64_t>(token.bits << unused) >> unused);
  return true;
}

// Values behind a size of 1, 2 or 4 bytes, and extension types of fixed size.
bool MsgpackReader::read_sized(uint8_t lead, MsgpackToken& token) {
  uint64_t size = 0;
  if (lead >= 0xd4 && lead <= 0xd8)  // the type's byte and 1 to 16 bytes
    return take_text(1 + (uint64_t{1} << (lead - 0xd4)), token, MsgpackType::kBytes);
  if (lead >= 0xc4 && lead <= 0xc6)
    return take(size_t{1} << (lead - 0xc4), size) && take_text(size, token, MsgpackType::kBytes);
  if (lead >= 0xc7 && lead <= 0xc9)
    return take(size_t{1} << (lead - 0xc7), size) &&
           take_text(size + 1, token, MsgpackType::kBytes);
  if (lead >= 0xd9 && lead <= 0xdb)
    return take(size_t{1} << (lead - 0xd9), size) && take_text(size, token, MsgpackType::kText);
  token.type = lead <= 0xdd ? MsgpackType::kArray : MsgpackType::kMap;
  if (!take(lead == 0xdc || lead == 0xde ? 2 : 4, size)) return false;
  token.size = size;
  return true;
}

bool MsgpackReader::next(MsgpackToken& token) {
  token = {};
  uint64_t first = 0;
  if (!take(1, first)) return false;
  const auto lead = static_cast<uint8_t>(first);
  bool read = true;
  if (lead < 0x80 || lead >= 0xe0) {
    token.type = MsgpackType::kInteger;
    token.bits = static_cast<uint64_t>(int64_t{static_cast<int8_t>(lead)});
  } else if (lead < 0xa0) {
    token.type = lead < 0x90 ? MsgpackType::kMap : MsgpackType::kArray;
    token.size = lead & 0x0f;
  } else if (lead < 0xc0) {
    read = take_text(lead & 0x1f, token, MsgpackType::kText);
  } else if (lead == 0xc2 || lead == 0xc3) {
    token.type = MsgpackType::kBool;
    token.bits = lead & 1;
  } else if (lead >= 0xca && lead <= 0xd3) {
    read = read_number(lead, token);
  } else if (lead == 0xc1) {
    read = false;  // never used
  } else if (lead != 0xc0) {
    read = read_sized(lead, token);
  }
  if (!read) left_ = {};
  return read;
}

bool MsgpackReader::skip() {
  MsgpackToken token;
  // Each token takes a byte at least, so the sum stays far below 2^64.
  for (uint64_t wanted = 1; wanted > 0; --wanted) {
    if (!next(token)) return false;
    wanted += token.type == MsgpackType::kMap ? 2 * token.size : token.size;
  }
  return true;
}

}  // namespace espalier
