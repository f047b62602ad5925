// The kernels between the GEMMs, against the slow references, in both element types.
#include <cmath>
#include <cstdlib>

#include "kernels/activation/cuda.h"
#include "kernels/activation/op.h"
#include "kernels/attention/cuda.h"
#include "kernels/cuda/test_device.h"
#include "kernels/embedding/cuda.h"
#include "kernels/kv_append/cuda.h"
#include "kernels/norm/cuda.h"
#include "kernels/norm/op.h"
#include "kernels/page_copy/cuda.h"
#include "kernels/page_table/cuda.h"
#include "kernels/rope/op.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

// Values of either element type, on the host as float32 (already rounded) and on the device.
struct Values {
  DType type;
  std::vector<float> host;
  DeviceArray<uint8_t> device;

  static Values random(Rng& rng, DType type, size_t count, double deviation = 1.0) {
    auto values = test::random_floats(rng, static_cast<int64_t>(count), deviation);
    if (type == DType::kBFloat16)
      for (float& value : values) value = to_float(to_bfloat16(value));
    Values v{type, values, DeviceArray<uint8_t>(count * dtype_size(type))};
    v.upload();
    return v;
  }
  void upload() {
    if (type == DType::kFloat32)
      cudaMemcpy(device.get(), host.data(), host.size() * 4, cudaMemcpyDefault);
    else
      cudaMemcpy(device.get(), test::to_bfloat16s(host).data(), host.size() * 2, cudaMemcpyDefault);
  }
  std::vector<float> read() const {
    const auto bytes = device.read();
    if (type == DType::kFloat32) {
      std::vector<float> result(bytes.size() / 4);
      std::memcpy(result.data(), bytes.data(), bytes.size());
      return result;
    }
    std::vector<BFloat16> result(bytes.size() / 2);
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return test::to_floats(result);
  }
  // One rounding to `type`, and float32's own.
  double tolerance() const { return type == DType::kFloat32 ? 1e-5 : 0.003; }
};

class CudaElementwise : public test::OnDevice {
 protected:
  static constexpr DType kTypes[] = {DType::kBFloat16, DType::kFloat32};
  cuda::LaunchOptions launch(int round) const { return {.pdl = round % 2 == 1}; }
};

TEST_F(CudaElementwise, RmsNorm) {
  int round = 0;
  for (const DType type : kTypes)
    for (const int dim : {8, 24, 60, 896, 2048, 4096, 5120, 8192, 16384, 32768})
      for (const bool residual : {false, true}) {
        const int rows = static_cast<int>(rng_.between(1, 9));
        const auto count = static_cast<size_t>(rows) * static_cast<size_t>(dim);
        Values x = Values::random(rng_, type, count), sum = Values::random(rng_, type, count);
        Values weight = Values::random(rng_, type, static_cast<size_t>(dim));
        Values y = Values::random(rng_, type, count);
        const Status status = cuda::rms_norm({.type = type,
                                              .x = x.device.get(),
                                              .x_stride = dim,
                                              .residual = residual ? sum.device.get() : nullptr,
                                              .residual_stride = dim,
                                              .weight = weight.device.get(),
                                              .weight_offset = dim % 3 == 0 ? 1.0f : 0.0f,
                                              .y = y.device.get(),
                                              .y_stride = dim,
                                              .rows = rows,
                                              .dim = dim,
                                              .epsilon = 1e-5f},
                                             launch(round++));
        ASSERT_TRUE(status.ok()) << status.message();
        std::vector<float> in = x.host, want(count);
        if (residual)
          for (size_t i = 0; i < count; ++i) {
            in[i] += sum.host[i];
            if (type == DType::kBFloat16) in[i] = to_float(to_bfloat16(in[i]));
          }
        if (dim % 3 == 0)
          for (float& value : weight.host) value += 1.0f;
        reference::rms_norm({.x = in.data(),
                             .x_stride = dim,
                             .y = want.data(),
                             .y_stride = dim,
                             .rows = rows,
                             .dim = dim,
                             .weight = weight.host.data(),
                             .epsilon = 1e-5f});
        EXPECT_LT(test::relative_error(y.read(), want), y.tolerance()) << dim << residual;
        if (residual) {
          EXPECT_EQ(sum.read(), in) << dim;
        }
      }
}

