#include "checkpoint/gguf_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>

namespace espalier {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint32_t kDimensionsMax = 4;
// A key, and a tensor's entry, take at least this much of the file: no count asks for more memory.
constexpr uint64_t kEntryBytesMin = 8;

enum ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
  kValueTypesEnd
};

}  // namespace

// Reads the header from the front; every read is checked.
class GgufFile::Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  template <typename T>
  bool number(T& value) {
    if (left() < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }

  bool string(std::string_view& text) {
    uint64_t size = 0;
    if (!number(size) || size > left()) return false;
    text = {reinterpret_cast<const char*>(bytes_.data() + position_), static_cast<size_t>(size)};
    position_ += size;
    return true;
  }

  bool integer(uint32_t type, int64_t& value) {
    switch (type) {
      case kUint8:
        return integer_of<uint8_t>(value);
      case kInt8:
        return integer_of<int8_t>(value);
      case kUint16:
        return integer_of<uint16_t>(value);
      case kInt16:
        return integer_of<int16_t>(value);
      case kUint32:
        return integer_of<uint32_t>(value);
      case kInt32:
        return integer_of<int32_t>(value);
      case kUint64:
        return integer_of<uint64_t>(value);
      case kInt64:
        return integer_of<int64_t>(value);
      case kBool:
        return integer_of<uint8_t>(value) && value <= 1;
      default:
        return false;
    }
  }

  bool real(uint32_t type, double& value) {
    float single = 0;
    if (type == kFloat64) return number(value);
    if (!number(single)) return false;
    value = static_cast<double>(single);
    return true;
  }

  bool value(uint32_t type, GgufValue& out) {
    if (type == kArray) return array(out);
    if (type == kString) {
      std::string_view text;
      if (!string(text)) return false;
      out.value = text;
    } else if (type == kFloat32 || type == kFloat64) {
      double real_value = 0;
      if (!real(type, real_value)) return false;
      out.value = real_value;
    } else {
      int64_t integer_value = 0;
      if (!integer(type, integer_value)) return false;
      if (type == kBool) {
        out.value = integer_value != 0;
      } else {
        out.value = integer_value;
      }
    }
    return true;
  }

 private:
  template <typename T>
  bool integer_of(int64_t& value) {
    T narrow = 0;
    if (!number(narrow)) return false;
    if constexpr (sizeof(T) == 8 && !std::numeric_limits<T>::is_signed) {
      if (narrow > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
    }
    value = static_cast<int64_t>(narrow);
    return true;
  }

  template <typename List, typename Read>
  bool list(uint64_t count, GgufValue& out, Read read) {
    List items;
    items.reserve(static_cast<size_t>(std::min<uint64_t>(count, left())));
    for (uint64_t i = 0; i < count; ++i) {
      typename List::value_type item{};
      if (!read(item)) return false;
      items.push_back(item);
    }
    out.value = std::move(items);
    return true;
  }

  bool array(GgufValue& out) {
    uint32_t type = 0;
    uint64_t count = 0;
    // Every element takes a byte at least.
    if (!number(type) || !number(count) || count > left()) return false;
    if (type == kString) {
      return list<GgufValue::Strings>(count, out, [&](auto& item) { return string(item); });
    }
    if (type == kFloat32 || type == kFloat64) {
      return list<GgufValue::Numbers>(count, out, [&](auto& item) { return real(type, item); });
    }
    return list<GgufValue::Integers>(count, out, [&](auto& item) { return integer(type, item); });
  }

  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

int64_t GgufTensor::num_elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

Result<GgufFile> GgufFile::open(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::open(path));
  GgufFile file(std::move(mapped));
  if (Status status = file.read_header(); !status.ok())
    return fail(status.with_context(path.string()));
  return file;
}

Status GgufFile::read_header() {
  Reader reader(file_.bytes());
  uint32_t magic = 0, version = 0;
  uint64_t num_tensors = 0, num_keys = 0;
  if (!reader.number(magic) || magic != kMagic) {
    return error(StatusCode::kDataLoss, "this is no GGUF file: it does not begin with \"GGUF\"");
  }
  if (!reader.number(version) || version < 2 || version > 3) {
    const bool swapped = (version & 0xFFFF) == 0 && version != 0;
    return error(StatusCode::kUnimplemented, "GGUF version {} is not read{}", version,
                 swapped ? " (the file is big endian)" : "; convert the file to version 3");
  }
  if (!reader.number(num_tensors) || !reader.number(num_keys) ||
      num_tensors > reader.left() / kEntryBytesMin || num_keys > reader.left() / kEntryBytesMin) {
    return error(StatusCode::kDataLoss,
                 "the header claims {} tensors and {} keys, more than {} bytes hold; the file is "
                 "truncated or corrupt",
                 num_tensors, num_keys, file_.bytes().size());
  }
  for (uint64_t i = 0; i < num_keys; ++i) {
    std::string_view key;
    uint32_t type = 0;
    GgufValue value;
    const bool named = reader.string(key);
    const size_t begin = reader.position();
    if (!named || !reader.number(type)) {
      return error(StatusCode::kDataLoss, "metadata key {} of {} is cut short", i, num_keys);
    }
    if (type >= kValueTypesEnd) {
      return error(StatusCode::kDataLoss, "the metadata key '{}' is of the unknown type {}", key,
                   type);
    }
    if (!reader.value(type, value)) {
      return error(StatusCode::kDataLoss, "the metadata value of '{}' is malformed or cut short",
                   key);
    }
    entries_.push_back({key, file_.bytes().subspan(begin, reader.position() - begin)});
    if (!metadata_.emplace(key, std::move(value)).second) {
      return error(StatusCode::kDataLoss, "the metadata key '{}' stands twice", key);
    }
  }
  const int64_t alignment = integer("general.alignment").value_or(kDefaultAlignment);
  if (alignment <= 0 || alignment % 8 != 0 || alignment > (1 << 20)) {
    return error(StatusCode::kDataLoss, "'general.alignment' is {}", alignment);
  }
  return read_tensors(reader, num_tensors, static_cast<uint64_t>(alignment));
}

Status GgufFile::read_entry(Reader& reader, uint32_t num_dimensions, uint64_t alignment,
                            GgufTensor& tensor, uint64_t& offset) {
  const auto wrong = [&](std::string_view what) {
    return error(StatusCode::kDataLoss, "tensor '{}': {}", tensor.name, what);
  };
  if (num_dimensions > kDimensionsMax) {
    return wrong(
        fmt::format("{} dimensions are more than the format's {}", num_dimensions, kDimensionsMax));
  }
  uint64_t num_elements = 1;
  for (uint32_t d = 0; d < num_dimensions; ++d) {
    uint64_t extent = 0;
    if (!reader.number(extent)) return wrong("its entry is cut short");
    if (__builtin_mul_overflow(num_elements, extent, &num_elements) ||
        num_elements > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() / 16)) {
      return wrong("its shape holds more elements than any file");
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
  }
  uint32_t type_id = 0;
  if (!reader.number(type_id) || !reader.number(offset)) return wrong("its entry is cut short");
  tensor.type = find_block_type(type_id);
  if (tensor.type == nullptr) return wrong(fmt::format("its type {} is not known", type_id));
  const uint64_t row = tensor.shape.empty() ? 1 : static_cast<uint64_t>(tensor.shape.back());
  if (row % tensor.type->elements != 0) {
    return wrong(fmt::format("its rows of {} are no whole blocks of {} ({})", row,
                             tensor.type->elements, tensor.type->name));
  }
  if (offset % alignment != 0) {
    return wrong(fmt::format("its offset {} is not aligned to {}", offset, alignment));
  }
  return Status();
}

Status GgufFile::read_tensors(Reader& reader, uint64_t num_tensors, uint64_t alignment) {
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    GgufTensor tensor;
    uint32_t num_dimensions = 0;
    if (!reader.string(tensor.name) || !reader.number(num_dimensions)) {
      return error(StatusCode::kDataLoss, "the entry of tensor {} of {} is cut short", i,
                   num_tensors);
    }
    ESP_RETURN_IF_ERROR(
        read_entry(reader, num_dimensions, alignment, tensor, offsets.emplace_back()));
    tensors_.push_back(std::move(tensor));
  }
  // Data begins at the next aligned byte.
  const uint64_t data_begin = (reader.position() + alignment - 1) / alignment * alignment;
  ESP_RETURN_IF_ERROR(place_tensors(offsets, data_begin));
  return check_names();
}

