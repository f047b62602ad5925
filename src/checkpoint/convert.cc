#include "checkpoint/convert.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace espalier {
namespace {

const std::byte* begin_of(const CheckpointTensor& tensor, int64_t first, size_t count) {
  ESP_CHECK(tensor.dtype.has_value(), "{} is {}", tensor.name, tensor.dtype_name);
  const size_t size = dtype_size(*tensor.dtype);
  const size_t offset = static_cast<size_t>(first) * size;
  ESP_CHECK(
      first >= 0 && offset <= tensor.bytes.size() && count <= (tensor.bytes.size() - offset) / size,
      "{}: [{}, +{}) lies outside", tensor.name, first, count);
  return tensor.bytes.data() + offset;
}

template <typename T>
T load(const std::byte* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

void copy_as_float(const CheckpointTensor& tensor, int64_t first, std::span<float> out) {
  if (tensor.reader != nullptr) return tensor.reader->read(first, out);
  const std::byte* from = begin_of(tensor, first, out.size());
  switch (*tensor.dtype) {
    case DType::kFloat32:
      if (!out.empty()) std::memcpy(out.data(), from, out.size_bytes());
      return;
    case DType::kBFloat16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(load<BFloat16>(from, i));
      return;
    case DType::kFloat16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = to_float(load<Float16>(from, i));
      return;
  }
}

void copy_as_bfloat16(const CheckpointTensor& tensor, int64_t first, std::span<BFloat16> out) {
  if (tensor.reader != nullptr) {
    std::array<float, 4096> values;
    for (size_t done = 0; done < out.size();) {
      const size_t count = std::min(values.size(), out.size() - done);
      tensor.reader->read(first + static_cast<int64_t>(done), std::span(values).first(count));
      for (size_t i = 0; i < count; ++i) out[done + i] = to_bfloat16(values[i]);
      done += count;
    }
    return;
  }
  const std::byte* from = begin_of(tensor, first, out.size());
  switch (*tensor.dtype) {
    case DType::kFloat32:
      for (size_t i = 0; i < out.size(); ++i) out[i] = to_bfloat16(load<float>(from, i));
      return;
    case DType::kBFloat16:
      if (!out.empty()) std::memcpy(out.data(), from, out.size_bytes());
      return;
    case DType::kFloat16:
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = to_bfloat16(to_float(load<Float16>(from, i)));
      return;
  }
}

TensorSlice TensorSlice::whole(std::span<const int64_t> shape) {
  TensorSlice out{.rows = 1, .columns = 1};
  for (const int64_t extent : shape) {
    out.rows *= out.columns;
    out.columns = extent;
  }
  return out;
}

void copy_slice(const CheckpointTensor& tensor, const TensorSlice& slice, DType type,
                std::byte* out) {
  const int64_t stride = TensorSlice::whole(tensor.shape).columns;
  const bool adjacent = slice.columns == stride;
  const int64_t runs = adjacent ? 1 : slice.rows;
  const auto count = static_cast<size_t>(slice.num_elements() / std::max<int64_t>(1, runs));
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t first = (slice.first_row + run) * stride + slice.first_column;
    if (type == DType::kFloat32) {
      copy_as_float(tensor, first, {reinterpret_cast<float*>(out), count});
    } else {
      copy_as_bfloat16(tensor, first, {reinterpret_cast<BFloat16*>(out), count});
    }
    out += count * dtype_size(type == DType::kFloat32 ? type : DType::kBFloat16);
  }
}

}  // namespace espalier