TEST_F(CudaElementwise, LayerNorm) {
  for (const DType type : kTypes)
    for (const int dim : {8, 41, 768, 4100}) {
      const int rows = static_cast<int>(rng_.between(1, 9));
      const auto count = static_cast<size_t>(rows) * static_cast<size_t>(dim);
      Values x = Values::random(rng_, type, count), y = Values::random(rng_, type, count);
      Values both = Values::random(rng_, type, 2 * static_cast<size_t>(dim));
      const Status status =
          cuda::layer_norm({.type = type,
                            .x = x.device.get(),
                            .x_stride = dim,
                            .weight = both.device.get(),
                            .bias = both.device.get() + static_cast<size_t>(dim) * dtype_size(type),
                            .y = y.device.get(),
                            .y_stride = dim,
                            .rows = rows,
                            .dim = dim,
                            .epsilon = 1e-2f},
                           launch(dim));
      ASSERT_TRUE(status.ok()) << status.message();
      std::vector<float> want;
      for (int row = 0; row < rows; ++row) {
        const float* in = x.host.data() + row * dim;
        double mean = 0, variance = 0;
        for (int i = 0; i < dim; ++i) mean += in[i] / static_cast<double>(dim);
        for (int i = 0; i < dim; ++i) variance += (in[i] - mean) * (in[i] - mean) / dim;
        for (int i = 0; i < dim; ++i)
          want.push_back(static_cast<float>((in[i] - mean) / std::sqrt(variance + 1e-2) *
                                                both.host[static_cast<size_t>(i)] +
                                            both.host[static_cast<size_t>(dim + i)]));
      }
      EXPECT_LT(test::relative_error(y.read(), want), y.tolerance()) << dim;
    }
}

TEST_F(CudaElementwise, SiluMul) {
  int round = 0;
  for (const DType type : kTypes)
    for (const int dim : {1, 8, 100, 4864, 14336}) {
      // Enough values that no single rounding (up to 2^-8 of a bfloat16) decides.
      const int rows = static_cast<int>(rng_.between(1, 5)) * (dim < 100 ? 64 : 1);
      const auto count = static_cast<size_t>(rows) * static_cast<size_t>(dim);
      Values both = Values::random(rng_, type, 2 * count, 2.0);
      Values y = Values::random(rng_, type, count);
      const size_t size = dtype_size(type);
      ASSERT_TRUE(cuda::silu_mul({.type = type,
                                  .gate = both.device.get(),
                                  .gate_stride = 2 * dim,
                                  .up = both.device.get() + static_cast<size_t>(dim) * size,
                                  .up_stride = 2 * dim,
                                  .y = y.device.get(),
                                  .y_stride = dim,
                                  .rows = rows,
                                  .dim = dim},
                                 launch(round++))
                      .ok());
      std::vector<float> want(count);
      reference::gated({.gate = both.host.data(),
                        .gate_stride = 2 * dim,
                        .up = both.host.data() + dim,
                        .up_stride = 2 * dim,
                        .y = want.data(),
                        .y_stride = dim,
                        .rows = rows,
                        .dim = dim});
      EXPECT_LT(test::relative_error(y.read(), want), y.tolerance()) << dim;
    }
}

