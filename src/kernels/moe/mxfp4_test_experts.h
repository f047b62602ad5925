// For the tests of experts in MXFP4: random blocks, stored as checkpoints do, their numbers, and
// their records on the device. Not thread-safe.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cuda/test_device.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/mxfp4_weights.h"

namespace espalier::kernels::test {

// Matrices of one expert behind the other as a checkpoint has them, and their numbers.
struct Mxfp4Matrices {
  std::vector<uint8_t> blocks, scales;
  std::vector<float> values;  // [experts, rows, in], in the order of the blocks

  Mxfp4Matrices(Rng& rng, int64_t rows, int in)
      : blocks(static_cast<size_t>(rows * in / 2)), scales(static_cast<size_t>(rows * in / 32)) {
    constexpr float kSizes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(rng.between(0, 255));
    // One block in eight of small numbers alone.
    for (size_t i = 0; i < blocks.size(); ++i)
      if (i / cuda::kMxfp4BlockBytes % 8 == 3) blocks[i] &= 0xbb;
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(rng.between(117, 122));
    values.resize(static_cast<size_t>(rows * in));
    for (size_t i = 0; i < values.size(); ++i) {
      const int code = i % 2 == 0 ? blocks[i / 2] & 15 : blocks[i / 2] >> 4;
      const float size = std::ldexp(kSizes[code & 7], scales[i / 32] - 127);
      values[i] = code < 8 ? size : -size;
    }
  }
};

// The records of a stack of matrices.
inline DeviceArray<uint8_t> records_of(const Mxfp4Matrices& from, const cuda::Mxfp4Shape& shape,
                                       int experts) {
  const int64_t bytes = shape.size_bytes();
  DeviceArray<uint8_t> records(static_cast<size_t>(experts * bytes));
  cudaMemset(records.get(), 0, records.size());
  const DeviceArray<uint8_t> blocks(from.blocks), scales(from.scales);
  const int64_t of_matrix = int64_t{shape.out_features} * shape.in_features;
  // In two parts, as a loader has them.
  const int first = std::max(1, shape.out_features / 3 / 2 * 2);
  for (int expert = 0; expert < experts; ++expert) {
    for (const auto& [begin, rows] : {std::pair{0, first}, {first, shape.out_features - first}}) {
      if (rows == 0) continue;
      const int64_t at = expert * of_matrix + int64_t{begin} * shape.in_features;
      EXPECT_TRUE(cuda::repack_mxfp4({.blocks = blocks.get() + at / 2,
                                      .scales = scales.get() + at / 32,
                                      .to = {.shape = shape,
                                             .records = records.get() + expert * bytes,
                                             .first_row = begin,
                                             .rows = rows}},
                                     {})
                      .ok());
    }
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return records;
}

// Rows of gate and up that alternate become all of gate, then all of up.
inline std::vector<float> parted(const std::vector<float>& from, int experts, int rows, int in) {
  std::vector<float> out(from.size());
  for (int64_t i = 0; i < int64_t{experts} * rows; ++i) {
    const int64_t row = i % rows, to = i - row + row / 2 + row % 2 * (rows / 2);
    std::copy_n(from.begin() + i * in, in, out.begin() + to * in);
  }
  return out;
}

// The same with their records; of gate and up, rows alternate in the checkpoint.
struct Mxfp4Experts {
  const cuda::Mxfp4Shape shape;
  const Mxfp4Matrices matrices;
  const std::vector<float> values;
  const DeviceArray<uint8_t> records;

  Mxfp4Experts(Rng& rng, int experts, int rows, int in, bool gated)
      : shape{rows, in, gated},
        matrices(rng, int64_t{experts} * rows, in),
        values(gated ? parted(matrices.values, experts, rows, in) : matrices.values),
        records(records_of(matrices, shape, experts)) {}
  void use(cuda::GroupedArgs& args) const {
    args.weights = records.get(), args.weights_stride = shape.size_bytes();
    args.mxfp4 = true;
  }
};

// The same matrices from their numbers, as a loader has those of a GGUF: rounding changes none.
struct RoundedMxfp4Experts {
  const cuda::Mxfp4Shape shape;
  const std::vector<float> values;
  const DeviceArray<uint8_t> records;

  RoundedMxfp4Experts(Rng& rng, int experts, int rows, int in, bool gated)
      : shape{rows, in, gated},
        values(Mxfp4Matrices(rng, int64_t{experts} * rows, in).values),
        records(static_cast<size_t>(experts * shape.size_bytes())) {
    cudaMemset(records.get(), 0, records.size());
    const DeviceArray<float> numbers(values);
    const int parts = gated ? 2 : 1, part_rows = rows / parts;
    for (int i = 0; i < experts * parts; ++i) {
      const Status status =
          cuda::quantize_mxfp4({.type = DType::kFloat32,
                                .x = numbers.get() + int64_t{i} * part_rows * in,
                                .x_stride = in,
                                .to = {.shape = shape,
                                       .records = records.get() + i / parts * shape.size_bytes(),
                                       .first_row = i % parts,
                                       .row_step = parts,
                                       .rows = part_rows}},
                               {});
      EXPECT_TRUE(status.ok()) << status.message();
    }
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void use(cuda::GroupedArgs& args) const {
    args.weights = records.get(), args.weights_stride = shape.size_bytes();
    args.mxfp4 = true;
  }
};

}  // namespace espalier::kernels::test
