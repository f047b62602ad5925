// Fields of messages between nodes, to bytes and from any bytes. Integers are big-endian.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/big_endian.h"

namespace espalier::nodes {

inline constexpr size_t kTextBytesMax = 4096;

// Takes fields off the front of a payload. Behind its end, and behind a field that its bounds
// refuse, every field is zero and ok() is false. Borrows the bytes.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  std::string_view take(size_t count) {
    if (count > bytes_.size()) {
      refuse();
      return {};
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <typename T>
  T number() {
    return static_cast<T>(read_big_endian(take(sizeof(T))));
  }
  // Of at least `low` and at most `high`.
  int32_t number_in(int32_t low, int32_t high) {
    const auto value = number<int32_t>();
    if (value >= low && value <= high) return value;
    refuse();
    return 0;
  }
  bool flag() { return number_in<uint8_t>(1) == 1; }
  std::string text() {
    const auto count = number<uint32_t>();
    if (count > kTextBytesMax) refuse();
    return std::string(ok_ ? take(count) : std::string_view());
  }
  template <size_t N>
  std::array<uint8_t, N> array() {
    std::array<uint8_t, N> to{};
    std::ranges::copy(take(N), to.begin());
    return to;
  }
  // How many elements follow, of at least so many bytes each, at most count_max.
  size_t count(size_t element_bytes_min, size_t count_max = std::numeric_limits<size_t>::max()) {
    const auto count = number<uint32_t>();
    if (count > bytes_.size() / element_bytes_min || count > count_max) refuse();
    return ok_ ? count : 0;
  }
  // A count and so many integers of `low` to `high`, behind what `to` has.
  void append_ints(std::vector<int32_t>& to, size_t count_max, int32_t low, int32_t high) {
    const size_t num = count(sizeof(int32_t), count_max);
    for (size_t i = 0; i < num; ++i) to.push_back(number_in(low, high));
  }
  void refuse() {
    ok_ = false;
    bytes_ = {};
  }
  bool ok() const { return ok_; }
  bool complete() const { return ok_ && bytes_.empty(); }

 private:
  template <typename T>
  T number_in(T high) {
    const T value = number<T>();
    if (value > high) refuse();
    return ok_ ? value : T{};
  }

  std::string_view bytes_;
  bool ok_ = true;
};

inline void append_int(std::string& out, int32_t value) {
  append_big_endian(out, static_cast<uint32_t>(value), 4);
}
inline void append_text(std::string& out, std::string_view text) {
  text = text.substr(0, kTextBytesMax);
  append_big_endian(out, text.size(), 4);
  out += text;
}
template <typename Ints>
void append_ints(std::string& out, const Ints& values) {
  append_big_endian(out, values.size(), 4);
  for (const int32_t value : values) append_int(out, value);
}

}  // namespace espalier::nodes