TEST_F(CudaElementwise, GatherTakesIdsOfSlots) {
  for (const DType type : kTypes)
    for (const int dim : {6, 64, 4096}) {
      Values table = Values::random(rng_, type, static_cast<size_t>(50 * dim));
      const DeviceArray<int32_t> ids({3, -1, 49, -1, 0, 50, -2});
      const DeviceArray<int32_t> slots({0, 2, 0, 1, 0, 0, 0});
      const DeviceArray<int32_t> slot_tokens({-1, -1, 17});
      Values out = Values::random(rng_, type, static_cast<size_t>(7 * dim));
      ASSERT_TRUE(cuda::gather_rows({.type = type,
                                     .table = table.device.get(),
                                     .num_rows = 50,
                                     .dim = dim,
                                     .ids = ids.get(),
                                     .token_slots = slots.get(),
                                     .slot_tokens = slot_tokens.get(),
                                     .out = out.device.get(),
                                     .out_stride = dim,
                                     .tokens = 7},
                                    {})
                      .ok());
      const auto got = out.read();
      const int want[] = {3, 17, 49, -1, 0, -1, -1};
      for (int t = 0; t < 7; ++t)
        for (int i = 0; i < dim; ++i)
          ASSERT_EQ(got[static_cast<size_t>(t * dim + i)],
                    want[t] < 0 ? 0.0f : table.host[static_cast<size_t>(want[t] * dim + i)])
              << t << " " << i;
    }
}

// A rank has some rows of the vocabulary; ids of the others are zeros.
TEST_F(CudaElementwise, GatherLeavesOutOtherRanksIds) {
  constexpr int kFirst = 30, kDim = 64;
  Values table = Values::random(rng_, DType::kFloat32, 20 * kDim);
  const DeviceArray<int32_t> ids({30, 49, 29, 50, 0, -1});
  Values out = Values::random(rng_, DType::kFloat32, 6 * kDim);
  ASSERT_TRUE(cuda::gather_rows({.type = DType::kFloat32,
                                 .table = table.device.get(),
                                 .num_rows = 20,
                                 .first_id = kFirst,
                                 .dim = kDim,
                                 .ids = ids.get(),
                                 .out = out.device.get(),
                                 .out_stride = kDim,
                                 .tokens = 6},
                                {})
                  .ok());
  const auto got = out.read();
  const int want[] = {0, 19, -1, -1, -1, -1};
  for (size_t t = 0; t < 6; ++t)
    for (size_t i = 0; i < kDim; ++i)
      ASSERT_EQ(got[t * kDim + i],
                want[t] < 0 ? 0.0f : table.host[static_cast<size_t>(want[t]) * kDim + i])
          << t << " " << i;
}

