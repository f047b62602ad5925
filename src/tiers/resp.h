// RESP2, the protocol of Redis and Valkey, as far as a client of pages needs it: commands as arrays
// of strings, and the first line of each reply. What follows that line (a string's bytes, an
// array's elements) is read by the caller, so that a page goes from the socket to its buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace espalier {

// The most bytes of a reply's first line, and of a string in a reply (the server's own limit).
inline constexpr size_t kRespLineMax = 4096;
inline constexpr int64_t kRespStringMax = 512 << 20;

enum class RespType : uint8_t {
  kSimple,  // "+text"
  kError,   // "-text"
  kNumber,  // ":number"
  kString,  // "$number": a string of so many bytes and "\r\n" follow; -1: there is none
  kArray,   // "*number": so many replies follow; -1: there is none
};

struct RespLine {
  RespType type = RespType::kSimple;
  int64_t number = 0;
  std::string_view text;  // of kSimple and kError, within the input
  size_t size = 0;        // bytes of the input, "\r\n" included
};

// The reply's first line at the start of `in`; none where more bytes are needed. kDataLoss: this is
// no reply of RESP2.
Result<std::optional<RespLine>> parse_resp_line(std::string_view in);

// Appends a command of these words.
void append_resp_command(std::string& out, std::initializer_list<std::string_view> words);

}  // namespace espalier