Status GgufFile::place_tensors(const std::vector<uint64_t>& offsets, uint64_t data_begin) {
  const uint64_t file_bytes = file_.bytes().size();
  const uint64_t data_bytes = data_begin < file_bytes ? file_bytes - data_begin : 0;
  std::vector<size_t> order(tensors_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return offsets[a] < offsets[b]; });
  uint64_t filled = 0;
  for (const size_t i : order) {
    GgufTensor& tensor = tensors_[i];
    const uint64_t bytes =
        static_cast<uint64_t>(tensor.num_elements()) / tensor.type->elements * tensor.type->bytes;
    if (offsets[i] < filled) {
      return error(StatusCode::kDataLoss, "tensor '{}' at byte {} of the data overlaps another",
                   tensor.name, offsets[i]);
    }
    if (offsets[i] > data_bytes || bytes > data_bytes - offsets[i]) {
      return error(StatusCode::kDataLoss,
                   "tensor '{}' ({} bytes at {}) ends behind the file's {} bytes of data; it is "
                   "truncated: download it again",
                   tensor.name, bytes, offsets[i], data_bytes);
    }
    tensor.bytes = file_.bytes().subspan(data_begin + offsets[i], bytes);
    filled = offsets[i] + bytes;
  }
  return Status();
}

Status GgufFile::check_names() const {
  std::vector<std::string_view> names;
  for (const GgufTensor& tensor : tensors_) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return Status();
  return error(StatusCode::kDataLoss, "the tensor '{}' stands twice", *twice);
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

std::optional<int64_t> GgufFile::integer(std::string_view key) const {
  const GgufValue* value = find(key);
  const int64_t* integer = value != nullptr ? std::get_if<int64_t>(&value->value) : nullptr;
  return integer != nullptr ? std::optional(*integer) : std::nullopt;
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const double* number = std::get_if<double>(&value->value)) return *number;
  const std::optional<int64_t> whole = integer(key);
  return whole ? std::optional(static_cast<double>(*whole)) : std::nullopt;
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const GgufValue* value = find(key);
  const bool* boolean = value != nullptr ? std::get_if<bool>(&value->value) : nullptr;
  return boolean != nullptr ? std::optional(*boolean) : std::nullopt;
}

