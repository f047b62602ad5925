#include "server/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace espalier::server {

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// The bytes of the character beyond ASCII that `text` begins with; 0 when it begins with none: a
// stray or missing continuation, an overlong form, a surrogate, or beyond U+10FFFF (Unicode 15,
// table 3-7).
size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned lead = byte(0), second = byte(1);
  const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (second < low || second > high) return 0;
  for (size_t i = 2; i < size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return size;
}

}  // namespace

// Texts come from clients, paths and models, so bytes that are no UTF-8 are replaced here: no
// answer is JSON that a client cannot decode.
void append_json_string(std::string& out, std::string_view text) {
  out.push_back('"');
  size_t begin = 0;  // of the run that needs no escape
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') continue;
    if (const size_t size = c < 0x80 ? 0 : character_bytes(text.substr(i)); size > 0) {
      i += size - 1;
      continue;
    }
    out.append(text.substr(begin, i - begin));
    begin = i + 1;
    if (c >= 0x80) {
      out += kReplacement;
      continue;
    }
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
    }
  }
  out.append(text.substr(begin));
  out.push_back('"');
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
  } else {
    fmt::format_to(std::back_inserter(out), "{}", value);
  }
}

void append_json_number(std::string& out, float value) {
  if (!std::isfinite(value)) {
    out += "null";
  } else {
    fmt::format_to(std::back_inserter(out), "{}", value);
  }
}

}  // namespace espalier::server
