// kernels_cuda_bench: first what the GPU can do (read, copy, GEMM), then each kernel at the
// Llama-3.1-8B shape as a share of that.
//
//   kernels_cuda_bench [--only SUBSTRING] [--json FILE]
//
// Times are medians of graph replays, so that the launches' cost on the host is left out; each
// kernel's data is larger than L2 or rotates over enough copies to be. Share is
// the predicted time (bytes over the read rate, or operations over the rate of a GEMM) over the
// measured one.
#include <cuda_runtime.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cuda_bench.h"
#include "kernels/activation/cuda.h"
#include "kernels/attention/cuda.h"
#include "kernels/kv_append/cuda.h"
#include "kernels/linear/cuda.h"
#include "kernels/linear/gemm_small_batch.h"
#include "kernels/linear/quantize_rows.h"
#include "kernels/norm/cuda.h"
#include "kernels/sampling/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kHidden = 4096, kInner = 14336, kQkv = 6144, kVocab = 128256;
constexpr int kHeads = 32, kKvHeads = 8, kDim = 128;

void ceilings(Bench& bench, Linear& linear, Memory& workspace) {
  const size_t bytes = size_t{4} << 30;
  const Memory a(bytes, 1), b(bytes, 2);
  const int blocks = device_traits()->num_multiprocessors * 4;
  const double read = bench.time(
      [&](int) {
        read_all(a.get(), bytes, reinterpret_cast<uint32_t*>(b.get()), blocks, bench.stream());
      },
      3);
  bench.read_rate = static_cast<double>(bytes) / read;
  bench.row("ceiling: read 4 GiB", read, static_cast<double>(bytes), 0);
  const double copy = bench.time(
      [&](int) {
        must(cudaMemcpyAsync(b.get(), a.get(), bytes, cudaMemcpyDeviceToDevice, bench.stream()));
      },
      2);
  bench.row("ceiling: copy 4 GiB, read and written", copy, 2.0 * static_cast<double>(bytes), 0);
  const int n = 8192;
  const LinearArgs args{.rows = n,
                        .in_features = n,
                        .out_features = n,
                        .x = a.get(),
                        .x_stride = n,
                        .weights = a.get(size_t{1} << 30),
                        .y = b.get(),
                        .y_stride = n};
  must(linear.tune({&args, 1}, workspace.get(), workspace.bytes(), bench.stream()));
  const double gemm = bench.time(
      [&](int) { must(linear.run(args, workspace.get(), workspace.bytes(), {bench.stream()})); },
      4);
  const double flops = 2.0 * n * n * n;
  bench.flop_rate = flops / gemm;
  bench.row("ceiling: GEMM 8192^3", gemm, 3.0 * n * n * 2, flops);
  bench.row("ceiling: empty kernel in a graph",
            bench.time([&](int) { do_nothing(bench.stream()); }, 200), 0, 0);
}

struct Gemm {
  const char* name;
  int in, out;
  bool silu, norm, residual;
};
constexpr Gemm kGemms[] = {{"qkv, norm", kHidden, kQkv, false, true, false},
                           {"o, residual", kHidden, kHidden, false, false, true},
                           {"gate_up, norm, silu", kHidden, kInner, true, true, false},
                           {"down, residual", kInner, kHidden, false, false, true}};

LinearArgs gemm_args(const Gemm& p, int rows, const Memory& x, const char* w, const Memory& y,
                     bool fused) {
  return {.rows = rows,
          .in_features = p.in,
          .out_features = p.out,
          .x = x.get(),
          .x_stride = p.in,
          .weights = w,
          .y = y.get(),
          .y_stride = p.out,
          .silu_mul = p.silu,
          .residual = p.residual && fused ? y.get() : nullptr,
          .norm_weight = p.norm && fused ? x.get() : nullptr};
}

