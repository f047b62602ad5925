// Slices of tensors of every format are the same elements as those of the whole tensor.
#include "checkpoint/convert.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/block_types.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/quantized_tensor.h"
#include "checkpoint/temp_folder.h"

namespace espalier {
namespace {

constexpr int64_t kRows = 6, kColumns = 512;

// Elements of the slice, cut out of the whole tensor by hand.
std::vector<float> expected_slice(const CheckpointTensor& tensor, const TensorSlice& slice) {
  std::vector<float> whole(static_cast<size_t>(tensor.num_elements())), out;
  copy_as_float(tensor, 0, whole);
  for (int64_t row = slice.first_row; row < slice.first_row + slice.rows; ++row) {
    const auto begin = whole.begin() + row * kColumns + slice.first_column;
    out.insert(out.end(), begin, begin + slice.columns);
  }
  return out;
}

void expect_slices(const CheckpointTensor& tensor) {
  const TensorSlice slices[] = {
      TensorSlice::whole(tensor.shape),
      {.first_row = 2, .rows = 3, .first_column = 0, .columns = kColumns},
      {.first_row = 0, .rows = kRows, .first_column = 256, .columns = 256},
      {.first_row = 5, .rows = 1, .first_column = 7, .columns = 100},
  };
  for (const TensorSlice& slice : slices) {
    const std::vector<float> expected = expected_slice(tensor, slice);
    std::vector<float> floats(expected.size());
    copy_slice(tensor, slice, DType::kFloat32, reinterpret_cast<std::byte*>(floats.data()));
    EXPECT_EQ(std::memcmp(floats.data(), expected.data(), floats.size() * sizeof(float)), 0);
    std::vector<BFloat16> rounded(expected.size());
    copy_slice(tensor, slice, DType::kBFloat16, reinterpret_cast<std::byte*>(rounded.data()));
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(rounded[i], to_bfloat16(expected[i])) << i;
    }
  }
}

// Bytes whose scales are small finite numbers in every format: the same byte all along.
std::string repeated(size_t size) { return std::string(size, '\x2b'); }

TEST(TensorSlice, WholeHasTheLastExtentAsColumns) {
  const int64_t vector[] = {7}, stack[] = {2, 3, 5};
  EXPECT_EQ(TensorSlice::whole(vector).rows, 1);
  EXPECT_EQ(TensorSlice::whole(vector).columns, 7);
  EXPECT_EQ(TensorSlice::whole(stack).rows, 6);
  EXPECT_EQ(TensorSlice::whole(stack).num_elements(), 30);
}

TEST(TensorSlice, OfPlainElementsThatLieAskew) {
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 8;
  std::string bytes(1, '\0');
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  const CheckpointTensor tensor{
      .name = "x",
      .dtype_name = "F32",
      .dtype = DType::kFloat32,
      .shape = {kRows, kColumns},
      .bytes = std::as_bytes(std::span(bytes)).subspan(1),
  };
  expect_slices(tensor);
}

TEST(TensorSlice, OfEveryBlockFormatOfAGguf) {
  int compared = 0;
  for (const BlockType& type : block_types()) {
    if (type.dequantize == nullptr) continue;
    SCOPED_TRACE(type.name);
    const std::string bytes = repeated(
        static_cast<size_t>(kRows * kColumns / static_cast<int64_t>(type.elements)) * type.bytes);
    const GgufTensor blocks{.name = type.name,
                            .type = &type,
                            .shape = {kRows, kColumns},
                            .bytes = std::as_bytes(std::span(bytes))};
    expect_slices({.name = "x",
                   .dtype_name = std::string(type.name),
                   .shape = blocks.shape,
                   .bytes = blocks.bytes,
                   .reader = make_block_reader(blocks, {})});
    ++compared;
  }
  EXPECT_GE(compared, 15);
}

TEST(TensorSlice, OfBytesWithAnExponent) {
  std::string bytes;
  for (int64_t i = 0; i < kRows * kColumns; ++i) bytes += static_cast<char>(i % 120);
  CheckpointTensor tensor{.name = "x",
                          .dtype_name = "F8_E4M3",
                          .shape = {kRows, kColumns},
                          .bytes = std::as_bytes(std::span(bytes))};
  tensor.reader = make_plain_reader(tensor);
  expect_slices(tensor);
}

}  // namespace
}  // namespace espalier