TEST_F(CudaElementwise, QkNormRopeAppend) {
  int round = 0;
  for (const DType type : kTypes)
    for (const int dim : {64, 80, 96, 128, 256, 576})
      for (const bool norm : {false, true}) {
        const int heads = 6, kv_heads = 2, tokens = 11, page_size = 1 << rng_.below(5);
        const bool latent = dim == 576;  // one plane, the end of a head rotated
        const int rotary = latent ? 64 : rng_.below(2) == 0 ? dim : dim / 2;
        const int rotary_begin = latent ? dim - rotary : 0;
        const float norm_offset = rng_.below(2) == 0 ? 1.0f : 0.0f;
        const bool interleaved = rng_.below(2) == 0, keeps_new = rng_.below(2) == 0;
        const int row = (heads + 2 * kv_heads) * dim, pages = 40;
        Values qkv = Values::random(rng_, type, static_cast<size_t>(tokens * row));
        Values q_norm = Values::random(rng_, type, static_cast<size_t>(dim));
        Values k_norm = Values::random(rng_, type, static_cast<size_t>(dim));
        const auto plane = static_cast<size_t>(pages * page_size * kv_heads * dim);
        Values k = Values::random(rng_, type, plane), v = Values::random(rng_, type, plane);
        std::vector<int32_t> positions, kv_rows;
        std::vector<float> frequencies;
        for (int t = 0; t < tokens; ++t) {
          positions.push_back(static_cast<int32_t>(rng_.below(100000)));
          kv_rows.push_back(t == 5 ? -1 : t * 3);
        }
        for (int i = 0; i < rotary / 2; ++i)
          frequencies.push_back(
              static_cast<float>(std::pow(500000.0, -2.0 * i / static_cast<double>(rotary))));
        const DeviceArray<int32_t> device_positions(positions), device_rows(kv_rows);
        const DeviceArray<float> device_frequencies(frequencies);
        const size_t size = dtype_size(type);
        const auto at = [&](int head) {
          return qkv.device.get() + static_cast<size_t>(head * dim) * size;
        };
        const Status status = cuda::qk_rope_append(
            {.type = type,
             .q = at(0),
             .q_stride = row,
             .k = at(heads),
             .k_stride = row,
             .new_keys = keeps_new ? at(heads) : nullptr,
             .v = latent ? nullptr : at(heads + kv_heads),
             .v_stride = row,
             .tokens = tokens,
             .num_heads = heads,
             .q_norm = norm ? q_norm.device.get() : nullptr,
             .k_norm = norm ? k_norm.device.get() : nullptr,
             .norm_offset = norm_offset,
             .epsilon = 1e-6f,
             .positions = device_positions.get(),
             .frequencies = device_frequencies.get(),
             .rotary_begin = rotary_begin,
             .rotary_dim = rotary,
             .attention_factor = 1.25f,
             .interleaved = interleaved,
             .kv = {.type = type == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16,
                    .k = k.device.get(),
                    .v = latent ? k.device.get() : v.device.get(),
                    .page_size = page_size,
                    .num_kv_heads = kv_heads,
                    .head_dim = dim,
                    .page_stride = page_size * kv_heads * dim,
                    .token_stride = kv_heads * dim,
                    .head_stride = dim},
             .kv_rows = device_rows.get()},
            launch(round++));
        ASSERT_TRUE(status.ok()) << status.message();

        std::vector<float> want = qkv.host, cosines, sines;
        const auto normed = [&](int first, int count, const std::vector<float>& weight) {
          reference::rms_norm({.x = want.data() + first * dim,
                               .x_stride = row,
                               .y = want.data() + first * dim,
                               .y_stride = row,
                               .rows = tokens,
                               .groups = count,
                               .dim = dim,
                               .weight = weight.data(),
                               .epsilon = 1e-6f});
        };
        for (float& value : q_norm.host) value += norm_offset;
        for (float& value : k_norm.host) value += norm_offset;
        if (norm) normed(0, heads, q_norm.host), normed(heads, kv_heads, k_norm.host);
        std::vector<int32_t> table_rows;
        for (int t = 0; t < tokens; ++t) {
          table_rows.push_back(t);
          for (const float frequency : frequencies) {
            const float angle = static_cast<float>(positions[static_cast<size_t>(t)]) * frequency;
            cosines.push_back(static_cast<float>(1.25 * std::cos(double{angle})));
            sines.push_back(static_cast<float>(1.25 * std::sin(double{angle})));
          }
        }
        reference::rope({.x = want.data() + rotary_begin,
                         .x_stride = row,
                         .heads = heads + kv_heads,
                         .head_dim = dim,
                         .positions = table_rows,
                         .cos = cosines.data(),
                         .sin = sines.data(),
                         .rotary_dim = rotary,
                         .interleaved = interleaved});
        std::vector<float> got = qkv.read(), got_q, want_q, want_k = k.host, want_v = v.host;
        const std::vector<float> got_k = k.read();
        for (int t = 0; t < tokens; ++t) {
          for (int i = 0; i < heads * dim; ++i) {
            got_q.push_back(got[static_cast<size_t>(t * row + i)]);
            want_q.push_back(want[static_cast<size_t>(t * row + i)]);
          }
          if (kv_rows[static_cast<size_t>(t)] < 0) continue;
          for (int i = 0; i < kv_heads * dim; ++i) {
            const auto to =
                static_cast<size_t>(kv_rows[static_cast<size_t>(t)] * kv_heads * dim + i);
            const auto from = static_cast<size_t>(t * row + heads * dim + i);
            want_k[to] = want[from];
            EXPECT_EQ(got[from], keeps_new ? got_k[to] : qkv.host[from]) << t << " " << i;
            if (latent) continue;
            want_v[to] = want[static_cast<size_t>(t * row + (heads + kv_heads) * dim + i)];
          }
        }
        // Two roundings where there is a norm.
        const double tolerance = 2 * qkv.tolerance();
        EXPECT_LT(test::relative_error(got_q, want_q), tolerance) << dim << norm << interleaved;
        EXPECT_LT(test::relative_error(got_k, want_k), tolerance) << dim << norm;
        EXPECT_EQ(v.read(), want_v);
      }
}