// The GEMMs of a step at small numbers of rows, layer after layer, each with weights of its own.
void small_rows(Bench& bench, Linear& linear, Memory& workspace) {
  constexpr int kLayers = 32;
  size_t layer_bytes = 0;
  for (const Gemm& p : kGemms)
    layer_bytes += static_cast<size_t>(p.in) * static_cast<size_t>(p.out) * (p.silu ? 4 : 2);
  const size_t head_bytes = static_cast<size_t>(kHidden) * kVocab * 2;
  const Memory weights(kLayers * layer_bytes + head_bytes, 3, 0.02f);
  const Memory x(size_t{512} * kInner * 2, 4), y(size_t{512} * kVocab * 4, 5, 1e-3f);
  const LaunchOptions plain{bench.stream()}, overlapped{bench.stream(), true};
  const auto run = [&](const LinearArgs& args, const LaunchOptions& launch) {
    must(linear.run(args, workspace.get(), workspace.bytes(), launch));
  };
  for (const int rows : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    if (!bench.wants(fmt::format("linear {}", rows)) && !bench.wants("step")) continue;
    size_t at = 0;
    for (const Gemm& p : kGemms) {
      const size_t bytes =
          static_cast<size_t>(p.in) * static_cast<size_t>(p.out) * (p.silu ? 4 : 2);
      const bool fused = rows <= kSmallRows;
      if (!fused) {
        const LinearArgs args = gemm_args(p, rows, x, weights.get(at), y, fused);
        must(linear.tune({&args, 1}, workspace.get(), workspace.bytes(), bench.stream()));
      }
      if (rows == 1 || rows >= 8) {
        const double seconds = bench.time(
            [&](int i) {
              run(gemm_args(p, rows, x, weights.get(at + i % 8 * layer_bytes), y, fused),
                  fused ? overlapped : plain);
            },
            16);
        bench.row(fmt::format("linear {} rows: {} {}x{}", rows, p.name, p.out, p.in), seconds,
                  static_cast<double>(bytes), 2.0 * rows * static_cast<double>(bytes) / 2);
      }
      at += bytes;
    }
    const LinearArgs head{.out_type = DType::kFloat32,
                          .rows = rows,
                          .in_features = kHidden,
                          .out_features = kVocab,
                          .x = x.get(),
                          .x_stride = kHidden,
                          .weights = weights.get(kLayers * layer_bytes),
                          .y = y.get(),
                          .y_stride = kVocab};
    if (rows > kSmallRows)
      must(linear.tune({&head, 1}, workspace.get(), workspace.bytes(), bench.stream()));
    for (const bool pdl : {false, true}) {
      const LaunchOptions& launch = pdl ? overlapped : plain;
      const double seconds = bench.time(
          [&](int) {
            size_t from = 0;
            for (int layer = 0; layer < kLayers; ++layer)
              for (const Gemm& p : kGemms) {
                run(gemm_args(p, rows, x, weights.get(from), y, rows <= kSmallRows || pdl), launch);
                from += static_cast<size_t>(p.in) * static_cast<size_t>(p.out) * (p.silu ? 4 : 2);
              }
            run(head, launch);
          },
          1);
      bench.row(fmt::format("step of {} rows: 32 layers and head{}", rows,
                            pdl ? ", norms and residuals, overlapped" : ""),
                seconds, static_cast<double>(weights.bytes()),
                static_cast<double>(weights.bytes()) * rows);
    }
  }
}

// gemm_small_batch: 32 GEMMs with weights of their own behind each other, with PDL as in a step:
// the configuration that it chooses and another.
void batch_products(Bench& bench) {
  constexpr int kCopies = 32;
  const Memory x(size_t{512} * kInner * 2, 4), y(size_t{512} * kInner * 4, 5, 1e-3f);
  const DeviceTraits traits = *device_traits();
  for (const Gemm& p : kGemms) {
    const size_t bytes = static_cast<size_t>(p.in) * static_cast<size_t>(p.out) * (p.silu ? 4 : 2);
    constexpr int kRows[] = {8, 16, 32, 64};
    const auto name_of = [&](int rows) { return fmt::format("batch {} rows: {}", rows, p.name); };
    if (std::ranges::none_of(kRows, [&](int rows) { return bench.wants(name_of(rows)); })) continue;
    const Memory weights(bytes * kCopies, 3, 0.02f);
    for (const int rows : kRows) {
      if (!bench.wants(name_of(rows))) continue;
      const LinearArgs first = gemm_args(p, rows, x, weights.get(), y, false);
      const std::optional<SmallBatchConfig> best = small_batch_config(first, traits);
      if (!best) continue;
      SmallBatchConfig other = *best;
      if (best->splits == 2)
        other.groups /= 2, other.splits = 1;
      else
        other.half_shared = !best->half_shared;
      for (const SmallBatchConfig& config : {*best, other}) {
        if (!gemm_small_batch_supports(first, config, traits)) continue;
        const std::string name =
            fmt::format("{} groups {} splits {} {}", name_of(rows), config.groups, config.splits,
                        config.half_shared ? "half" : "full");
        const double seconds = bench.time(
            [&](int i) {
              LinearArgs args = gemm_args(
                  p, rows, x, weights.get(static_cast<size_t>(i % kCopies) * bytes), y, false);
              if (p.residual) args.residual = y.get();
              must(gemm_small_batch(args, config, traits, {bench.stream(), true}));
            },
            kCopies, 3);
        bench.row(name, seconds, static_cast<double>(bytes),
                  static_cast<double>(rows) * static_cast<double>(bytes));
      }
    }
  }
}

