#include "checkpoint/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/json_object.h"

namespace espalier {
namespace {

// The limit of the format's own library; a larger length is a corrupt file.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kLengthBytes = 8;

// Types by name, with the bits of an element. Sub-byte types fill whole bytes together.
struct TypeBits {
  std::string_view name;
  uint64_t bits;
};
constexpr TypeBits kTypes[] = {
    {"F64", 64},    {"F32", 32}, {"BF16", 16}, {"F16", 16},    {"I64", 64},
    {"I32", 32},    {"I16", 16}, {"I8", 8},    {"U64", 64},    {"U32", 32},
    {"U16", 16},    {"U8", 8},   {"BOOL", 8},  {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"C64", 64}, {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

std::optional<uint64_t> bits_of(std::string_view dtype_name) {
  for (const TypeBits& type : kTypes) {
    if (type.name == dtype_name) return type.bits;
  }
  return std::nullopt;
}

// Bytes of a tensor, nothing when they overflow or are no whole number.
std::optional<uint64_t> tensor_bytes(const std::vector<int64_t>& shape, uint64_t bits) {
  uint64_t total = bits;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(total, static_cast<uint64_t>(extent), &total)) {
      return std::nullopt;
    }
  }
  if (total % 8 != 0) return std::nullopt;
  return total / 8;
}

struct Placed {
  CheckpointTensor tensor;
  uint64_t begin = 0, end = 0;  // into the data that follows the header
};

Result<Placed> read_entry(const JsonObject& header, std::string_view name) {
  Placed placed;
  placed.tensor.name = name;
  ESP_ASSIGN_OR_RETURN(const JsonObject entry, header.object(name));
  ESP_ASSIGN_OR_RETURN(placed.tensor.dtype_name, entry.string("dtype"));
  ESP_ASSIGN_OR_RETURN(placed.tensor.shape, entry.integers("shape"));
  ESP_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, entry.integers("data_offsets"));
  placed.tensor.dtype = parse_dtype(placed.tensor.dtype_name);
  const std::optional<uint64_t> bits = bits_of(placed.tensor.dtype_name);
  if (!bits) {
    return fail(entry.field_error(
        "dtype", fmt::format("is '{}', which is not known", placed.tensor.dtype_name)));
  }
  if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0]) {
    return fail(entry.field_error("data_offsets", "must be two offsets, the first the smaller"));
  }
  placed.begin = static_cast<uint64_t>(offsets[0]);
  placed.end = static_cast<uint64_t>(offsets[1]);
  const std::optional<uint64_t> bytes = tensor_bytes(placed.tensor.shape, *bits);
  if (!bytes || *bytes != placed.end - placed.begin) {
    return fail(entry.field_error(
        "data_offsets", fmt::format("span {} bytes, which is not what the shape {} in {} takes",
                                    placed.end - placed.begin, shape_string(placed.tensor.shape),
                                    placed.tensor.dtype_name)));
  }
  return placed;
}

}  // namespace

int64_t CheckpointTensor::num_elements() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::string shape_string(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::open(path));
  SafetensorsFile file(std::move(mapped));
  if (Status status = file.read_header(); !status.ok()) {
    // Whatever is wrong inside is the file's fault, not the caller's.
    return fail(Status(
        status.code() == StatusCode::kResourceExhausted ? status.code() : StatusCode::kDataLoss,
        status.message()));
  }
  return file;
}

Status SafetensorsFile::read_header() {
  const std::string where = path().string();
  const std::span<const std::byte> bytes = file_.bytes();
  if (bytes.size() < kLengthBytes) {
    return error(StatusCode::kDataLoss, "{}: {} bytes are too few for a safetensors file", where,
                 bytes.size());
  }
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    header_bytes |= static_cast<uint64_t>(bytes[i]) << (8 * i);
  }
  if (header_bytes > kMaxHeaderBytes) {
    return error(StatusCode::kDataLoss,
                 "{}: the header claims {} bytes, more than the format's {}; this is not a "
                 "safetensors file, or it is corrupt",
                 where, header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > bytes.size() - kLengthBytes) {
    return error(StatusCode::kDataLoss,
                 "{}: the header claims {} bytes and the file has {} in all; it is truncated or "
                 "corrupt",
                 where, header_bytes, bytes.size());
  }
  ESP_ASSIGN_OR_RETURN(const JsonObject header,
                       JsonObject::parse(file_.text().substr(kLengthBytes, header_bytes),
                                         where + ": header", DuplicateKeys::kError));

  std::vector<Placed> placed;
  for (const std::string_view name : header.keys()) {
    if (name == "__metadata__") continue;  // free text about the file
    ESP_ASSIGN_OR_RETURN(Placed one, read_entry(header, name));
    placed.push_back(std::move(one));
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });

  const std::span<const std::byte> data = bytes.subspan(kLengthBytes + header_bytes);
  uint64_t filled = 0;
  for (Placed& one : placed) {
    if (one.begin != filled) {
      return error(StatusCode::kDataLoss,
                   "{}: tensor '{}' starts at byte {} of the data where {} was expected: {}", where,
                   one.tensor.name, one.begin, filled,
                   one.begin < filled ? "it overlaps another" : "there is a gap");
    }
    if (one.end > data.size()) {
      return error(StatusCode::kDataLoss,
                   "{}: tensor '{}' ends at byte {} of the data and the file has {}; it is "
                   "truncated: download it again",
                   where, one.tensor.name, one.end, data.size());
    }
    one.tensor.bytes = data.subspan(one.begin, one.end - one.begin);
    filled = one.end;
    tensors_.push_back(std::move(one.tensor));
  }
  if (filled != data.size()) {
    return error(StatusCode::kDataLoss, "{}: {} bytes follow the last tensor", where,
                 data.size() - filled);
  }
  return Status();
}

}  // namespace espalier