// Codes are the nearest of what float32 pages get: whole rows of vectors, and heads that take the
// general kernel.
TEST_F(CudaElementwise, QkRopeAppendRoundsToE4m3) {
  for (const int dim : {32, 64, 128, 256})
    for (const float scale : {1.0f, 400.0f}) {  // some values beyond 448
      const int kv_heads = 2, tokens = 9, row = 2 * kv_heads * dim;
      auto values = test::random_floats(rng_, int64_t{tokens} * row, scale);
      const DeviceArray<BFloat16> kv(test::to_bfloat16s(values));
      std::vector<int32_t> positions, rows;
      for (int t = 0; t < tokens; ++t) positions.push_back(t * 31), rows.push_back(tokens - 1 - t);
      std::vector<float> frequencies;
      for (int i = 0; i < dim / 2; ++i) frequencies.push_back(1.0f / static_cast<float>(1 + i));
      const DeviceArray<int32_t> device_positions(positions), device_rows(rows);
      const DeviceArray<float> device_frequencies(frequencies);
      const auto plane = static_cast<size_t>(tokens * kv_heads * dim);
      DeviceArray<float> wide_k(plane), wide_v(plane);
      DeviceArray<uint8_t> k(plane), v(plane);
      const auto append = [&](KvType type, void* to_k, void* to_v) {
        return cuda::qk_rope_append({.k = kv.get(),
                                     .k_stride = row,
                                     .v = kv.get() + kv_heads * dim,
                                     .v_stride = row,
                                     .tokens = tokens,
                                     .positions = device_positions.get(),
                                     .frequencies = device_frequencies.get(),
                                     .rotary_dim = dim,
                                     .kv = {.type = type,
                                            .k = to_k,
                                            .v = to_v,
                                            .page_size = 1,
                                            .num_kv_heads = kv_heads,
                                            .head_dim = dim,
                                            .page_stride = kv_heads * dim,
                                            .token_stride = kv_heads * dim,
                                            .head_stride = dim},
                                     .kv_rows = device_rows.get()},
                                    {});
      };
      ASSERT_TRUE(append(KvType::kFloat32, wide_k.get(), wide_v.get()).ok());
      ASSERT_TRUE(append(KvType::kFloat8E4M3, k.get(), v.get()).ok());
      const auto near = [&](const std::vector<uint8_t>& codes, const std::vector<float>& wide) {
        for (size_t i = 0; i < codes.size(); ++i) {
          const float want = std::clamp(wide[i], -448.0f, 448.0f);
          EXPECT_NEAR(test::of_e4m3(codes[i]), want, std::abs(want) * 0.0626f + 0.001f) << i;
        }
      };
      near(k.read(), wide_k.read());
      near(v.read(), wide_v.read());
    }
}