// A whole decode step of one request, as a model runs it: GEMVs, rotary embedding, attention.
void one_request(Bench& bench, Linear& linear, Memory& workspace) {
  constexpr int kLayers = 32;
  if (!bench.wants("request")) return;
  size_t layer_bytes = 0;
  for (const Gemm& p : kGemms)
    layer_bytes += static_cast<size_t>(p.in) * static_cast<size_t>(p.out) * (p.silu ? 4 : 2);
  const size_t head_bytes = static_cast<size_t>(kHidden) * kVocab * 2;
  const Memory weights(kLayers * layer_bytes + head_bytes, 3, 0.02f);
  const Memory x(size_t{kHidden} * 2, 4), qkv(size_t{kQkv} * 2, 5), out(size_t{kHidden} * 2, 6),
      inner(size_t{kInner} * 2, 7), logits(size_t{kVocab} * 4, 8), ints(4096, 0),
      frequencies(256, 9, 1e-3f);
  for (const int context : {128, 1024, 8192}) {
    const size_t plane = static_cast<size_t>(context) * kKvHeads * kDim * 2;
    const Memory kv(2 * plane * kLayers, 10);
    std::vector<int32_t> pages(static_cast<size_t>(context) / 16);
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
    const Memory table(pages.size() * 4, 0);
    const int32_t host[] = {0, 1, context - 1, 0, context - 1};  // begins, prefix, page, row
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(table.get(), pages.data(), pages.size() * 4, cudaMemcpyDefault));
    must(cudaMemcpy(ints.get(), host, sizeof(host), cudaMemcpyDefault));
    auto* words = reinterpret_cast<int32_t*>(ints.get());
    const EntryArrays entries{words, words + 2, words + 3, reinterpret_cast<int32_t*>(table.get()),
                              1,     1,         1};
    const AttentionShape shape{
        .num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = kDim, .page_size = 16};
    const size_t bytes = *attention_workspace_bytes(shape, 1, 1);
    const Memory scratch(bytes, 11);
    const LaunchOptions launch{bench.stream(), true};
    const auto step = [&](int) {
      must(attention_plan(shape, entries, scratch.get(), bytes, launch));
      size_t at = 0;
      const auto gemm = [&](const Gemm& p, const Memory& from, const Memory& to) {
        const LinearArgs args = gemm_args(p, 1, from, weights.get(at), to, true);
        must(linear.run(args, workspace.get(), workspace.bytes(), launch));
        at += static_cast<size_t>(p.in) * static_cast<size_t>(p.out) * (p.silu ? 4 : 2);
      };
      for (int layer = 0; layer < kLayers; ++layer) {
        KvPlanes planes{.k = kv.get(2 * plane * static_cast<size_t>(layer)),
                        .v = kv.get(2 * plane * static_cast<size_t>(layer) + plane),
                        .page_size = 16,
                        .num_kv_heads = kKvHeads,
                        .head_dim = kDim,
                        .page_stride = 16 * kKvHeads * kDim,
                        .token_stride = kKvHeads * kDim,
                        .head_stride = kDim};
        gemm(kGemms[0], x, qkv);
        must(qk_rope_append({.q = qkv.get(),
                             .q_stride = kQkv,
                             .k = qkv.get(kHidden * 2),
                             .k_stride = kQkv,
                             .v = qkv.get((kHidden + kKvHeads * kDim) * 2),
                             .v_stride = kQkv,
                             .tokens = 1,
                             .num_heads = kHeads,
                             .positions = words + 2,
                             .frequencies = reinterpret_cast<float*>(frequencies.get()),
                             .rotary_dim = kDim,
                             .kv = planes,
                             .kv_rows = words + 4},
                            launch));
        must(attention({.shape = shape,
                        .entries = entries,
                        .kv = planes,
                        .q = qkv.get(),
                        .q_stride = kQkv,
                        .out = out.get(),
                        .out_stride = kHidden,
                        .scale = 0.0884f,
                        .workspace = scratch.get(),
                        .workspace_bytes = bytes},
                       launch));
        gemm(kGemms[1], out, x);
        gemm(kGemms[2], x, inner);
        gemm(kGemms[3], inner, x);
      }
      const LinearArgs head{.out_type = DType::kFloat32,
                            .rows = 1,
                            .in_features = kHidden,
                            .out_features = kVocab,
                            .x = x.get(),
                            .x_stride = kHidden,
                            .weights = weights.get(kLayers * layer_bytes),
                            .y = logits.get(),
                            .y_stride = kVocab};
      must(linear.run(head, workspace.get(), workspace.bytes(), launch));
    };
    bench.row(fmt::format("request: step at {} tokens", context), bench.time(step, 1),
              static_cast<double>(weights.bytes()) + 2.0 * static_cast<double>(plane) * kLayers, 0);
  }
}

// Entries in groups of `size` that share their first `tokens`, in the same pages.
struct SharedBy {
  int size = 0, tokens = 0;
  bool at_once = false;  // read once for the group
};

