// LoRA on the GPU against the slow reference, in both element types: ranks and adapters mixed in a
// batch, the same bits however rows are arranged, and replayed from a graph.
#include <map>
#include <memory>
#include <set>

#include "kernels/cuda/test_device.h"
#include "kernels/lora/cuda.h"
#include "kernels/lora/op.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

std::vector<float> rounded_to(DType type, std::vector<float> values) {
  if (type == DType::kBFloat16)
    for (float& value : values) value = to_float(to_bfloat16(value));
  return values;
}
DeviceArray<uint8_t> upload(DType type, const std::vector<float>& values) {
  DeviceArray<uint8_t> out(values.size() * dtype_size(type));
  if (type == DType::kFloat32) {
    cudaMemcpy(out.get(), values.data(), values.size() * 4, cudaMemcpyDefault);
  } else {
    cudaMemcpy(out.get(), test::to_bfloat16s(values).data(), values.size() * 2, cudaMemcpyDefault);
  }
  return out;
}
std::vector<float> download(DType type, const DeviceArray<uint8_t>& array) {
  const std::vector<uint8_t> bytes = array.read();
  std::vector<float> floats(bytes.size() / dtype_size(type));
  if (type == DType::kFloat32) {
    std::memcpy(floats.data(), bytes.data(), bytes.size());
    return floats;
  }
  std::vector<BFloat16> halves(floats.size());
  std::memcpy(halves.data(), bytes.data(), bytes.size());
  return test::to_floats(halves);
}

// One adapter for the parts of one matrix, on both sides.
struct TestAdapter {
  std::vector<std::unique_ptr<LoraFactors>> factors;  // of each part; null: not adapted
  std::vector<DeviceArray<uint8_t>> memory;
  DeviceArray<cuda::LoraPart> parts{2 * cuda::kLoraPartsMax};
};

// A matrix and what computes with it.
struct TestMatrix {
  DType type = DType::kBFloat16;
  cuda::LoraMatrix matrix;
  int64_t outputs = 0;
  int32_t rank_max = 0;

  TestMatrix(DType type_, int32_t in, const std::vector<int32_t>& outs) : type(type_) {
    matrix = {.index = 1, .in_features = in, .part_count = static_cast<int32_t>(outs.size())};
    for (size_t i = 0; i < outs.size(); ++i) {
      matrix.parts[i] = {static_cast<int32_t>(outputs), outs[i]};
      outputs += outs[i];
    }
  }

  std::unique_ptr<TestAdapter> adapter(Rng& rng, int32_t rank, bool all_parts) {
    auto out = std::make_unique<TestAdapter>();
    std::vector<cuda::LoraPart> parts(2 * cuda::kLoraPartsMax);
    const int32_t padded = cuda::padded_lora_rank(rank);
    rank_max = std::max(rank_max, padded);
    for (int32_t i = 0; i < matrix.part_count; ++i) {
      out->factors.push_back(nullptr);
      if (!all_parts && rng.below(3) == 0) continue;
      const int64_t in = matrix.in_features, outs = matrix.parts[i].out_features;
      const auto a = rounded_to(type, test::random_floats(rng, rank * in, 0.05));
      const auto b = rounded_to(type, test::random_floats(rng, rank * outs, 0.5));
      auto packed = LoraFactors::pack(a, b, rank, 0.5f, type);
      EXPECT_TRUE(packed);
      out->factors.back() = std::make_unique<LoraFactors>(*std::move(packed));
      std::vector<float> padded_a(static_cast<size_t>(padded * in), 0.0f);
      std::vector<float> padded_b(static_cast<size_t>(padded * outs), 0.0f);
      std::ranges::copy(a, padded_a.begin());
      for (int64_t o = 0; o < outs; ++o)
        std::copy_n(b.begin() + o * rank, rank, padded_b.begin() + o * padded);
      out->memory.push_back(upload(type, padded_a));
      out->memory.push_back(upload(type, padded_b));
      parts[static_cast<size_t>(matrix.index * cuda::kLoraPartsMax + i)] = {
          (out->memory.end() - 2)->get(), out->memory.back().get(), padded, 0.5f};
    }
    out->parts.set(parts);
    return out;
  }
};

using RowAdapters = std::vector<const TestAdapter*>;  // of each row; null: none

std::vector<cuda::LoraTile> tiles_of(const RowAdapters& rows) {
  std::map<const TestAdapter*, std::vector<int32_t>> by_adapter;
  for (size_t row = 0; row < rows.size(); ++row)
    if (rows[row] != nullptr) by_adapter[rows[row]].push_back(static_cast<int32_t>(row));
  std::vector<cuda::LoraTile> tiles;
  int32_t first = 0;
  for (const auto& [adapter, own] : by_adapter)
    for (size_t i = 0; i < own.size(); i += cuda::kLoraTileRows) {
      cuda::LoraTile& tile = tiles.emplace_back();
      tile.parts = adapter->parts.get();
      tile.first = first;
      tile.num_rows = static_cast<int32_t>(std::min<size_t>(cuda::kLoraTileRows, own.size() - i));
      std::copy_n(own.begin() + static_cast<std::ptrdiff_t>(i), tile.num_rows, tile.rows);
      first += tile.num_rows;
    }
  return tiles;
}

