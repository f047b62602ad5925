// Weights that are drawn on the device.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "checkpoint/json_object.h"
#include "kernels/linear/quantize_rows.h"
#include "kernels/random/cuda.h"
#include "models/cuda/tensor_loader.h"
#include "models/weight_source.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

// What config.json states that a checkpoint's matrices are stored in, of FP8 in blocks.
Result<WeightCodes> stated_codes(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "config.json")) return WeightCodes();
  ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(folder / "config.json"));
  if (!config.has("quantization_config")) return WeightCodes();
  ESP_ASSIGN_OR_RETURN(const JsonObject quantization, config.object("quantization_config"));
  if (!quantization.has("weight_block_size")) return WeightCodes();
  ESP_ASSIGN_OR_RETURN(const std::vector<int64_t> block,
                       quantization.integers("weight_block_size"));
  const bool known = block == std::vector<int64_t>{kc::kScaleBlock, kc::kScaleBlock};
  return WeightCodes{.e4m3 = known, .block_scales = known};
}

class DummyLoader final : public CudaTensorLoader {
 public:
  DummyLoader(uint64_t seed, const WeightCodes& codes, cuda::Stream stream)
      : seed_(seed), codes_(codes), stream_(std::move(stream)) {}

  Status put(const TensorPart& part, DType type, std::byte* device) override {
    return later([=, this] {
      return draw(part, part.slice.value_or(TensorSlice::whole(part.shape)), type, device);
    });
  }
  WeightCodes stored_codes(const std::string&) const override { return codes_; }
  Status put_e4m3(const TensorPart& part, std::byte* device, float* scales) override {
    return later([=, this] { return draw_e4m3(part, device, scales); });
  }
  Status put_block_e4m3(const TensorPart& part, std::byte* device, float* scales) override {
    return later([=, this] { return draw_block_e4m3(part, device, scales); });
  }
  Status put_int4(const TensorPart& part, const kc::Int4Destination& to) override {
    return later([=, this] {
      return draw_rows(part, [&](const TensorSlice& slice, int64_t row) {
        kc::Int4Destination rows = to;
        rows.first_row += static_cast<int32_t>(row);
        rows.rows = static_cast<int32_t>(slice.rows);
        return kc::quantize_int4({.x = drawn_.data(), .x_stride = slice.columns, .to = rows},
                                 {.stream = stream_.get()});
      });
    });
  }
  Status put_mxfp4(const std::string& name, int64_t count,
                   const kc::Mxfp4Destination& to) override {
    const int64_t rows = to.rows, columns = to.shape.in_features;
    for (int64_t i = 0; i < count; ++i) {
      const TensorSlice slice{
          .first_row = i * rows, .rows = rows, .first_column = 0, .columns = columns};
      kc::Mxfp4Destination matrix = to;
      matrix.records = static_cast<std::byte*>(to.records) + i * to.shape.size_bytes();
      ESP_RETURN_IF_ERROR(put_rounded_mxfp4({name, {count * rows, columns}, slice}, matrix));
    }
    return Status();
  }
  Status put_rounded_mxfp4(const TensorPart& part, const kc::Mxfp4Destination& to) override {
    return later([=, this] {
      return draw_rows(part, [&](const TensorSlice& slice, int64_t row) {
        kc::Mxfp4Destination rows = to;
        rows.first_row += static_cast<int32_t>(row) * to.row_step;
        rows.rows = static_cast<int32_t>(slice.rows);
        return kc::quantize_mxfp4({.x = drawn_.data(), .x_stride = slice.columns, .to = rows},
                                  {.stream = stream_.get()});
      });
    });
  }
  Status put_bytes(const std::string& name, std::span<const int64_t>, std::byte*) override {
    return error(StatusCode::kUnimplemented, "'{}': quantised weights cannot be made up", name);
  }
  Status start() override {
    for (const std::function<Status()>& draw : std::exchange(requested_, {}))
      ESP_RETURN_IF_ERROR(draw());
    return Status();
  }
  Status finish() override { return stream_.synchronize(); }

 private:
  static constexpr int64_t kDrawnBytes = int64_t{64} << 20;