// The layout of keys and values.
struct Lie {
  bool scattered = false;  // pages without order
  bool with_new = false;   // new ones besides their pages, as adjacent rows
};

// One call of attention over entries of these lengths, each of `tokens` new tokens.
void attention_row(Bench& bench, const std::string& name, const std::vector<int>& prefixes,
                   int tokens, int page_size, const SharedBy& by = {}, int fixed_split = 0,
                   const Lie& lie = {}) {
  if (!bench.wants(name)) return;
  std::vector<int32_t> begins{0}, page_begins, pages;
  int64_t positions = 0, pairs = 0;
  int32_t next_page = 0;
  std::vector<SharedSegment> segments;
  std::vector<int32_t> members, memberships(prefixes.size() * 2 * kSegmentsPerEntry, -1);
  for (const int prefix : prefixes) {
    begins.push_back(begins.back() + tokens);
    page_begins.push_back(static_cast<int32_t>(pages.size()));
    const auto entry = std::ssize(page_begins) - 1;
    const bool first = by.size == 0 || entry % by.size == 0;
    for (int i = 0; i < (prefix + tokens + page_size - 1) / page_size; ++i) {
      const bool shared = !first && i < by.tokens / page_size;
      pages.push_back(shared ? pages[static_cast<size_t>(
                                   page_begins[static_cast<size_t>(entry / by.size * by.size)] + i)]
                             : next_page++);
    }
    positions += prefix + tokens - (first ? 0 : by.tokens);
    if (by.at_once) {
      if (first)
        segments.push_back({.end = by.tokens,
                            .page_begin = page_begins.back(),
                            .first_member = static_cast<int32_t>(entry),
                            .num_members = by.size});
      memberships[static_cast<size_t>(entry) * 2 * kSegmentsPerEntry] =
          static_cast<int32_t>(segments.size() - 1);
      memberships[static_cast<size_t>(entry) * 2 * kSegmentsPerEntry + 1] =
          static_cast<int32_t>(entry % by.size);
      members.push_back(static_cast<int32_t>(entry));
    }
    pairs += int64_t{tokens} * prefix + int64_t{tokens} * (tokens + 1) / 2;
  }
  if (lie.scattered) {
    uint64_t state = 1;
    for (size_t i = pages.size(); i > 1; --i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      std::swap(pages[i - 1], pages[(state >> 33) % i]);
    }
  }
  const size_t plane =
      static_cast<size_t>(next_page) * static_cast<size_t>(page_size) * kKvHeads * kDim * 2;
  const int copies = static_cast<int>(std::clamp<size_t>((size_t{256} << 20) / plane, 1, 16));
  const Memory k(plane * static_cast<size_t>(copies), 6), v(plane * static_cast<size_t>(copies), 7);
  const auto total = static_cast<size_t>(begins.back());
  const Memory q(total * kQkv * 2, 8), out(total * kHeads * kDim * 2, 9);
  const auto device = [](const std::vector<int32_t>& values) {
    auto memory = std::make_unique<Memory>(values.size() * 4 + 16, 0);
    must(cudaMemcpy(memory->get(), values.data(), values.size() * 4, cudaMemcpyDefault));
    return memory;
  };
  must(cudaDeviceSynchronize());
  const auto db = device(begins), dp = device(prefixes), dpb = device(page_begins),
             dpages = device(pages);
  const auto ints = [](const std::unique_ptr<Memory>& m) {
    return reinterpret_cast<const int32_t*>(m->get());
  };
  const auto shared_numbers = device({static_cast<int32_t>(segments.size())}),
             shared_members = device(members), shared_memberships = device(memberships),
             own_begins = device(std::vector<int32_t>(prefixes.size(), by.tokens));
  const Memory shared_segments(segments.size() * sizeof(SharedSegment) + 16, 0);
  must(cudaMemcpy(shared_segments.get(), segments.data(), segments.size() * sizeof(SharedSegment),
                  cudaMemcpyDefault));
  EntryArrays entries{
      ints(db),      ints(dp), ints(dpb), ints(dpages), static_cast<int32_t>(prefixes.size()),
      begins.back(), tokens};
  if (by.at_once)
    entries.shared = {ints(shared_numbers),
                      reinterpret_cast<const SharedSegment*>(shared_segments.get()),
                      ints(shared_members), ints(shared_memberships), ints(own_begins)};
  const AttentionShape shape{.num_heads = kHeads,
                             .num_kv_heads = kKvHeads,
                             .head_dim = kDim,
                             .page_size = page_size,
                             .fixed_split = fixed_split,
                             .max_context = std::ranges::max(prefixes) + tokens};
  const size_t bytes = *attention_workspace_bytes(shape, entries.num_entries, entries.num_tokens);
  const Memory workspace(bytes, 10);
  must(attention_plan(shape, entries, workspace.get(), bytes, {bench.stream()}));
  const auto call = [&](int i) {
    const size_t at = static_cast<size_t>(i % copies) * plane;
    must(attention({.shape = shape,
                    .entries = entries,
                    .kv = {.k = k.get(at),
                           .v = v.get(at),
                           .page_size = page_size,
                           .num_kv_heads = kKvHeads,
                           .head_dim = kDim,
                           .page_stride = int64_t{page_size} * kKvHeads * kDim,
                           .token_stride = kKvHeads * kDim,
                           .head_stride = kDim},
                    .new_keys = lie.with_new ? q.get(kHidden * 2) : nullptr,
                    .new_values = lie.with_new ? q.get((kHidden + kKvHeads * kDim) * 2) : nullptr,
                    .new_kv_stride = kQkv,
                    .q = q.get(),
                    .q_stride = kQkv,
                    .out = out.get(),
                    .out_stride = kHeads * kDim,
                    .scale = 0.0884f,
                    .workspace = workspace.get(),
                    .workspace_bytes = bytes},
                   {bench.stream(), true}));
  };
  const double seconds = bench.time(call, 16, 5);
  bench.row(name, seconds, static_cast<double>(positions) * kKvHeads * kDim * 4,
            static_cast<double>(pairs) * kHeads * kDim * 4);
}

