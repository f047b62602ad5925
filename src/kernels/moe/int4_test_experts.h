// For the tests of experts in 4-bit codes: random codes, stored as checkpoints do, and their
// records on the device. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cuda/test_device.h"
#include "kernels/linear/int4_weights.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/int4_experts.h"

namespace espalier::kernels::test {

inline constexpr int kExpertGroup = cuda::kInt4ExpertInputs;

// Random codes of matrices, one expert behind the other, in the order of rows that a checkpoint
// has: all of gate, then all of up.
struct ExpertCodes {
  int out, in, group;
  std::vector<uint8_t> codes, zeros;  // [experts, out, in], [experts, out, groups]
  std::vector<uint16_t> scales;       // [experts, out, groups] float16

  ExpertCodes(Rng& rng, int experts, int out_features, int in_features, int of_group = kExpertGroup)
      : out(out_features), in(in_features), group(of_group) {
    const int64_t rows = int64_t{experts} * out;
    for (int64_t i = 0; i < rows * in; ++i) codes.push_back(static_cast<uint8_t>(rng.below(16)));
    for (int64_t i = 0; i < rows * (in / group); ++i) {
      zeros.push_back(static_cast<uint8_t>(rng.below(17)));
      // 2^-9 to 2^-6 with any fraction and sign.
      scales.push_back(
          static_cast<uint16_t>((6 + rng.below(3)) << 10 | rng.below(1024) | rng.below(2) << 15));
    }
  }
  // What the kernels multiply by: of groups of 32 the weights rounded once to bfloat16.
  std::vector<float> values() const {
    std::vector<float> out_values(codes.size());
    for (size_t i = 0; i < codes.size(); ++i) {
      const size_t at = i / static_cast<size_t>(group);
      const float exact = static_cast<float>(codes[i] - zeros[at]) * to_float(Float16{scales[at]});
      out_values[i] = group == cuda::kInt4SmallGroup ? to_float(to_bfloat16(exact)) : exact;
    }
    return out_values;
  }
};

// The codes of an expert's rows [first, first + rows) as a checkpoint stores such a tensor.
struct StoredExpert {
  std::vector<uint8_t> bytes;
  int64_t line_bytes = 0;

  StoredExpert(const ExpertCodes& w, int64_t first, int rows, cuda::Int4Order order) {
    using cuda::Int4Order;
    const int lines = order == Int4Order::kColumns ? w.in / 8
                      : order == Int4Order::kAwq   ? w.in
                                                   : rows;
    line_bytes = order == Int4Order::kRows  ? w.in / 2
                 : order == Int4Order::kAwq ? rows / 2
                                            : rows * 4;
    bytes.resize(static_cast<size_t>(lines * line_bytes));
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < w.in; ++i) {
        const uint8_t code = w.codes[static_cast<size_t>((first + row) * w.in + i)];
        constexpr int kSlots[8] = {0, 4, 1, 5, 2, 6, 3, 7};
        int line = row, nibble = i;
        if (order == Int4Order::kColumns) line = i / 8, nibble = row * 8 + i % 8;
        if (order == Int4Order::kAwq) line = i, nibble = row / 8 * 8 + kSlots[row % 8];
        bytes[static_cast<size_t>(line * line_bytes + nibble / 2)] |=
            static_cast<uint8_t>(code << nibble % 2 * 4);
      }
    }
  }
};

// Writes rows of one expert as a loader does: a tensor for gate, one for up, in ranges of 256
// inputs where codes lie by inputs.
inline void repack_rows(const ExpertCodes& w, int64_t first, cuda::Int4Order order,
                        cuda::Int4Destination to) {
  const StoredExpert stored(w, first, to.rows, order);
  const int groups = w.in / w.group;
  const int step = order == cuda::Int4Order::kRows ? w.in : cuda::kInt4Inputs;
  for (int input = 0; input < w.in; input += step) {
    const int inputs = std::min(step, w.in - input);
    std::vector<uint16_t> scales;
    std::vector<uint8_t> zeros;
    for (int64_t row = first; row < first + to.rows; ++row) {
      for (int group = input / w.group; group < (input + inputs) / w.group; ++group) {
        scales.push_back(w.scales[static_cast<size_t>(row * groups + group)]);
        zeros.push_back(w.zeros[static_cast<size_t>(row * groups + group)]);
      }
    }
    const DeviceArray<uint8_t> codes(stored.bytes), zeros_there(zeros);
    const DeviceArray<uint16_t> scales_there(scales);
    const int line = order == cuda::Int4Order::kRows      ? 0
                     : order == cuda::Int4Order::kColumns ? input / 8
                                                          : input;
    const Status status = cuda::repack_int4({.order = order,
                                             .codes = codes.get() + line * stored.line_bytes,
                                             .line_bytes = stored.line_bytes,
                                             .scales = scales_there.get(),
                                             .zeros = zeros_there.get(),
                                             .first_input = input,
                                             .inputs = inputs,
                                             .to = to},
                                            {});
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
}

struct Int4Experts {
  const cuda::Int4ExpertShape shape;
  const ExpertCodes codes;
  const std::vector<float> values;
  const DeviceArray<uint8_t> records;

  Int4Experts(Rng& rng, int experts, int rows, int in, bool gated,
              cuda::Int4Order order = cuda::Int4Order::kRows)
      : Int4Experts(ExpertCodes(rng, experts, rows, in), experts, gated, order) {}
  Int4Experts(ExpertCodes of, int experts, bool gated, cuda::Int4Order order)
      : shape{of.out, of.in, gated, of.group},
        codes(std::move(of)),
        values(codes.values()),
        records(static_cast<size_t>(experts * shape.size_bytes())) {
    cudaMemset(records.get(), 0, records.size());
    const int parts = gated ? 2 : 1;
    for (int expert = 0; expert < experts; ++expert) {
      cuda::Int4Destination to{
          .format = {.group = codes.group, .zeros = true},
          .kind = gated ? cuda::Int4Records::kGatedExpert : cuda::Int4Records::kExpert,
          .records = records.get() + expert * shape.size_bytes(),
          .out_features = shape.out_features,
          .in_features = shape.in_features,
          .rows = shape.out_features / parts};
      for (int part = 0; part < parts; ++part, to.first_row += to.rows)
        repack_rows(codes, int64_t{expert} * shape.out_features + to.first_row, order, to);
    }
  }
  void use(cuda::GroupedArgs& args) const {
    args.weights = records.get(), args.weights_stride = shape.size_bytes();
    args.int4 = true;
    args.int4_group = codes.group;
  }
};

// Groups of 32.
struct Int4SmallExperts : Int4Experts {
  Int4SmallExperts(Rng& rng, int experts, int rows, int in, bool gated)
      : Int4Experts(ExpertCodes(rng, experts, rows, in, cuda::kInt4SmallGroup), experts, gated,
                    cuda::Int4Order::kRows) {}
};

}  // namespace espalier::kernels::test
