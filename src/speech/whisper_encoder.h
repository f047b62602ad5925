// The encoder of a Whisper model on the CPU: frames of a log-mel spectrogram become rows that the
// decoder attends to.
//
// Not thread-safe: called from the thread that may run the back end's pool.
#pragma once

#include <span>
#include <vector>

#include "media/mel.h"
#include "speech/cpu_layers.h"
#include "speech/whisper_config.h"
#include "speech/whisper_weights.h"

namespace espalier::speech {

class WhisperEncoder {
 public:
  // All are borrowed and outlive the encoder.
  WhisperEncoder(const WhisperSizes& sizes, const WhisperWeights& weights,
                 kernels::CpuBackend& backend)
      : sizes_(sizes), weights_(weights), backend_(backend) {}

  // The window of sizes.window_frames() frames from `first` on; frames beyond the spectrogram are
  // zero. Returns [max_source_positions, width], valid until the next call.
  // REQUIRES: mel.num_mels is the model's, 0 <= first.
  std::span<const float> encode(const MelSpectrogram& mel, int64_t first);

 private:
  void convolve(const LinearWeights& weights, const float* x, int64_t width, int64_t rows,
                int64_t stride, float* y);
  void run_layer(const EncoderLayerWeights& layer, float* x);

  const WhisperSizes& sizes_;
  const WhisperWeights& weights_;
  kernels::CpuBackend& backend_;
  RowBuffer frames_, neighbours_, convolved_, x_, normed_, wide_, result_;
  BidirectionalAttention attention_;
};

}  // namespace espalier::speech