// Tiles on the device, with room for more.
struct DeviceTiles {
  DeviceArray<int32_t> count{1};
  DeviceArray<cuda::LoraTile> tiles;
  cuda::LoraRows rows;

  DeviceTiles(const RowAdapters& adapters, int32_t max_tiles, int32_t max_rows)
      : tiles(static_cast<size_t>(max_tiles)) {
    set(adapters);
    rows = {count.get(), tiles.get(), max_tiles, max_rows};
  }
  void set(const RowAdapters& adapters) {
    const std::vector<cuda::LoraTile> host = tiles_of(adapters);
    tiles.set(host);
    count.set({static_cast<int32_t>(host.size())});
  }
};

void run_lora(cuda::LoraArgs args, const cuda::LaunchOptions& launch) {
  const Status shrunk = cuda::lora_shrink(args, launch);
  ASSERT_TRUE(shrunk.ok()) << shrunk.to_string();
  args.x = nullptr;
  const Status expanded = cuda::lora_expand(args, launch);
  ASSERT_TRUE(expanded.ok()) << expanded.to_string();
}

std::vector<float> compute(const TestMatrix& m, const RowAdapters& adapters,
                           const std::vector<float>& x, const std::vector<float>& y,
                           int32_t max_rows, bool pdl) {
  const DeviceArray<uint8_t> device_x = upload(m.type, x), device_y = upload(m.type, y);
  DeviceTiles tiles(adapters, std::max<int32_t>(1, static_cast<int32_t>(adapters.size())),
                    max_rows);
  const int64_t bytes = cuda::lora_workspace_bytes(m.matrix, max_rows, m.rank_max);
  DeviceArray<uint8_t> workspace(static_cast<size_t>(bytes));
  const auto rows = static_cast<int64_t>(adapters.size());
  run_lora({.type = m.type,
            .matrix = m.matrix,
            .rows = tiles.rows,
            .x = device_x.get(),
            .x_stride = std::ssize(x) / rows,
            .y = device_y.get(),
            .y_stride = std::ssize(y) / rows,
            .rank_max = m.rank_max,
            .workspace = reinterpret_cast<float*>(workspace.get()),
            .workspace_bytes = bytes},
           {.pdl = pdl});
  return download(m.type, device_y);
}

std::vector<float> expected(const TestMatrix& m, const RowAdapters& adapters,
                            const std::vector<float>& x, std::vector<float> y) {
  const auto rows = static_cast<int64_t>(adapters.size());
  std::vector<LoraSegment> segments;
  for (int64_t row = 0; row < rows; ++row) {
    const TestAdapter* adapter = adapters[static_cast<size_t>(row)];
    if (adapter == nullptr) continue;
    for (int32_t i = 0; i < m.matrix.part_count; ++i) {
      const LoraFactors* factors = adapter->factors[static_cast<size_t>(i)].get();
      if (factors != nullptr) segments.push_back({factors, row, 1, m.matrix.parts[i].column});
    }
  }
  reference::lora({x.data(), std::ssize(x) / rows, y.data(), std::ssize(y) / rows, segments});
  return y;
}

class CudaLora : public test::OnDevice {
 protected:
  RowAdapters choose(const std::vector<std::unique_ptr<TestAdapter>>& adapters, int32_t rows) {
    RowAdapters out;
    for (int32_t row = 0; row < rows; ++row) {
      const size_t which = rng_.below(adapters.size() + 1);
      out.push_back(which == adapters.size() ? nullptr : adapters[which].get());
    }
    return out;
  }
  std::vector<float> draw(DType type, int64_t count) {
    return rounded_to(type, test::random_floats(rng_, count));
  }
};

struct LoraShape {
  int32_t in = 0;
  std::vector<int32_t> outs;
  int32_t rows = 0;
};