void attention_rows(Bench& bench) {
  for (const int page_size : {1, 16, 64})
    attention_row(bench, fmt::format("attention: decode 64 x 4k, pages of {}", page_size),
                  std::vector<int>(64, 4095), 1, page_size);
  for (const int length : {128, 1024, 8192, 131072})
    attention_row(bench, fmt::format("attention: decode 1 x {}", length), {length - 1}, 1, 16);
  // Rows of draft tokens.
  for (const int tokens : {2, 4})
    for (const int entries : {1, 16})
      attention_row(bench, fmt::format("attention: decode {} x 1024, {} tokens", entries, tokens),
                    std::vector<int>(static_cast<size_t>(entries), 1024 - tokens), tokens, 16);
  attention_row(bench, "attention: decode 256 x 1k", std::vector<int>(256, 1023), 1, 16);
  attention_row(bench, "attention: decode 512 x 300", std::vector<int>(512, 299), 1, 16);
  std::vector<int> skewed(31, 4095);
  skewed.push_back(131071);
  attention_row(bench, "attention: decode 31 x 4k and 1 x 128k", skewed, 1, 16);
  for (const bool at_once : {false, true}) {
    const char* how = at_once ? ", read once" : "";
    attention_row(bench, fmt::format("attention: decode 512 x 2304, 16 share 2048{}", how),
                  std::vector<int>(512, 2303), 1, 1, {16, 2048, at_once});
    attention_row(bench, fmt::format("attention: decode 256 x 1152, all share 1024{}", how),
                  std::vector<int>(256, 1151), 1, 1, {256, 1024, at_once});
  }
  attention_row(bench, "attention: decode 512 x 16 after, 16 share 2048, read once",
                std::vector<int>(512, 2063), 1, 1, {16, 2048, true});
  attention_row(bench, "attention: decode 512 x 256, pages of 1", std::vector<int>(512, 255), 1, 1);
  for (const int split : {256, 1024}) {
    attention_row(bench, fmt::format("attention: decode 64 x 4k, pages of 1, fixed {}", split),
                  std::vector<int>(64, 4095), 1, 1, {}, split);
    attention_row(bench, fmt::format("attention: prefill 4096, fixed {}", split), {0}, 4096, 16, {},
                  split);
  }
  for (const int entries : {16, 128})
    attention_row(bench, fmt::format("attention: decode {} x 1k, pages of 1", entries),
                  std::vector<int>(static_cast<size_t>(entries), 1030), 1, 1);
  for (const int tokens : {512, 4096, 8192, 16384}) {
    attention_row(bench, fmt::format("attention: prefill {}", tokens), {0}, tokens, 16);
    attention_row(bench, fmt::format("attention: prefill {}, scattered pages of 1", tokens), {0},
                  tokens, 1, {}, 0, {.scattered = true});
    attention_row(bench, fmt::format("attention: prefill {}, scattered, new rows given", tokens),
                  {0}, tokens, 1, {}, 0, {.scattered = true, .with_new = true});
  }
  attention_row(bench, "attention: prefill 16 x 1000", std::vector<int>(16, 0), 1000, 16);
  attention_row(bench, "attention: prefill 16 x 1000, scattered, new rows given",
                std::vector<int>(16, 0), 1000, 1, {}, 0, {.scattered = true, .with_new = true});
  attention_row(bench, "attention: chunk of 512 after 32k", {32768}, 512, 16);
}