// Equal components are one position, bit for bit, in the kernel of whole rows (heads of 64 and 128)
// and in the one of any; others are those of three calls, each of which turns a section's pairs.
TEST_F(CudaElementwise, PositionsOfThreeComponents) {
  constexpr int kHeads = 3, kTokens = 9;
  for (const DType type : {DType::kFloat32, DType::kBFloat16})
    for (const int shape : {16, 64, 80, 128, -16, -64, -80, -128}) {  // below 0: pairs take turns
      const int dim = std::abs(shape);
      const bool interleaved = shape < 0;
      const int half = dim / 2;
      const int ends[2] = {interleaved ? 3 * (half / 4) : half / 4,
                           interleaved ? 3 * (half / 5) : half / 2 + 1};
      const size_t count = static_cast<size_t>(kTokens * kHeads * dim), size = dtype_size(type);
      const Values from = Values::random(rng_, type, count);
      std::vector<float> frequencies;
      for (int i = 0; i < half; ++i)
        frequencies.push_back(
            std::pow(100.0f, -2.0f * static_cast<float>(i) / static_cast<float>(dim)));
      const DeviceArray<float> device_frequencies(frequencies);
      const std::vector<uint8_t> original = from.device.read();
      const auto rotate = [&](const std::vector<int32_t>& positions,
                              const std::vector<int32_t>& places) {
        const DeviceArray<uint8_t> q(original), page(count * 4);
        const DeviceArray<int32_t> device_positions(positions), device_places(places);
        const Status status = cuda::qk_rope_append(
            {.type = type,
             .q = q.get(),
             .q_stride = kHeads * dim,
             .k = from.device.get(),
             .k_stride = kHeads * dim,
             .v = from.device.get(),
             .v_stride = kHeads * dim,
             .tokens = kTokens,
             .num_heads = kHeads,
             .positions = device_positions.get(),
             .places = places.empty() ? nullptr : device_places.get(),
             .section_ends = {ends[0], ends[1]},
             .interleaved_sections = interleaved,
             .frequencies = device_frequencies.get(),
             .rotary_dim = dim,
             .kv = {.type = type == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16,
                    .k = page.get(),
                    .v = page.get(),
                    .page_size = 1,
                    .num_kv_heads = kHeads,
                    .head_dim = dim,
                    .page_stride = kHeads * dim,
                    .token_stride = kHeads * dim,
                    .head_stride = dim}},
            {});
        EXPECT_TRUE(status.ok()) << status.to_string();
        return q.read();
      };
      std::vector<int32_t> of[3], equal, places;
      for (int t = 0; t < kTokens; ++t)
        for (auto& component : of) component.push_back(static_cast<int32_t>(rng_.between(0, 500)));
      for (size_t t = 0; t < kTokens; ++t)
        for (const auto& component : of) equal.push_back(of[0][t]), places.push_back(component[t]);
      const std::vector<uint8_t> single[] = {rotate(of[0], {}), rotate(of[1], {}),
                                             rotate(of[2], {})};
      EXPECT_EQ(rotate(of[1], equal), single[0]) << dim;
      const std::vector<uint8_t> got = rotate(of[1], places);
      for (size_t i = 0; i < count; ++i) {
        const int pair = static_cast<int>(i) % dim % half;
        const int turn = pair % 3;
        const int component = !interleaved ? (pair >= ends[0]) + (pair >= ends[1])
                              : turn > 0 && pair < ends[turn - 1] ? turn
                                                                  : 0;
        for (size_t byte = i * size; byte < (i + 1) * size; ++byte)
          ASSERT_EQ(got[byte], single[component][byte]) << dim << " " << i;
      }
    }
}