std::optional<std::string_view> GgufFile::string(std::string_view key) const {
  const GgufValue* value = find(key);
  const auto* text = value != nullptr ? std::get_if<std::string_view>(&value->value) : nullptr;
  return text != nullptr ? std::optional(*text) : std::nullopt;
}

const GgufValue::Strings* GgufFile::strings(std::string_view key) const {
  const GgufValue* value = find(key);
  return value != nullptr ? std::get_if<GgufValue::Strings>(&value->value) : nullptr;
}

std::vector<double> GgufFile::numbers(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return {};
  if (const auto* numbers = std::get_if<GgufValue::Numbers>(&value->value)) return *numbers;
  if (const auto* integers = std::get_if<GgufValue::Integers>(&value->value)) {
    return {integers->begin(), integers->end()};
  }
  return {};
}

Result<std::vector<std::filesystem::path>> gguf_parts(const std::filesystem::path& path) {
  // "-00001-of-00003.gguf": 20 characters.
  constexpr size_t kSuffixSize = 20;
  const std::string name = path.filename().string();
  if (name.size() <= kSuffixSize) return std::vector{path};
  const std::string suffix = name.substr(name.size() - kSuffixSize);
  int part = 0, count = 0;
  const auto digits = [&](size_t at, int& out) {
    const char* begin = suffix.data() + at;
    return std::from_chars(begin, begin + 5, out).ptr == begin + 5;
  };
  if (suffix[0] != '-' || suffix.substr(6, 4) != "-of-" || suffix.substr(15) != ".gguf" ||
      !digits(1, part) || !digits(10, count) || count < 1) {
    return std::vector{path};
  }
  std::vector<std::filesystem::path> parts;
  for (int i = 1; i <= count; ++i) {
    parts.push_back(path.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf",
                                                     name.substr(0, name.size() - kSuffixSize), i,
                                                     count));
    std::error_code ignored;
    if (!std::filesystem::exists(parts.back(), ignored)) {
      return fail(error(StatusCode::kNotFound, "{} is part {} of {}, and {} is not beside it",
                        path.string(), part, count, parts.back().string()));
    }
  }
  return parts;
}

}  // namespace espalier