void elementwise(Bench& bench) {
  for (const int rows : {1, 128, 256, 8192}) {
    if (!bench.wants("elementwise")) continue;
    const auto n = static_cast<size_t>(rows);
    const Memory x(n * kInner * 4, 11), r(n * kHidden * 2, 12), y(n * kInner * 2, 13);
    const LaunchOptions launch{bench.stream(), true};
    const double norm = bench.time(
        [&](int) {
          must(rms_norm({.x = x.get(),
                         .x_stride = kHidden,
                         .residual = r.get(),
                         .residual_stride = kHidden,
                         .weight = y.get(),
                         .y = y.get(),
                         .y_stride = kHidden,
                         .rows = rows,
                         .dim = kHidden},
                        launch));
        },
        20);
    bench.row(fmt::format("elementwise: norm and residual, {} rows", rows), norm,
              static_cast<double>(n) * kHidden * 8, 0);
    const double silu = bench.time(
        [&](int) {
          must(silu_mul({.gate = x.get(),
                         .gate_stride = 2 * kInner,
                         .up = x.get(kInner * 2),
                         .up_stride = 2 * kInner,
                         .y = y.get(),
                         .y_stride = kInner,
                         .rows = rows,
                         .dim = kInner},
                        launch));
        },
        20);
    bench.row(fmt::format("elementwise: silu and multiply, {} rows", rows), silu,
              static_cast<double>(n) * kInner * 6, 0);
    std::vector<int32_t> positions(n), where(n);
    for (size_t i = 0; i < n; ++i) positions[i] = where[i] = static_cast<int32_t>(i);
    const Memory dp(n * 4 + 16, 0), frequencies(1024, 1), pages(n * 2 * kKvHeads * kDim * 2, 14);
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(dp.get(), positions.data(), n * 4, cudaMemcpyDefault));
    const double rope = bench.time(
        [&](int) {
          must(qk_rope_append({.q = x.get(),
                               .q_stride = kQkv,
                               .k = x.get(kHidden * 2),
                               .k_stride = kQkv,
                               .v = x.get(kHidden * 2 + kKvHeads * kDim * 2),
                               .v_stride = kQkv,
                               .tokens = rows,
                               .num_heads = kHeads,
                               .positions = reinterpret_cast<int32_t*>(dp.get()),
                               .frequencies = reinterpret_cast<float*>(frequencies.get()),
                               .rotary_dim = kDim,
                               .kv = {.k = pages.get(),
                                      .v = pages.get(n * kKvHeads * kDim * 2),
                                      .page_size = 1,
                                      .num_kv_heads = kKvHeads,
                                      .head_dim = kDim,
                                      .page_stride = kKvHeads * kDim,
                                      .token_stride = kKvHeads * kDim,
                                      .head_stride = kDim},
                               .kv_rows = reinterpret_cast<int32_t*>(dp.get())},
                              launch));
        },
        20);
    bench.row(fmt::format("elementwise: rope and append, {} rows", rows), rope,
              static_cast<double>(n) * (2 * kHeads + 4 * kKvHeads) * kDim * 2, 0);
  }
}

void sampling(Bench& bench) {
  for (const int rows : {1, 16, 64, 128, 256}) {
    if (!bench.wants("sample")) continue;
    const auto n = static_cast<size_t>(rows);
    Memory logits(n * kVocab * 4, 15);
    std::vector<float> host(n * kVocab);
    uint64_t state = 1;
    for (float& x : host) {  // near enough to normal, deviation 2.5
      float sum = 0;
      for (int i = 0; i < 4; ++i) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        sum += static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
      }
      x = sum * 4.33f;
    }
    must(cudaMemcpy(logits.get(), host.data(), host.size() * 4, cudaMemcpyDefault));
    const Memory workspace(n * kVocab * 4, 16), ints(n * 16, 0), slots(n * sizeof(SlotSampling), 0);
    must(cudaDeviceSynchronize());
    std::vector<int32_t> rows_of(n);
    for (size_t i = 0; i < n; ++i) rows_of[i] = static_cast<int32_t>(i);
    must(cudaMemcpy(ints.get(), rows_of.data(), n * 4, cudaMemcpyDefault));
    const std::pair<const char*, SlotSampling> cases[] = {
        {"greedy", {{.temperature = 0}}},
        {"temperature", {{.temperature = 0.8f}}},
        {"top_k 50", {{.temperature = 0.8f, .top_k = 50}}},
        {"top_p 0.95", {{.temperature = 0.8f, .top_p = 0.95f}}},
        {"top_k 50, top_p 0.9", {{.temperature = 0.8f, .top_p = 0.9f, .top_k = 50}}}};
    for (const auto& [name, slot] : cases) {
      std::vector<SlotSampling> all(n, slot);
      for (size_t i = 0; i < n; ++i) all[i].seed = i;
      must(cudaMemcpy(slots.get(), all.data(), n * sizeof(SlotSampling), cudaMemcpyDefault));
      auto* words = reinterpret_cast<int32_t*>(ints.get());
      const double seconds = bench.time(
          [&](int) {
            must(sample({.logits = reinterpret_cast<float*>(logits.get()),
                         .logits_stride = kVocab,
                         .rows = rows,
                         .vocab_size = kVocab,
                         .slots = reinterpret_cast<SlotSampling*>(slots.get()),
                         .row_slots = words,
                         .output_indices = words,
                         .tokens = words + n,
                         .statuses = words + 2 * n,
                         .workspace = workspace.get(),
                         .workspace_bytes = workspace.bytes()},
                        {bench.stream(), true}));
          },
          4);
      bench.row(fmt::format("sample {} rows: {}", rows, name), seconds,
                static_cast<double>(n) * kVocab * 4, 0);
    }
  }
}

