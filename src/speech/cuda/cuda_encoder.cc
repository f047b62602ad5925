#include "speech/cuda/cuda_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "kernels/attention/bidirectional.h"

namespace espalier::speech {

namespace kc = kernels::cuda;

Result<std::unique_ptr<CudaSpeechEncoder>> CudaSpeechEncoder::create(
    const WhisperSizes& sizes, const CudaWhisperWeights& weights, CudaLayers& layers) {
  std::unique_ptr<CudaSpeechEncoder> encoder(new CudaSpeechEncoder(sizes, weights, layers));
  ESP_RETURN_IF_ERROR(encoder->reserve());
  return encoder;
}

void CudaSpeechEncoder::lay_out(cuda::Arena& arena) {
  const int64_t bytes = layers_.element_bytes(), width = sizes_.width;
  const int64_t frames = sizes_.window_frames(), rows = sizes_.max_source_positions;
  frames_ = arena.take<std::byte>((frames + 2) * sizes_.num_mels * bytes);
  convolved_ = arena.take<std::byte>((frames + 2) * width * bytes);
  x_ = arena.take<std::byte>(rows * width * bytes);
  normed_ = arena.take<std::byte>(rows * width * bytes);
  const int64_t widest = std::max(
      {rows * 3 * width, rows * sizes_.encoder.intermediate_size, frames * 3 * sizes_.num_mels});
  wide_ = arena.take<std::byte>(widest * bytes);
  counts_ = arena.take<int32_t>(frames);
  evens_ = arena.take<int32_t>(rows);
}

Status CudaSpeechEncoder::reserve() {
  cuda::Arena measured;
  lay_out(measured);
  ESP_ASSIGN_OR_RETURN(
      block_, cuda::DeviceBuffer::allocate(measured.used_bytes(), "scratch of speech's encoder"));
  cuda::Arena arena(block_.data());
  lay_out(arena);
  ESP_ASSIGN_OR_RETURN(brought_, cuda::Event::create());
  const int64_t frame_bytes =
      int64_t{sizes_.window_frames()} * sizes_.num_mels * layers_.element_bytes();
  const int64_t count_bytes = int64_t{sizes_.window_frames()} * int64_t{sizeof(int32_t)};
  ESP_ASSIGN_OR_RETURN(pinned_, cuda::PinnedBuffer::allocate(std::max(frame_bytes, count_bytes),
                                                             "frames of speech"));
  const cuda::Stream& stream = layers_.stream();
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(block_.data(), 0, block_.size_bytes(), stream));
  auto* const numbers = reinterpret_cast<int32_t*>(pinned_.data());
  std::iota(numbers, numbers + sizes_.window_frames(), 0);
  ESP_RETURN_IF_ERROR(cuda::copy_to_device(counts_, numbers, count_bytes, stream));
  ESP_RETURN_IF_ERROR(stream.synchronize());
  for (int32_t i = 0; i < sizes_.max_source_positions; ++i) numbers[i] = 2 * i;
  ESP_RETURN_IF_ERROR(cuda::copy_to_device(
      evens_, numbers, int64_t{sizes_.max_source_positions} * int64_t{sizeof(int32_t)}, stream));
  return stream.synchronize();
}

std::vector<kc::LinearArgs> CudaSpeechEncoder::gemms() const {
  const int32_t rows = sizes_.max_source_positions;
  // Behind the row of zeros, which stays.
  std::byte* const convolved = convolved_ + sizes_.width * layers_.element_bytes();
  std::vector<kc::LinearArgs> out = {
      layers_.linear_args(weights_.conv1, wide_, sizes_.window_frames(), convolved),
      layers_.linear_args(weights_.conv2, wide_, rows, x_)};
  if (weights_.encoder_layers.empty()) return out;
  const EncoderLayerOf<CudaFormat>& layer = weights_.encoder_layers[0];
  out.push_back(layers_.linear_args(layer.attention.qkv, normed_, rows, wide_));
  out.push_back(layers_.linear_args(layer.attention.output, normed_, rows, x_));
  out.back().residual = x_;
  out.push_back(layers_.linear_args(layer.mlp.up, normed_, rows, wide_));
  out.push_back(layers_.linear_args(layer.mlp.down, wide_, rows, x_));
  out.back().residual = x_;
  return out;
}

