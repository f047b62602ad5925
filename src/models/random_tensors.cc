#include "models/random_tensors.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"

namespace espalier {
namespace {

Status write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0)
      return error(StatusCode::kResourceExhausted, "random weights are not written: {}",
                   std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return Status();
}

// Names of tensors have no characters that JSON escapes; one that has is refused.
Result<std::string> header_of(const Checkpoint& like) {
  std::string json = "{";
  int64_t end = 0;
  for (const CheckpointTensor& tensor : like.tensors()) {
    const bool is_plain = tensor.dtype.has_value() && tensor.reader == nullptr;
    if (!is_plain || tensor.name.find_first_of("\"\\") != std::string::npos)
      return fail(error(StatusCode::kUnimplemented,
                        "tensor '{}' is held as {}, and random values are of F32, F16 and BF16",
                        tensor.name, tensor.dtype_name));
    const int64_t begin = end;
    end += tensor.num_elements() * static_cast<int64_t>(dtype_size(*tensor.dtype));
    json += fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                        json.size() > 1 ? "," : "", tensor.name, dtype_name(*tensor.dtype),
                        shape_string(tensor.shape), begin, end);
  }
  json += '}';
  json.resize((json.size() + 7) / 8 * 8, ' ');
  return json;
}

// An exponent of 2^-6, and a sign and fraction that are drawn.
template <typename Bits>
void fill(std::string& out, int64_t count, Bits exponent, Bits fraction_mask, Rng& rng) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  out.resize(static_cast<size_t>(count) * sizeof(Bits));
  for (int64_t i = 0; i < count; ++i) {
    const auto drawn = static_cast<Bits>(rng());
    const auto bits = static_cast<Bits>(exponent | (drawn & (kSign | fraction_mask)));
    std::memcpy(out.data() + static_cast<size_t>(i) * sizeof(Bits), &bits, sizeof(Bits));
  }
}

void fill(std::string& out, int64_t count, DType type, Rng& rng) {
  switch (type) {
    case DType::kFloat32:
      return fill<uint32_t>(out, count, 0x3c800000, 0x007fffff, rng);
    case DType::kBFloat16:
      return fill<uint16_t>(out, count, 0x3c80, 0x007f, rng);
    case DType::kFloat16:
      return fill<uint16_t>(out, count, 0x2400, 0x03ff, rng);
  }
}

}  // namespace

Status write_random_tensors(const Checkpoint& like, uint64_t seed, int fd) {
  static_assert(std::endian::native == std::endian::little);
  constexpr int64_t kBlock = int64_t{1} << 20;  // elements
  ESP_ASSIGN_OR_RETURN(const std::string header, header_of(like));
  const uint64_t size = header.size();
  ESP_RETURN_IF_ERROR(
      write_all(fd, std::string_view(reinterpret_cast<const char*>(&size), sizeof(size))));
  ESP_RETURN_IF_ERROR(write_all(fd, header));
  Rng rng(seed);
  std::string block;
  for (const CheckpointTensor& tensor : like.tensors())
    for (int64_t left = tensor.num_elements(); left > 0; left -= kBlock) {
      fill(block, std::min(left, kBlock), *tensor.dtype, rng);
      ESP_RETURN_IF_ERROR(write_all(fd, block));
    }
  return Status();
}

Status with_random_tensors(const Checkpoint& like, uint64_t seed,
                           const std::function<Status(const std::filesystem::path&)>& use) {
  const int fd = ::memfd_create("random-tensors", MFD_CLOEXEC);
  if (fd < 0) return error(StatusCode::kResourceExhausted, "there is no memory for a file");
  Status status = write_random_tensors(like, seed, fd);
  if (status.ok()) status = use(fmt::format("/proc/self/fd/{}", fd));
  ::close(fd);
  return status;
}

}  // namespace espalier
