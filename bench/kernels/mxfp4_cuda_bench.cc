// Rows of kernels_cuda_bench for experts in MXFP4 at the shapes of gpt-oss, every row's experts
// drawn evenly. Calls of a graph take turns at other draws, so that few rows' experts are not found
// in L2.
#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "cuda_bench.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/mxfp4_weights.h"

namespace espalier::kernels::cuda {
namespace {

struct GptOssShape {
  const char* name;
  int experts;
};
constexpr GptOssShape kGptOssShapes[] = {{"gpt-oss-20b", 32}, {"gpt-oss-120b", 128}};
constexpr int kOssTopK = 4, kOssDim = 2880, kOssFfn = 2880, kTurns = 6;

int32_t* ints(const Memory& memory) { return reinterpret_cast<int32_t*>(memory.get()); }

// One draw of experts on the device, arranged.
struct Draw {
  Memory ids, slots, order, begins, tiles;
  ExpertPlan plan;
  int active = 0;

  Draw(Bench& bench, int experts, int rows, uint32_t seed)
      : ids(bytes(rows), 1),
        slots(bytes(rows), 2),
        order(bytes(rows), 3),
        begins(static_cast<size_t>(experts) * 8, 4),
        tiles(static_cast<size_t>(experts) * 8, 5),
        plan{ints(slots), ints(order), ints(begins), ints(tiles)} {
    std::vector<int32_t> chosen, all(static_cast<size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    std::mt19937 random(seed);
    for (int row = 0; row < rows; ++row) {
      std::shuffle(all.begin(), all.end(), random);
      chosen.insert(chosen.end(), all.begin(), all.begin() + kOssTopK);
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
  static size_t bytes(int rows) { return static_cast<size_t>(rows) * kOssTopK * 4; }
};

// Matrices rounded to MXFP4.
struct Records {
  Mxfp4Shape shape;
  Memory records;

  Records(Bench& bench, const Mxfp4Shape& of, int experts)
      : shape(of), records(static_cast<size_t>(experts * of.size_bytes()), 1) {
    const Memory x(static_cast<size_t>(of.out_features) * static_cast<size_t>(of.in_features) * 2,
                   7, 0.02f);
    must(cudaMemsetAsync(records.get(), 0, records.bytes(), bench.stream()));
    for (int expert = 0; expert < experts; ++expert)
      must(quantize_mxfp4(
          {.x = x.get(),
           .x_stride = of.in_features,
           .to = {.shape = of,
                  .records = records.get(static_cast<size_t>(expert * of.size_bytes())),
                  .rows = of.out_features}},
          {bench.stream()}));
    must(cudaStreamSynchronize(bench.stream()));
  }
};

void mxfp4_rows(Bench& bench, const GptOssShape& s, const Records& gate_up, const Records& down,
                int rows) {
  std::vector<std::unique_ptr<Draw>> draws;
  for (uint32_t i = 0; i < kTurns; ++i)
    draws.push_back(std::make_unique<Draw>(bench, s.experts, rows, 5 + i));
  double active = 0;
  for (const auto& draw : draws) active += draw->active / double{kTurns};
  const int pairs = rows * kOssTopK;
  const Memory x(static_cast<size_t>(rows) * kOssDim * 2, 21);
  const Memory inner(static_cast<size_t>(pairs) * kOssFfn * 2, 22);
  const Memory outer(static_cast<size_t>(pairs) * kOssDim * 2, 23);
  const Memory bias(static_cast<size_t>(s.experts) * 2 * kOssFfn * 2, 24);
  const auto time = [&](const char* name, const Records& weights, const Memory& from,
                        const Memory& to, GroupedArgs args) {
    args.num_groups = s.experts;
    args.in_features = weights.shape.in_features, args.out_features = weights.shape.out_features;
    args.x = from.get(), args.x_stride = weights.shape.in_features;
    args.weights = weights.records.get(), args.weights_stride = weights.shape.size_bytes();
    args.mxfp4 = true;
    args.bias = bias.get();
    args.y = to.get();
    args.num_pairs = pairs;
    const double seconds = bench.time(
        [&](int i) {
          args.plan = &draws[static_cast<size_t>(i % kTurns)]->plan;
          must(grouped_linear(args, {bench.stream()}));
        },
        kTurns);
    const double weight_count = 1.0 * args.in_features * args.out_features;
    bench.row(fmt::format("experts of {}, {} rows: {} in MXFP4", s.name, rows, name), seconds,
              active * weight_count * 17 / 32 + static_cast<double>(from.bytes() + to.bytes()),
              2.0 * pairs * weight_count);
  };
  time("gate, up, SwiGLU", gate_up, x, inner,
       {.y_stride = kOssFfn,
        .activation = Activation::kClampedSwiglu,
        .limit = 7,
        .pairs_per_row = kOssTopK});
  time("down", down, inner, outer, {.y_stride = kOssDim});
}

}  // namespace

void mxfp4_experts(Bench& bench) {
  for (const GptOssShape& shape : kGptOssShapes) {
    if (!bench.wants(fmt::format("experts of {} in MXFP4", shape.name))) continue;
    const Records gate_up(bench, {2 * kOssFfn, kOssDim, true}, shape.experts);
    const Records down(bench, {kOssDim, kOssFfn, false}, shape.experts);
    for (const int rows : {1, 4, 8, 16, 64, 128, 256, 512, 1024, 2048, 8192, 16384})
      mxfp4_rows(bench, shape, gate_up, down, rows);
  }
}

}  // namespace espalier::kernels::cuda