// Frame by frame, of which those beyond the spectrogram are zero.
Status CudaSpeechEncoder::bring(const MelSpectrogram& mel, int64_t first) {
  const int64_t frames = sizes_.window_frames(), mels = sizes_.num_mels;
  if (waiting_) ESP_RETURN_IF_ERROR(brought_.synchronize());
  const int64_t there = std::clamp<int64_t>(mel.num_frames - first, 0, frames);
  const int64_t bytes = frames * mels * layers_.element_bytes();
  std::memset(pinned_.data(), 0, static_cast<size_t>(bytes));
  const auto write = [&](auto* out, const auto& rounded) {
    for (int64_t row = 0; row < mels; ++row) {
      const auto values = mel.row(static_cast<int32_t>(row));
      for (int64_t i = 0; i < there; ++i)
        out[i * mels + row] = rounded(values[static_cast<size_t>(first + i)]);
    }
  };
  if (layers_.type() == DType::kFloat32) {
    write(reinterpret_cast<float*>(pinned_.data()), [](float value) { return value; });
  } else {
    write(reinterpret_cast<BFloat16*>(pinned_.data()),
          [](float value) { return to_bfloat16(value); });
  }
  ESP_RETURN_IF_ERROR(cuda::copy_to_device(frames_ + mels * layers_.element_bytes(), pinned_.data(),
                                           bytes, layers_.stream()));
  waiting_ = true;
  return brought_.record(layers_.stream());
}

// Rows of three neighbours side by side, which overlap in the table.
Status CudaSpeechEncoder::convolve(const Linear& linear, const CudaLayers::Table& neighbours,
                                   const int32_t* ids, int32_t rows, void* y) {
  ESP_RETURN_IF_ERROR(layers_.gather(neighbours, ids, rows, wide_));
  ESP_RETURN_IF_ERROR(layers_.linear(linear, wide_, rows, y));
  return layers_.gelu(y, rows, linear.matrix.outputs);
}

Status CudaSpeechEncoder::run_layer(const EncoderLayerOf<CudaFormat>& layer) {
  const int32_t rows = sizes_.max_source_positions, width = sizes_.width;
  const int64_t part = width * layers_.element_bytes();
  ESP_RETURN_IF_ERROR(layers_.norm(layer.attention.norm, x_, normed_, rows));
  ESP_RETURN_IF_ERROR(layers_.linear(layer.attention.qkv, normed_, rows, wide_));
  const int32_t head_dim = sizes_.head_dim(sizes_.encoder);
  ESP_RETURN_IF_ERROR(
      kc::bidirectional_attention({.type = layers_.type(),
                                   .num_heads = sizes_.encoder.num_heads,
                                   .head_dim = head_dim,
                                   .sequences = 1,
                                   .rows = rows,
                                   .q = wide_,
                                   .k = wide_ + part,
                                   .v = wide_ + 2 * part,
                                   .stride = int64_t{3} * width,
                                   .out = normed_,
                                   .out_stride = width,
                                   .scale = 1 / std::sqrt(static_cast<float>(head_dim))},
                                  layers_.launch()));
  ESP_RETURN_IF_ERROR(layers_.linear(layer.attention.output, normed_, rows, x_, true));
  return layers_.mlp(layer.mlp, x_, normed_, wide_, rows);
}

Result<const void*> CudaSpeechEncoder::encode(const MelSpectrogram& mel, int64_t first) {
  ESP_CHECK(mel.num_mels == sizes_.num_mels && first >= 0);
  const int32_t frames = sizes_.window_frames(), rows = sizes_.max_source_positions;
  const int32_t mels = sizes_.num_mels, width = sizes_.width;
  ESP_RETURN_IF_ERROR(bring(mel, first));
  ESP_RETURN_IF_ERROR(convolve(weights_.conv1, {frames_, frames, mels, 3 * mels}, counts_, frames,
                               convolved_ + width * layers_.element_bytes()));
  ESP_RETURN_IF_ERROR(
      convolve(weights_.conv2, {convolved_, frames, width, 3 * width}, evens_, rows, x_));
  ESP_RETURN_IF_ERROR(layers_.add(weights_.source_positions, x_, rows));
  for (const EncoderLayerOf<CudaFormat>& layer : weights_.encoder_layers)
    ESP_RETURN_IF_ERROR(run_layer(layer));
  ESP_RETURN_IF_ERROR(layers_.norm(weights_.encoder_norm, x_, normed_, rows));
  return static_cast<const void*>(normed_);
}

}  // namespace espalier::speech