TEST_F(CudaElementwise, TokenRowsFollowTheEntries) {
  // Entries of 3, 0, 1 and 2 tokens, and two entries without tokens behind them.
  const DeviceArray<int32_t> begin({0, 3, 3, 4, 6, 6, 6}), prefix({5, 9, 0, 31, 7, 7});
  const DeviceArray<int32_t> page_begin({0, 2, 2, 3, 0, 0}), pages({10, 20, 30, 40, 50, 60});
  DeviceArray<int32_t> rows(8), positions(8), entries(8);
  ASSERT_TRUE(cuda::token_rows({.entries = {.query_begin = begin.get(),
                                            .prefix_len = prefix.get(),
                                            .page_begin = page_begin.get(),
                                            .page_tables = pages.get(),
                                            .num_entries = 6,
                                            .num_tokens = 8,
                                            .max_query_tokens = 3},
                                .page_size = 16,
                                .kv_rows = rows.get(),
                                .positions = positions.get(),
                                .token_entries = entries.get()},
                               {})
                  .ok());
  EXPECT_EQ(positions.read(), (std::vector<int32_t>{5, 6, 7, 0, 31, 32, 0, 0}));
  EXPECT_EQ(entries.read(), (std::vector<int32_t>{0, 0, 0, 2, 3, 3, -1, -1}));
  EXPECT_EQ(rows.read(), (std::vector<int32_t>{165, 166, 167, 480, 50 * 16 + 15, 60 * 16, -1, -1}));
}

// As steps do it: three pinned slots in turn, each written again once the launch that read it is
// done, launches behind each other without a wait between them.
TEST_F(CudaElementwise, InputsComeFromPinnedSlotsInTurn) {
  constexpr int kPinnedSlots = 3, kUnits = 1000, kRuns = 1500, kPages = 40000, kEntries = 400000;
  constexpr size_t kPinnedBytes = kUnits * 16 + kRuns * sizeof(cuda::PageTableRun) + kPages * 4;
  struct PinnedSlot {
    std::byte* data = nullptr;
    cudaEvent_t done = nullptr;
  };
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  PinnedSlot pinned_slots[kPinnedSlots];
  for (PinnedSlot& pinned : pinned_slots) {
    ASSERT_EQ(cudaMallocHost(&pinned.data, kPinnedBytes), cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&pinned.done), cudaSuccess);
  }
  const DeviceArray<uint32_t> block(kUnits * 4);
  const DeviceArray<int32_t> tables(kEntries);
  std::vector<uint32_t> want_block = block.read();
  std::vector<int32_t> want_tables = tables.read();
  constexpr int kSteps = 200;
  const DeviceArray<uint32_t> snapshots(size_t{kSteps} * kUnits * 4);  // of the block
  std::vector<uint32_t> want_snapshots;
  for (int step = 0; step < kSteps; ++step) {
    PinnedSlot& pinned = pinned_slots[step % kPinnedSlots];
    ASSERT_EQ(cudaEventSynchronize(pinned.done), cudaSuccess);
    auto* words = reinterpret_cast<uint32_t*>(pinned.data);
    auto* runs = reinterpret_cast<cuda::PageTableRun*>(pinned.data + kUnits * 16);
    auto* pages = reinterpret_cast<int32_t*>(runs + kRuns);
    for (int i = 0; i < kUnits * 4; ++i) words[i] = static_cast<uint32_t>(rng_());
    cuda::BringInputsArgs args{
        .host = words, .device = block.get(), .runs = runs, .pages = pages, .tables = tables.get()};
    int32_t at = 0;
    for (int i = static_cast<int>(rng_.below(cuda::kMaxInputRanges + 1)); i > 0; --i) {
      at += static_cast<int32_t>(rng_.below(30));
      const auto count = static_cast<int32_t>(rng_.below(step % 4 == 0 ? 40 : 4));
      args.ranges[args.num_ranges++] = {.begin = at, .count = count};
      at += count;
    }
    for (int i = 0; i < args.num_ranges; ++i)
      std::copy_n(words + args.ranges[i].begin * 4, args.ranges[i].count * 4,
                  want_block.begin() + args.ranges[i].begin * 4);
    // Runs of one entry each, of several, or none.
    const auto most = static_cast<uint64_t>(step % 3 == 0 ? 1 : step % 3 == 1 ? 40 : 0);
    const uint64_t num_runs = most == 0 ? 0 : rng_.below(step % 5 == 0 ? kRuns : 20);
    int64_t begin = 0;
    for (uint64_t i = 0; i < num_runs; ++i) {
      begin += static_cast<int64_t>(rng_.below(200));
      const auto count =
          static_cast<int32_t>(1 + rng_.below(std::min<uint64_t>(most, kPages / num_runs)));
      runs[args.num_runs++] = {.begin = begin, .source = args.num_pages, .count = count};
      for (int32_t j = 0; j < count; ++j) {
        const auto page = static_cast<int32_t>(rng_.below(1 << 30));
        pages[args.num_pages++] = page;
        want_tables[static_cast<size_t>(begin++)] = page;
      }
    }
    ASSERT_TRUE(cuda::bring_inputs(args, {.stream = stream, .pdl = step % 2 == 0}).ok());
    ASSERT_EQ(cudaEventRecord(pinned.done, stream), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(snapshots.get() + size_t{kUnits} * 4 * static_cast<size_t>(step),
                              block.get(), kUnits * 16, cudaMemcpyDefault, stream),
              cudaSuccess);
    want_snapshots.insert(want_snapshots.end(), want_block.begin(), want_block.end());
  }
  EXPECT_EQ(snapshots.read(), want_snapshots);
  EXPECT_EQ(tables.read(), want_tables);
  for (const PinnedSlot& pinned : pinned_slots)
    cudaFreeHost(pinned.data), cudaEventDestroy(pinned.done);
  cudaStreamDestroy(stream);
}