// GEMMs of e4m3, with scales of rows or of blocks: the rounding of the rows, each GEMM on rounded
// rows, and the chain of a step's layers, whose weights are read one behind the other.
void e4m3(Bench& bench, Linear& linear, Memory& workspace, bool blocks) {
  const std::string type = blocks ? "blocks of e4m3" : "e4m3";
  if (!bench.wants(type)) return;
  constexpr int kLayers = 32;
  size_t layer_bytes = 0;
  for (const Gemm& p : kGemms)
    layer_bytes += static_cast<size_t>(p.in) * static_cast<size_t>(p.out) * (p.silu ? 2 : 1);
  const Memory weights(kLayers * layer_bytes, 3, 0.02f);  // the bytes of bfloat16 are e4m3 too
  const Memory scales(size_t{8192} * kInner / size_t{kScaleBlock} * 4, 6),
      x(size_t{8192} * kInner * 2, 4), rounded(size_t{8192} * kInner, 4),
      y(size_t{8192} * kInner * 2, 5, 1e-3f);
  const auto args = [&](const Gemm& p, int rows, size_t at) {
    LinearArgs out = gemm_args(p, rows, x, weights.get(at), y, false);
    out.weight_scales = reinterpret_cast<const float*>(scales.get());
    out.block_scales = blocks;
    out.residual = p.residual ? y.get() : nullptr;
    return out;
  };
  for (const int rows : {1, 16, 64, 128, 256, 2048}) {
    const LaunchOptions launch{bench.stream(), true};
    size_t at = 0;
    for (const Gemm& p : kGemms) {
      LinearArgs gemm = args(p, rows, at);
      must(linear.tune({&gemm, 1}, workspace.get(), workspace.bytes(), bench.stream()));
      const QuantizeRowsArgs quantize{.x = x.get(),
                                      .x_stride = p.in,
                                      .y = reinterpret_cast<uint8_t*>(rounded.get()),
                                      .scales = reinterpret_cast<float*>(workspace.get()),
                                      .group_stride = blocks ? group_scale_stride(rows) : 0,
                                      .rows = rows,
                                      .dim = p.in};
      const auto bytes = static_cast<double>(p.in) * static_cast<double>(p.out) * (p.silu ? 2 : 1);
      bench.row(fmt::format("{} {} rows: rounding of {}", type, rows, p.in),
                bench.time([&](int) { must(quantize_rows(quantize, launch)); }, 16),
                3.0 * rows * p.in, 0);
      const double seconds = bench.time(
          [&](int i) {
            LinearArgs one = args(p, rows, at + i % 8 * layer_bytes);
            one.x = rounded.get();
            one.x_scales = reinterpret_cast<const float*>(scales.get());
            if (blocks) one.x_scale_stride = group_scale_stride(rows);
            must(linear.run(one, workspace.get(), workspace.bytes(), launch));
          },
          16);
      bench.row(fmt::format("{} {} rows: {} {}x{}", type, rows, p.name, p.out, p.in), seconds,
                bytes, 2.0 * rows * bytes);
      at += bytes > 0 ? static_cast<size_t>(bytes) : 0;
    }
    if (rows > 256) continue;
    const double seconds = bench.time(
        [&](int) {
          size_t from = 0;
          for (int layer = 0; layer < kLayers; ++layer) {
            for (const Gemm& p : kGemms) {
              must(linear.run(args(p, rows, from), workspace.get(), workspace.bytes(), launch));
              from += static_cast<size_t>(p.in) * static_cast<size_t>(p.out) * (p.silu ? 2 : 1);
            }
          }
        },
        4);
    bench.row(fmt::format("{} {} rows: a layer of {}, with rounding", type, rows, kLayers),
              seconds / kLayers, static_cast<double>(layer_bytes), 0);
  }
}

