#include "text/unicode/utf8.h"

#include <cstring>

#include "base/check.h"

namespace espalier {

namespace {

// What may follow a lead byte: the number of continuation bytes and the range of the first one
// (Unicode 15, table 3-7).
struct Lead {
  uint32_t num_continuations;
  uint8_t second_low, second_high;
};

Lead lead_of(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

// Appends the characters of `text`, up to a character that its end cuts; returns where that starts.
size_t append_valid(std::string_view text, std::string& out) {
  size_t begin = 0, position = 0;
  while ((position = skip_ascii(text, position)) < text.size()) {
    const Utf8Char c = decode_utf8(text, position);
    if (c.valid) {
      position += c.size;
      continue;
    }
    out.append(text, begin, position - begin);
    if (c.cut) return position;
    out += kReplacementUtf8;
    position += c.size;
    begin = position;
  }
  out.append(text, begin, text.size() - begin);
  return text.size();
}

}  // namespace

Utf8Char decode_utf8(std::string_view text, size_t position) {
  ESP_DCHECK(position < text.size());
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {first, 1, true, false};
  const Lead lead = lead_of(first);
  if (lead.num_continuations == 0) return {kReplacementCharacter, 1, false, false};
  char32_t code = first & (0x3F >> lead.num_continuations);
  for (uint32_t i = 1; i <= lead.num_continuations; ++i) {
    if (position + i >= text.size()) return {kReplacementCharacter, i, false, true};
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {kReplacementCharacter, i, false, false};
    code = (code << 6) | (byte(i) & 0x3F);
  }
  return {code, lead.num_continuations + 1, true, false};
}

size_t skip_ascii(std::string_view text, size_t position) {
  constexpr uint64_t kHighBits = 0x8080808080808080ull;
  while (position + 8 <= text.size()) {
    uint64_t eight = 0;
    std::memcpy(&eight, text.data() + position, 8);
    if ((eight & kHighBits) != 0) break;
    position += 8;
  }
  while (position < text.size() && static_cast<uint8_t>(text[position]) < 0x80) ++position;
  return position;
}

size_t utf8_length(char32_t code) {
  return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}

void append_utf8(char32_t code, std::string& out) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  switch (utf8_length(code)) {
    case 1:
      return put(code);
    case 2:
      put(0xC0 | (code >> 6));
      return put(0x80 | (code & 0x3F));
    case 3:
      put(0xE0 | (code >> 12));
      put(0x80 | ((code >> 6) & 0x3F));
      return put(0x80 | (code & 0x3F));
    default:
      put(0xF0 | (code >> 18));
      put(0x80 | ((code >> 12) & 0x3F));
      put(0x80 | ((code >> 6) & 0x3F));
      return put(0x80 | (code & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) {
  for (size_t position = skip_ascii(text, 0); position < text.size();
       position = skip_ascii(text, position)) {
    const Utf8Char c = decode_utf8(text, position);
    if (!c.valid) return false;
    position += c.size;
  }
  return true;
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (append_valid(text, out) < text.size()) out += kReplacementUtf8;
  return out;
}

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  // Completes the pending character byte by byte, then takes the rest at once.
  while (pending_size_ > 0 && !bytes.empty()) {
    pending_[pending_size_++] = bytes.front();
    const Utf8Char c = decode_utf8({pending_, pending_size_}, 0);
    if (c.cut) {
      bytes.remove_prefix(1);
      continue;
    }
    if (c.valid) {
      out.append(pending_, pending_size_);
      bytes.remove_prefix(1);
    } else {
      out += kReplacementUtf8;  // replaces the pending bytes; the new byte begins a character
    }
    pending_size_ = 0;
  }
  const size_t rest = append_valid(bytes, out);
  if (rest < bytes.size()) {
    pending_size_ = static_cast<uint32_t>(bytes.size() - rest);
    std::memcpy(pending_, bytes.data() + rest, pending_size_);
  }
}

void Utf8Stream::flush(std::string& out) {
  if (pending_size_ > 0) out += kReplacementUtf8;
  pending_size_ = 0;
}

}  // namespace espalier