// More planes and pages than one launch takes.
TEST_F(CudaElementwise, PagesAreCopiedInAllPlanes) {
  constexpr size_t kPlanes = 131, kPages = 700, kWords = 12;  // 48 bytes a page
  std::vector<DeviceArray<int32_t>> planes;
  std::vector<void*> pointers;
  std::vector<std::vector<int32_t>> want;
  for (size_t p = 0; p < kPlanes; ++p) {
    std::vector<int32_t>& words = want.emplace_back();
    for (size_t i = 0; i < kPages * kWords; ++i)
      words.push_back(static_cast<int32_t>(p * kPages * kWords + i));
    pointers.push_back(planes.emplace_back(words).get());
  }
  std::vector<PageId> order(kPages);
  for (size_t i = 0; i < kPages; ++i) order[i] = static_cast<PageId>(i);
  for (size_t i = kPages; i > 1; --i) std::swap(order[i - 1], order[rng_.below(i)]);
  constexpr size_t kCopied = 300;
  const std::span<const PageId> from(order.data(), kCopied), to(order.data() + kCopied, kCopied);
  ASSERT_TRUE(
      cuda::copy_pages({.planes = pointers, .page_bytes = 4 * kWords, .from = from, .to = to}, {})
          .ok());
  for (size_t p = 0; p < kPlanes; ++p) {
    for (size_t i = 0; i < kCopied; ++i)
      for (size_t w = 0; w < kWords; ++w)
        want[p][static_cast<size_t>(to[i]) * kWords + w] =
            want[p][static_cast<size_t>(from[i]) * kWords + w];
    ASSERT_EQ(planes[p].read(), want[p]) << p;
  }
  EXPECT_EQ(cuda::copy_pages({.page_bytes = 20}, {}).code(), StatusCode::kInvalidArgument);
}

TEST_F(CudaElementwise, RefusesWhatItCannotDo) {
  EXPECT_EQ(cuda::rms_norm({.rows = 1, .dim = 40000}, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cuda::rms_norm({.type = DType::kFloat16, .y = this, .rows = 1, .dim = 8}, {}).code(),
            StatusCode::kUnimplemented);
  EXPECT_EQ(
      cuda::qk_rope_append({.tokens = 1, .kv = {.num_kv_heads = 1, .head_dim = 12}}, {}).code(),
      StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace espalier::kernels
