// MessagePack, the binary form of JSON in which vLLM and SGLang publish events of their caches:
// values appended to bytes, and read from bytes one token at a time. Its C++ library is not used
// because its package conflicts with Boost's where Boost is not the distribution's default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

// Appends values to `out`, which outlives it, each in its shortest form. The writer does not count:
// an array of n is followed by n values.
class MsgpackWriter {
 public:
  explicit MsgpackWriter(std::string& out) : out_(out) {}

  void nil() { out_ += '\xc0'; }
  void integer(int64_t value);
  void unsigned_integer(uint64_t value);
  void number(double value);
  void text(std::string_view value);   // UTF-8
  void bytes(std::string_view value);  // any
  void array(size_t size);

 private:
  // The lead byte, then the low `size` bytes of `value`, big-endian.
  void put(uint8_t lead, uint64_t value, size_t size);
  // Behind the lead byte of sizes of 1 byte, or the next or next but one for 2 and 4 bytes.
  void put_size(uint8_t lead, size_t size);
  std::string& out_;
};

// One token: a value, or the head of an array or map, whose members follow as tokens.
struct MsgpackToken {
  enum class Type : uint8_t { kNil, kBool, kInteger, kNumber, kText, kBytes, kArray, kMap };
  Type type = Type::kNil;
  uint64_t bits = 0;      // kBool: 0 or 1; kInteger: in two's complement
  double number = 0;      // kNumber
  std::string_view text;  // kText, kBytes: within what is read
  size_t size = 0;        // kArray: of its values; kMap: of its pairs

  bool is_text(std::string_view value) const { return type == Type::kText && text == value; }
};

// Reads bytes that another process wrote: nothing is allocated, whatever sizes they state, and
// nesting costs no stack. The bytes outlive the reader. Extension types are read as kBytes.
class MsgpackReader {
 public:
  explicit MsgpackReader(std::string_view bytes) : left_(bytes) {}

  // False at the end and at what is cut off or malformed; then nothing more is read.
  [[nodiscard]] bool next(MsgpackToken& token);
  // Passes over one whole value; false as for next().
  [[nodiscard]] bool skip();
  bool at_end() const { return left_.empty(); }

 private:
  bool take(size_t size, uint64_t& value);  // big-endian
  bool take_text(uint64_t size, MsgpackToken& token, MsgpackToken::Type type);
  bool read_sized(uint8_t lead, MsgpackToken& token);
  bool read_number(uint8_t lead, MsgpackToken& token);
  std::string_view left_;
};

}  // namespace espalier