  // Nothing is written in front of start(): a loader may be dropped without it.
  Status later(std::function<Status()> draw) {
    requested_.push_back(std::move(draw));
    return Status();
  }

  Status draw_e4m3(const TensorPart& part, std::byte* device, float* scales) {
    return draw_rows(part, [&](const TensorSlice& slice, int64_t row) {
      return kc::quantize_rows({.x = drawn_.data(),
                                .x_stride = slice.columns,
                                .y = reinterpret_cast<uint8_t*>(device) + row * slice.columns,
                                .scales = scales + row,
                                .rows = static_cast<int32_t>(slice.rows),
                                .dim = static_cast<int32_t>(slice.columns)},
                               {.stream = stream_.get()});
    });
  }
  // Codes of rows, whose scales are about alike, with one of these for all.
  Status draw_block_e4m3(const TensorPart& part, std::byte* device, float* scales) {
    const TensorSlice all = part.slice.value_or(TensorSlice::whole(part.shape));
    ESP_ASSIGN_OR_RETURN(const cuda::DeviceBuffer of_rows,
                         cuda::DeviceBuffer::allocate(all.rows * 4, "scales drawn"));
    auto* from = reinterpret_cast<float*>(of_rows.data());
    ESP_RETURN_IF_ERROR(draw_e4m3(part, device, from));
    float scale = 0;
    ESP_RETURN_IF_ERROR(cuda::copy_to_host(&scale, from, sizeof(scale), stream_));
    ESP_RETURN_IF_ERROR(stream_.synchronize());
    const std::vector<float> values(
        static_cast<size_t>(kc::scale_blocks(all.rows) * kc::block_scale_stride(all.columns)),
        scale);
    ESP_RETURN_IF_ERROR(
        cuda::copy_to_device(scales, values.data(), std::ssize(values) * 4, stream_));
    return stream_.synchronize();
  }

  // Draws some rows at a time, multiples of 8, as bfloat16 into drawn_; round(slice, row) takes
  // them from there, those from `row` of the part on.
  template <typename Round>
  Status draw_rows(const TensorPart& part, const Round& round) {
    if (drawn_.size_bytes() == 0) {
      ESP_ASSIGN_OR_RETURN(drawn_, cuda::DeviceBuffer::allocate(kDrawnBytes, "weights drawn"));
    }
    const TensorSlice all = part.slice.value_or(TensorSlice::whole(part.shape));
    const int64_t row_bytes = all.columns * static_cast<int64_t>(dtype_size(DType::kBFloat16));
    const int64_t step = kDrawnBytes / row_bytes / kc::kInt4Rows * kc::kInt4Rows;
    for (int64_t row = 0; row < all.rows; row += step) {
      TensorSlice slice = all;
      slice.first_row += row;
      slice.rows = std::min(all.rows - row, step);
      ESP_RETURN_IF_ERROR(draw(part, slice, DType::kBFloat16, drawn_.data()));
      ESP_RETURN_IF_ERROR(round(slice, row));
    }
    return Status();
  }

  Status draw(const TensorPart& part, const TensorSlice& slice, DType type, std::byte* device) {
    const int64_t columns = TensorSlice::whole(part.shape).columns;
    const auto [key, centre, deviation] = dummy_tensor(seed_, part.name, part.shape);
    return kc::draw({.type = type,
                     .out = device,
                     .count = slice.num_elements(),
                     .first = slice.first_row * columns + slice.first_column,
                     .columns = slice.columns,
                     .row_stride = columns,
                     .key = key,
                     .centre = centre,
                     .deviation = deviation},
                    {.stream = stream_.get()});
  }

  const uint64_t seed_;
  const WeightCodes codes_;
  const cuda::Stream stream_;
  std::vector<std::function<Status()>> requested_;  // until start()
  cuda::DeviceBuffer drawn_;                        // of what is rounded
};

}  // namespace

Result<std::unique_ptr<CudaTensorLoader>> make_dummy_loader(const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::create());
  ESP_ASSIGN_OR_RETURN(const WeightCodes codes, stated_codes(options.path));
  return std::make_unique<DummyLoader>(options.seed, codes, std::move(stream));
}

}  // namespace espalier
