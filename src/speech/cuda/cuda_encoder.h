// The encoder of a Whisper model on a GPU: a window of a log-mel spectrogram becomes rows that the
// decoder attends to. Owns scratch, taken by create(); one thread calls it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "media/mel.h"
#include "speech/cuda/cuda_layers.h"
#include "speech/whisper_config.h"

namespace espalier::speech {

class CudaSpeechEncoder {
 public:
  // All are borrowed and outlive the encoder.
  static Result<std::unique_ptr<CudaSpeechEncoder>> create(const WhisperSizes& sizes,
                                                           const CudaWhisperWeights& weights,
                                                           CudaLayers& layers);

  // The GEMMs of a window, for CudaLayers::tune().
  std::vector<kernels::cuda::LinearArgs> gemms() const;

  // As WhisperEncoder::encode(); the rows, [max_source_positions, width] on the device, are there
  // in the stream's order until the next call, which waits for the copy of this one's frames.
  Result<const void*> encode(const MelSpectrogram& mel, int64_t first);
  int64_t device_bytes() const { return block_.size_bytes(); }

 private:
  using Linear = CudaLayers::Linear;
  CudaSpeechEncoder(const WhisperSizes& sizes, const CudaWhisperWeights& weights,
                    CudaLayers& layers)
      : sizes_(sizes), weights_(weights), layers_(layers) {}
  Status reserve();
  void lay_out(cuda::Arena& arena);
  Status bring(const MelSpectrogram& mel, int64_t first);
  Status convolve(const Linear& linear, const CudaLayers::Table& neighbours, const int32_t* ids,
                  int32_t rows, void* y);
  Status run_layer(const EncoderLayerOf<CudaFormat>& layer);

  const WhisperSizes& sizes_;
  const CudaWhisperWeights& weights_;
  CudaLayers& layers_;
  cuda::DeviceBuffer block_;
  cuda::PinnedBuffer pinned_;       // the frames, in the weights' type
  cuda::Event brought_;             // they may be overwritten
  bool waiting_ = false;            // brought_ is of a copy
  std::byte* frames_ = nullptr;     // [window_frames + 2, num_mels], zeros in front and behind
  std::byte* convolved_ = nullptr;  // [window_frames + 2, width], the same
  std::byte* x_ = nullptr;          // [max_source_positions, width]
  std::byte* normed_ = nullptr;     // the same
  std::byte* wide_ = nullptr;       // the widest between them, or neighbours of a convolution
  int32_t* counts_ = nullptr;       // [window_frames]: 0, 1, 2, ...
  int32_t* evens_ = nullptr;        // [max_source_positions]: 0, 2, 4, ...
};

}  // namespace espalier::speech
