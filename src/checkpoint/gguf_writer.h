// For tests: GGUF files made by hand. Keys and tensors are written in the order of the calls. One
// writer is used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  GgufWriter& integer(std::string_view key, uint32_t value) { return scalar(key, 4, value); }
  GgufWriter& real(std::string_view key, float value) { return scalar(key, 6, value); }
  GgufWriter& boolean(std::string_view key, bool value) {
    return scalar(key, 7, static_cast<uint8_t>(value));
  }
  GgufWriter& string(std::string_view key, std::string_view value) {
    begin(key, 8);
    put_string(keys_, value);
    return *this;
  }
  GgufWriter& strings(std::string_view key, const std::vector<std::string>& values) {
    begin_array(key, 8, values.size());
    for (const std::string& value : values) put_string(keys_, value);
    return *this;
  }
  template <typename T>
  GgufWriter& array(std::string_view key, uint32_t type, const std::vector<T>& values) {
    begin_array(key, type, values.size());
    for (const T value : values) put(keys_, value);
    return *this;
  }
  // Anything: the bytes of a type and its value.
  GgufWriter& raw(std::string_view key, uint32_t type, std::string_view bytes) {
    begin(key, type);
    keys_ += bytes;
    return *this;
  }

  // `shape`: rows first.
  GgufWriter& tensor(std::string_view name, uint32_t type, const std::vector<int64_t>& shape,
                     std::string_view bytes) {
    data_.resize((data_.size() + 31) / 32 * 32, '\0');
    return tensor_at(name, type, shape, data_.size(), bytes);
  }
  GgufWriter& tensor_at(std::string_view name, uint32_t type, const std::vector<int64_t>& shape,
                        uint64_t offset, std::string_view bytes) {
    put_string(tensors_, name);
    put(tensors_, static_cast<uint32_t>(shape.size()));
    for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent) put(tensors_, *extent);
    put(tensors_, type);
    put(tensors_, offset);
    data_ += bytes;
    ++num_tensors_;
    return *this;
  }

  std::string bytes() const {
    std::string out = "GGUF";
    put(out, version_);
    put(out, num_tensors_);
    put(out, num_keys_);
    out += keys_ + tensors_;
    out.resize((out.size() + 31) / 32 * 32, '\0');
    return out + data_;
  }

 private:
  template <typename T>
  static void put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  static void put_string(std::string& out, std::string_view text) {
    put(out, static_cast<uint64_t>(text.size()));
    out += text;
  }
  void begin(std::string_view key, uint32_t type) {
    put_string(keys_, key);
    put(keys_, type);
    ++num_keys_;
  }
  void begin_array(std::string_view key, uint32_t type, size_t count) {
    begin(key, 9);
    put(keys_, type);
    put(keys_, static_cast<uint64_t>(count));
  }
  template <typename T>
  GgufWriter& scalar(std::string_view key, uint32_t type, T value) {
    begin(key, type);
    put(keys_, value);
    return *this;
  }

  const uint32_t version_;
  uint64_t num_tensors_ = 0, num_keys_ = 0;
  std::string keys_, tensors_, data_;
};

}  // namespace espalier
