// Rows of kernels_cuda_bench for experts in codes of 4 bits: MXFP4 at the shapes of gpt-oss, groups
// of 128 inputs at that of Qwen3-30B-A3B; every row's experts drawn evenly. Calls of a graph take
// turns at other draws, so that few rows' experts are not found in L2.
#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "cuda_bench.h"
#include "kernels/linear/int4_weights.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/int4_experts.h"
#include "kernels/moe/mxfp4_weights.h"

namespace espalier::kernels::cuda {
namespace {

struct CodedShape {
  const char *name, *format;
  int experts, top_k, dim, ffn;
  bool int4;
  Activation activation;
};
constexpr CodedShape kCodedShapes[] = {
    {"gpt-oss-20b", "MXFP4", 32, 4, 2880, 2880, false, Activation::kClampedSwiglu},
    {"gpt-oss-120b", "MXFP4", 128, 4, 2880, 2880, false, Activation::kClampedSwiglu},
    {"Qwen3-30B-A3B", "int4", 128, 8, 2048, 768, true, Activation::kSilu}};
constexpr int kTurns = 6;

int32_t* ints(const Memory& memory) { return reinterpret_cast<int32_t*>(memory.get()); }

// One draw of experts on the device, arranged.
struct Draw {
  Memory ids, slots, order, begins, tiles;
  ExpertPlan plan;
  int active = 0;

  Draw(Bench& bench, int experts, int top_k, int rows, uint32_t seed)
      : ids(static_cast<size_t>(rows * top_k) * 4, 1),
        slots(ids.bytes(), 2),
        order(ids.bytes(), 3),
        begins(static_cast<size_t>(experts) * 8, 4),
        tiles(static_cast<size_t>(experts) * 8, 5),
        plan{ints(slots), ints(order), ints(begins), ints(tiles)} {
    std::vector<int32_t> chosen, all(static_cast<size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    std::mt19937 random(seed);
    for (int row = 0; row < rows; ++row) {
      std::shuffle(all.begin(), all.end(), random);
      chosen.insert(chosen.end(), all.begin(), all.begin() + top_k);
    }
    must(cudaMemcpy(ids.get(), chosen.data(), chosen.size() * 4, cudaMemcpyDefault));
    must(arrange({.experts = ints(ids),
                  .num_pairs = static_cast<int32_t>(chosen.size()),
                  .num_experts = experts,
                  .plan = plan},
                 {bench.stream()}));
    must(cudaStreamSynchronize(bench.stream()));
    std::ranges::sort(chosen);
    active = static_cast<int>(std::ranges::unique(chosen).begin() - chosen.begin());
  }
};

// Matrices rounded to the shape's format.
struct Records {
  int out, in;
  bool int4;
  int64_t stride;
  Memory records;

  Records(Bench& bench, const CodedShape& s, bool gated)
      : out(gated ? 2 * s.ffn : s.dim),
        in(gated ? s.dim : s.ffn),
        int4(s.int4),
        stride(int4 ? Int4ExpertShape{out, in, gated}.size_bytes()
                    : Mxfp4Shape{out, in, gated}.size_bytes()),
        records(static_cast<size_t>(s.experts * stride), 1) {
    const Memory x(static_cast<size_t>(out) * static_cast<size_t>(in) * 2, 7, 0.02f);
    must(cudaMemsetAsync(records.get(), 0, records.bytes(), bench.stream()));
    for (int expert = 0; expert < s.experts; ++expert) {
      char* to = records.get(static_cast<size_t>(expert * stride));
      const LaunchOptions launch{bench.stream()};
      if (int4)
        must(quantize_int4({.x = x.get(),
                            .x_stride = in,
                            .to = {.format = {.group = kInt4ExpertInputs, .zeros = true},
                                   .kind = gated ? Int4Records::kGatedExpert : Int4Records::kExpert,
                                   .records = to,
                                   .out_features = out,
                                   .in_features = in,
                                   .rows = out}},
                           launch));
      else
        must(quantize_mxfp4({.x = x.get(),
                             .x_stride = in,
                             .to = {.shape = {out, in, gated}, .records = to, .rows = out}},
                            launch));
    }
    must(cudaStreamSynchronize(bench.stream()));
  }
  // Of a weight, as the format has it.
  double weight_bytes() const {
    return int4 ? kInt4ExpertRecordBytes / (1.0 * kInt4ExpertRows * kInt4ExpertInputs) : 17.0 / 32;
  }
};

void coded_rows(Bench& bench, const CodedShape& s, const Records& gate_up, const Records& down,
                int rows) {
  std::vector<std::unique_ptr<Draw>> draws;
  for (uint32_t i = 0; i < kTurns; ++i)
    draws.push_back(std::make_unique<Draw>(bench, s.experts, s.top_k, rows, 5 + i));
  double active = 0;
  for (const auto& draw : draws) active += draw->active / double{kTurns};
  const int pairs = rows * s.top_k;
  const auto bytes_of = [](int count, int columns) {
    return static_cast<size_t>(count) * static_cast<size_t>(columns) * 2;
  };
  const Memory x(bytes_of(rows, s.dim), 21), inner(bytes_of(pairs, s.ffn), 22);
  const Memory outer(bytes_of(pairs, s.dim), 23), bias(bytes_of(s.experts, 2 * s.ffn + s.dim), 24);
  const auto time = [&](const char* name, const Records& weights, const Memory& from,
                        const Memory& to, GroupedArgs args) {
    args.num_groups = s.experts;
    args.in_features = weights.in, args.out_features = weights.out;
    args.x = from.get(), args.x_stride = weights.in;
    args.weights = weights.records.get(), args.weights_stride = weights.stride;
    args.mxfp4 = !s.int4, args.int4 = s.int4;
    if (!s.int4) args.bias = bias.get();
    args.y = to.get();
    args.num_pairs = pairs;
    const double seconds = bench.time(
        [&](int i) {
          args.plan = &draws[static_cast<size_t>(i % kTurns)]->plan;
          must(grouped_linear(args, {bench.stream()}));
        },
        kTurns);
    const double weight_count = 1.0 * args.in_features * args.out_features;
    bench.row(fmt::format("experts of {}, {} rows: {} in {}", s.name, rows, name, s.format),
              seconds,
              active * weight_count * weights.weight_bytes() +
                  static_cast<double>(from.bytes() + to.bytes()),
              2.0 * pairs * weight_count);
  };
  time("gate, up, activation", gate_up, x, inner,
       {.y_stride = s.ffn, .activation = s.activation, .limit = 7, .pairs_per_row = s.top_k});
  time("down", down, inner, outer, {.y_stride = s.dim});
}

}  // namespace

void coded_experts(Bench& bench) {
  for (const CodedShape& shape : kCodedShapes) {
    if (!bench.wants(fmt::format("experts of {} in {}", shape.name, shape.format))) continue;
    const Records gate_up(bench, shape, true), down(bench, shape, false);
    for (const int rows : {1, 4, 8, 16, 64, 128, 256, 512, 1024, 2048, 8192, 16384})
      coded_rows(bench, shape, gate_up, down, rows);
  }
}

}  // namespace espalier::kernels::cuda