// GEMMs with weights of 4 bits in groups of 128: each one, and the chain of a step's layers, whose
// weights are read one behind the other.
void int4(Bench& bench, Linear& linear, Memory& workspace) {
  if (!bench.wants("int4")) return;
  constexpr int kLayers = 32;
  constexpr Int4Format kFormat{.group = 128};
  const auto bytes_of = [&](const Gemm& p) {
    return static_cast<size_t>(int4_bytes(kFormat, int64_t{p.out} * (p.silu ? 2 : 1), p.in));
  };
  size_t layer_bytes = 0;
  for (const Gemm& p : kGemms) layer_bytes += bytes_of(p);
  const Memory weights(kLayers * layer_bytes, 3, 0.02f);  // any bytes are codes and scales
  const Memory x(size_t{8192} * kInner * 2, 4), y(size_t{8192} * kInner * 2, 5, 1e-3f);
  const auto args = [&](const Gemm& p, int rows, size_t at) {
    LinearArgs out = gemm_args(p, rows, x, weights.get(at), y, false);
    out.int4 = kFormat;
    out.residual = p.residual ? y.get() : nullptr;
    return out;
  };
  for (const int rows : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048}) {
    const LaunchOptions launch{bench.stream(), true};
    size_t at = 0;
    for (const Gemm& p : kGemms) {
      LinearArgs gemm = args(p, rows, at);
      must(linear.tune({&gemm, 1}, workspace.get(), workspace.bytes(), bench.stream()));
      const double seconds = bench.time(
          [&](int i) {
            must(linear.run(args(p, rows, at + i % 8 * layer_bytes), workspace.get(),
                            workspace.bytes(), launch));
          },
          16);
      bench.row(fmt::format("int4 {} rows: {} {}x{}", rows, p.name, p.out, p.in), seconds,
                static_cast<double>(bytes_of(p)),
                2.0 * rows * p.in * static_cast<double>(p.out) * (p.silu ? 2 : 1));
      at += bytes_of(p);
    }
    const double seconds = bench.time(
        [&](int) {
          size_t from = 0;
          for (int layer = 0; layer < kLayers; ++layer) {
            for (const Gemm& p : kGemms) {
              must(linear.run(args(p, rows, from), workspace.get(), workspace.bytes(), launch));
              from += bytes_of(p);
            }
          }
        },
        4);
    bench.row(fmt::format("int4 {} rows: a layer of {}", rows, kLayers), seconds / kLayers,
              static_cast<double>(layer_bytes), 0);
  }
}

// GEMMs of many rows, and what tuning chose.
void prefill(Bench& bench, Linear& linear, Memory& workspace) {
  for (const int rows : {512, 2048, 8192}) {
    if (!bench.wants("prefill linear")) continue;
    const Memory x(static_cast<size_t>(rows) * kInner * 2, 17),
        y(static_cast<size_t>(rows) * kInner * 2, 18);
    for (const Gemm& p : kGemms) {
      const Memory w(static_cast<size_t>(p.in) * static_cast<size_t>(p.out) * (p.silu ? 4 : 2), 19,
                     0.02f);
      const LinearArgs args = gemm_args(p, rows, x, w.get(), y, false);
      must(linear.tune({&args, 1}, workspace.get(), workspace.bytes(), bench.stream()));
      const double seconds = bench.time(
          [&](int) {
            must(linear.run(args, workspace.get(), workspace.bytes(), {bench.stream()}));
          },
          4);
      bench.row(fmt::format("prefill linear {} rows: {} {}x{}", rows, p.name, p.out, p.in), seconds,
                static_cast<double>(w.bytes()), static_cast<double>(w.bytes()) * rows);
    }
  }
}

}  // namespace

int run(const std::string& only, const std::string& json_path) {
  const auto traits = device_traits();
  must(traits ? Status() : traits.error());
  Bench bench(only);
  auto linear = Linear::create({});
  must(linear ? Status() : linear.error());
  Memory workspace(size_t{1} << 30, 20);
  ceilings(bench, **linear, workspace);
  small_rows(bench, **linear, workspace);
  batch_products(bench);
  one_request(bench, **linear, workspace);
  attention_rows(bench);
  elementwise(bench);
  sampling(bench);
  for (const bool blocks : {false, true}) e4m3(bench, **linear, workspace, blocks);
  int4(bench, **linear, workspace);
  prefill(bench, **linear, workspace);
  experts(bench);
  coded_experts(bench);
  if (!json_path.empty()) std::ofstream(json_path) << "[\n" << bench.json << "\n]\n";
  return 0;
}

}  // namespace espalier::kernels::cuda

int main(int argc, char** argv) {
  CLI::App app("Measures the GPU's ceilings, then each kernel as a share of them");
  std::string only, json;
  app.add_option("--only", only, "only rows whose name holds this");
  app.add_option("--json", json, "write the rows to this file");
  CLI11_PARSE(app, argc, argv);
  return espalier::kernels::cuda::run(only, json);
}
