#include "speech/whisper_encoder.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/activation/op.h"

namespace espalier::speech {

// Row i of y is of the rows i * stride - 1 to i * stride + 1 of x, [rows, width], which is followed
// and preceded by a row of zeros.
void WhisperEncoder::convolve(const LinearWeights& weights, const float* x, int64_t width,
                              int64_t rows, int64_t stride, float* y) {
  float* const neighbours = neighbours_.reserve(rows, 3 * width);
  const size_t row_bytes = static_cast<size_t>(width) * sizeof(float);
  backend_.pool().parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(neighbours + row * 3 * width, x + row * stride * width, 3 * row_bytes);
    }
  });
  linear(backend_, weights, neighbours, y, rows);
  gelu(backend_, y, rows, weights.matrix.out_features());
}

void WhisperEncoder::run_layer(const EncoderLayerWeights& layer, float* x) {
  const int64_t rows = sizes_.max_source_positions, width = sizes_.width;
  float* const normed = normed_.reserve(rows, width);
  float* const wide =
      wide_.reserve(rows, std::max<int64_t>(3 * width, sizes_.encoder.intermediate_size));
  layer_norm(backend_, layer.attention.norm, x, normed, rows);
  linear(backend_, layer.attention.qkv, normed, wide, rows);
  attention_.run(backend_, wide, normed, rows, sizes_.encoder.num_heads,
                 sizes_.head_dim(sizes_.encoder));
  linear(backend_, layer.attention.output, normed, x, rows, true);
  mlp(backend_, layer.mlp, x, normed, wide, rows);
}

std::span<const float> WhisperEncoder::encode(const MelSpectrogram& mel, int64_t first) {
  ESP_CHECK(mel.num_mels == sizes_.num_mels && first >= 0);
  const int64_t frames = sizes_.window_frames(), rows = sizes_.max_source_positions;
  const int64_t mels = sizes_.num_mels, width = sizes_.width;
  // Frame by frame, with a frame of zeros at each end.
  float* const in = frames_.reserve(frames + 2, mels);
  std::fill_n(in, (frames + 2) * mels, 0.0f);
  const int64_t there = std::clamp<int64_t>(mel.num_frames - first, 0, frames);
  for (int64_t row = 0; row < mels; ++row) {
    const auto values = mel.row(static_cast<int32_t>(row));
    for (int64_t i = 0; i < there; ++i) {
      in[(i + 1) * mels + row] = values[static_cast<size_t>(first + i)];
    }
  }
  float* const convolved = convolved_.reserve(frames + 2, width);
  std::fill_n(convolved, width, 0.0f);
  std::fill_n(convolved + (frames + 1) * width, width, 0.0f);
  convolve(weights_.conv1, in, mels, frames, 1, convolved + width);
  float* const x = x_.reserve(rows, width);
  convolve(weights_.conv2, convolved, width, rows, 2, x);
  kernels::add(backend_, x, weights_.source_positions.data(), rows * width);
  for (const EncoderLayerWeights& layer : weights_.encoder_layers) run_layer(layer, x);
  float* const result = result_.reserve(rows, width);
  layer_norm(backend_, weights_.encoder_norm, x, result, rows);
  return {result, static_cast<size_t>(rows * width)};
}

}  // namespace espalier::speech