TEST_F(CudaLora, AddsWhatTheReferenceAdds) {
  const LoraShape shapes[] = {{64, {48, 16, 16}, 5},   {8, {8}, 1},          {512, {512}, 33},
                              {4096, {1024, 256}, 70}, {5000, {264, 40}, 9}, {640, {96}, 700},
                              {14336, {512}, 20}};
  int round = 0;
  for (const DType type : {DType::kFloat32, DType::kBFloat16})
    for (const LoraShape& shape : shapes) {
      SCOPED_TRACE(std::to_string(shape.in) + " inputs, " + std::string(dtype_name(type)));
      TestMatrix m(type, shape.in, shape.outs);
      std::vector<std::unique_ptr<TestAdapter>> adapters;
      for (const int32_t rank : {16, 8, 40, 1})
        adapters.push_back(m.adapter(rng_, rank, rank == 16));
      if (shape.rows < 100) adapters.push_back(m.adapter(rng_, 256, true));
      const RowAdapters rows = choose(adapters, shape.rows);
      const auto x = draw(type, int64_t{shape.rows} * (shape.in + 8));
      const auto y = draw(type, shape.rows * (m.outputs + 16));
      const auto got = compute(m, rows, x, y, shape.rows, ++round % 2 == 1);
      const auto want = expected(m, rows, x, y);
      double worst = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        // One rounding of the result, and float32's of sums whose terms are up to a few units.
        const double size = type == DType::kBFloat16 ? 0x1.0p-8 : 1e-5;
        const double error = std::abs(double{got[i]} - want[i]);
        const double scaled =
            error / (size * std::abs(want[i]) + (type == DType::kBFloat16 ? 0x1.0p-9 : 1e-4));
        worst = std::isnan(scaled) ? 1e30 : std::max(worst, scaled);
      }
      EXPECT_LE(worst, 1.0);
      RecordProperty("worst_" + std::to_string(round), std::to_string(worst));
    }
}

TEST_F(CudaLora, ARowHasTheSameBitsInAnyBatch) {
  for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
    TestMatrix m(type, 4608, {328, 64});
    std::vector<std::unique_ptr<TestAdapter>> adapters;
    for (const int32_t rank : {16, 48, 8}) adapters.push_back(m.adapter(rng_, rank, true));
    constexpr int32_t kRows = 60;
    const RowAdapters rows = choose(adapters, kRows);
    const auto x = draw(type, int64_t{kRows} * m.matrix.in_features);
    const auto y = draw(type, kRows * m.outputs);
    const auto together = compute(m, rows, x, y, kRows, true);
    // More rows than have a block for each chunk.
    EXPECT_EQ(together, compute(m, rows, x, y, 4000, false));
    for (int32_t row = 0; row < kRows; row += 7) {
      const auto from = [&](const std::vector<float>& all) {
        const auto width = std::ssize(all) / kRows;
        return std::vector<float>(all.begin() + row * width, all.begin() + (row + 1) * width);
      };
      const auto alone = compute(m, {rows[static_cast<size_t>(row)]}, from(x), from(y), 1, false);
      EXPECT_EQ(alone, from(together)) << "row " << row;
    }
  }
}

// What a graph was captured with says nothing of the steps that replay it.
TEST_F(CudaLora, AGraphReadsTheRowsOfItsStep) {
  TestMatrix m(DType::kBFloat16, 1024, {512, 128, 128});
  std::vector<std::unique_ptr<TestAdapter>> adapters;
  for (int i = 0; i < 40; ++i) adapters.push_back(m.adapter(rng_, 16, true));
  constexpr int32_t kRows = 64;
  const auto x = draw(m.type, int64_t{kRows} * m.matrix.in_features);
  const auto y = draw(m.type, kRows * m.outputs);
  const DeviceArray<uint8_t> device_x = upload(m.type, x);
  DeviceArray<uint8_t> device_y = upload(m.type, y);
  DeviceTiles tiles(RowAdapters(kRows, nullptr), kRows, kRows);
  const int64_t bytes = cuda::lora_workspace_bytes(m.matrix, kRows, m.rank_max);
  DeviceArray<uint8_t> workspace(static_cast<size_t>(bytes));
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  run_lora({.type = m.type,
            .matrix = m.matrix,
            .rows = tiles.rows,
            .x = device_x.get(),
            .x_stride = m.matrix.in_features,
            .y = device_y.get(),
            .y_stride = m.outputs,
            .rank_max = m.rank_max,
            .workspace = reinterpret_cast<float*>(workspace.get()),
            .workspace_bytes = bytes},
           {.stream = stream, .pdl = true});
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t replay = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  for (int round = 0; round < 6; ++round) {
    RowAdapters rows(kRows, nullptr);
    if (round > 0) rows = choose(adapters, kRows);
    tiles.set(rows);
    const std::vector<uint8_t> before = upload(m.type, y).read();
    device_y.set(before);
    ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(download(m.type, device_y), compute(m, rows, x, y, kRows, false)) << round;
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_F(CudaLora, RefusesWhatItCannotCompute) {
  TestMatrix m(DType::kBFloat16, 64, {32});
  m.rank_max = 16;
  cuda::LoraArgs args{
      .type = m.type, .matrix = m.matrix, .x_stride = 64, .y_stride = 32, .rank_max = 16};
  EXPECT_TRUE(cuda::lora_shrink(args, {}).ok()) << "no rows";
  args.rows.max_rows = 4;
  EXPECT_EQ(cuda::lora_shrink(args, {}).code(), StatusCode::kInvalidArgument) << "no workspace";
  args.rows.max_rows = 0;
  args.matrix.parts[0].column = 4;
  EXPECT_EQ(cuda::lora_expand(args, {}).code(), StatusCode::kInvalidArgument);
  args.type = DType::kFloat16;
  EXPECT_EQ(cuda::lora_expand(args, {}).code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace espalier::kernels
