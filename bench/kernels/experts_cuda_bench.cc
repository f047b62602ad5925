// Rows of kernels_cuda_bench for mixture-of-experts layers.
#include <algorithm>
#include <numeric>
#include <random>

#include "cuda_bench.h"
#include "kernels/linear/quantize_rows.h"
#include "kernels/moe/cuda.h"
#include "kernels/router/cuda.h"

namespace espalier::kernels::cuda {
namespace {

// A layer's experts at the shapes of models, every row's experts drawn evenly.
struct ExpertShape {
  const char* name;
  int experts, top_k, dim, ffn;
};
constexpr ExpertShape kExpertShapes[] = {{"Qwen3-30B-A3B", 128, 8, 2048, 768},
                                         {"DeepSeek-V2-Lite", 64, 6, 2048, 1408},
                                         {"gpt-oss-20b", 32, 4, 2880, 2880}};

std::vector<int32_t> even_experts(const ExpertShape& s, int rows) {
  std::vector<int32_t> chosen, ids(static_cast<size_t>(s.experts));
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937 random(5);
  for (int row = 0; row < rows; ++row) {
    std::shuffle(ids.begin(), ids.end(), random);
    chosen.insert(chosen.end(), ids.begin(), ids.begin() + s.top_k);
  }
  return chosen;
}

void experts_of(Bench& bench, const ExpertShape& s, int rows) {
  const std::vector<int32_t> chosen = even_experts(s, rows);
  const auto pairs = static_cast<int32_t>(chosen.size());
  const auto num_pairs = static_cast<size_t>(pairs), num_experts = static_cast<size_t>(s.experts);
  const auto dim = static_cast<size_t>(s.dim), ffn = static_cast<size_t>(s.ffn);
  const Memory x(static_cast<size_t>(rows) * dim * 2, 21), inner(num_pairs * ffn * 2, 22);
  const Memory outer(num_pairs * dim * 2, 23), ids(num_pairs * 4, 24), slots(num_pairs * 4, 24);
  const Memory order(num_pairs * 4, 24), begins(num_experts * 8, 24), tiles(num_experts * 8, 24);
  const Memory gate_up(num_experts * 2 * ffn * dim * 2, 25, 0.02f);
  const Memory down(num_experts * ffn * dim * 2, 26, 0.02f);
  const Memory router(num_experts * dim * 4, 27),
      scores(static_cast<size_t>(rows) * num_experts * 4, 28);
  must(cudaMemcpy(ids.get(), chosen.data(), num_pairs * 4, cudaMemcpyDefault));
  const auto ints = [](const Memory& memory) { return reinterpret_cast<int32_t*>(memory.get()); };
  const ExpertPlan plan{ints(slots), ints(order), ints(begins), ints(tiles)};
  const auto arrange_all = [&](int) {
    must(arrange({.experts = ints(ids), .num_pairs = pairs, .num_experts = s.experts, .plan = plan},
                 {bench.stream()}));
  };
  const GroupedArgs first{.num_groups = s.experts,
                          .in_features = s.dim,
                          .out_features = 2 * s.ffn,
                          .x = x.get(),
                          .x_stride = s.dim,
                          .weights = gate_up.get(),
                          .weights_stride = int64_t{2} * s.ffn * s.dim,
                          .y = inner.get(),
                          .y_stride = s.ffn,
                          .activation = Activation::kSilu,
                          .plan = &plan,
                          .num_pairs = pairs,
                          .pairs_per_row = s.top_k};
  const GroupedArgs second{.num_groups = s.experts,
                           .in_features = s.ffn,
                           .out_features = s.dim,
                           .x = inner.get(),
                           .x_stride = s.ffn,
                           .weights = down.get(),
                           .weights_stride = int64_t{s.ffn} * s.dim,
                           .y = outer.get(),
                           .y_stride = s.dim,
                           .plan = &plan,
                           .num_pairs = pairs};
  std::vector<int32_t> unique = chosen;
  std::ranges::sort(unique);
  const auto active = static_cast<double>(std::ranges::unique(unique).begin() - unique.begin());
  const double matrix = static_cast<double>(ffn * dim * 2), multiplied = static_cast<double>(pairs);
  const auto row = [&](const char* name, const std::function<void(int)>& work, double bytes,
                       double flops) {
    bench.row(fmt::format("experts of {}, {} rows: {}", s.name, rows, name), bench.time(work, 4),
              bytes, flops);
  };
  row("arrange", arrange_all, multiplied * 16, 0);
  const Memory weights(num_pairs * 4, 30), routed(num_pairs * 4, 30);
  row(
      "route and arrange",
      [&](int) {
        must(route_and_arrange(
            {.spec = {.num_experts = s.experts, .top_k = s.top_k, .normalise = true},
             .logits = reinterpret_cast<const float*>(scores.get()),
             .rows = rows,
             .experts = ints(routed),
             .weights = reinterpret_cast<float*>(weights.get())},
            {.experts = ints(routed), .num_pairs = pairs, .num_experts = s.experts, .plan = plan},
            {bench.stream()}));
      },
      static_cast<double>(scores.bytes()), 0);
  arrange_all(0);
  row(
      "scores",
      [&](int) {
        must(score({.x = x.get(),
                    .x_stride = s.dim,
                    .weights = reinterpret_cast<const float*>(router.get()),
                    .y = reinterpret_cast<float*>(scores.get()),
                    .rows = rows,
                    .dim = s.dim,
                    .outputs = s.experts},
                   {bench.stream()}));
      },
      static_cast<double>(x.bytes() + router.bytes() + scores.bytes()), 0);
  row(
      "gate, up, SwiGLU", [&](int) { must(grouped_linear(first, {bench.stream()})); },
      active * 2 * matrix + static_cast<double>(x.bytes() + inner.bytes()),
      multiplied * 2 * matrix);
  row(
      "down", [&](int) { must(grouped_linear(second, {bench.stream()})); },
      active * matrix + static_cast<double>(inner.bytes() + outer.bytes()), multiplied * matrix);
  // x and weights as codes: of what is drawn, any bits are as good.
  const Memory scales(std::max(num_pairs, num_experts * std::max(2 * ffn, dim)) * 4, 29);
  GroupedArgs first_codes = first, second_codes = second;
  for (GroupedArgs* args : {&first_codes, &second_codes})
    args->x_scales = args->weight_scales = reinterpret_cast<const float*>(scales.get());
  const double x_codes = static_cast<double>(x.bytes()) / 2;
  row(
      "gate, up, SwiGLU in e4m3", [&](int) { must(grouped_linear(first_codes, {bench.stream()})); },
      active * matrix + x_codes + static_cast<double>(inner.bytes()), multiplied * 2 * matrix);
  row(
      "down in e4m3", [&](int) { must(grouped_linear(second_codes, {bench.stream()})); },
      active * matrix / 2 + static_cast<double>(inner.bytes() / 2 + outer.bytes()),
      multiplied * matrix);
  if (s.ffn % kScaleBlock != 0) return;
  const Memory x_scales(num_pairs * static_cast<size_t>(scale_blocks(s.dim)) * 4 + 64, 29);
  for (GroupedArgs* args : {&first_codes, &second_codes}) {
    args->x_scales = reinterpret_cast<const float*>(x_scales.get());
    args->block_scales = true;
    args->x_scale_stride = group_scale_stride(args->pairs_per_row > 0 ? rows : args->num_pairs);
  }
  row(
      "gate, up, SwiGLU in blocks of e4m3",
      [&](int) { must(grouped_linear(first_codes, {bench.stream()})); },
      active * matrix + x_codes + static_cast<double>(inner.bytes()), multiplied * 2 * matrix);
  row(
      "down in blocks of e4m3", [&](int) { must(grouped_linear(second_codes, {bench.stream()})); },
      active * matrix / 2 + static_cast<double>(inner.bytes() / 2 + outer.bytes()),
      multiplied * matrix);
}

}  // namespace

void experts(Bench& bench) {
  for (const ExpertShape& shape : kExpertShapes)
    for (const int rows : {8, 16, 64, 128, 256, 1024, 2048, 8192})
      if (bench.wants(fmt::format("experts of {}", shape.name))) experts_of(bench, shape, rows);
}

}  // namespace espalier::kernels::cuda
