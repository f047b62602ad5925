// The decoder of a Whisper model on a GPU, for several windows of sound at once, each with a slot
// of pages. A step in which every slot has one token is a graph, recorded at its first use for the
// next power of two of slots.
//
// As WhisperRunner: one thread calls it. Owns pages and scratch, taken by create(); afterwards
// nothing is allocated but graphs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention/cuda.h"
#include "speech/cuda/cuda_layers.h"
#include "speech/cuda/step_arrays.h"
#include "speech/whisper_config.h"
#include "speech/whisper_runner.h"

namespace espalier::speech {

class CudaSpeechDecoder {
 public:
  // All but num_slots are borrowed and outlive the decoder.
  static Result<std::unique_ptr<CudaSpeechDecoder>> create(const WhisperSizes& sizes,
                                                           const CudaWhisperWeights& weights,
                                                           CudaLayers& layers, int32_t num_slots);

  // The GEMMs of steps and of set_source(), for CudaLayers::tune().
  std::vector<kernels::cuda::LinearArgs> gemms() const;
  Status set_source(int32_t slot, const void* rows);  // [max_source_positions, width]
  // WhisperRunner's; waits for the logits.
  Result<std::span<const float>> step(std::span<const DecoderEntry> entries);
  int64_t device_bytes() const { return block_.size_bytes() + pages_block_.size_bytes(); }

 private:
  // Keys and values of one kind of positions: of tokens, or of the encoder's rows.
  struct Pages {
    int32_t slot_pages = 0;
    std::byte* planes = nullptr;  // [layers, 2, slots, slot_pages, kPageSize, width]
    int32_t* table = nullptr;     // [slots * slot_pages]: 0, 1, 2, ...
    std::byte* workspace = nullptr;
    int64_t workspace_bytes = 0;
  };
  CudaSpeechDecoder(const WhisperSizes& sizes, const CudaWhisperWeights& weights,
                    CudaLayers& layers, int32_t num_slots);
  Status reserve();
  void lay_out(cuda::Arena& arena);
  Status write_tables();
  int64_t plane_bytes(const Pages& pages) const;
  kernels::cuda::AttentionShape shape() const;
  kernels::cuda::KvPlanes planes(const Pages& pages, size_t layer) const;
  kernels::cuda::EntryArrays entries_of(const SpeechStepSize& size, bool source) const;
  Status run_part(std::span<const DecoderEntry> entries, int64_t first_row);
  Status run_graph(const SpeechStepSize& size);
  Status enqueue(const SpeechStepSize& size);
  Status embed(const SpeechStepSize& size);
  Status attend_to_tokens(size_t layer, const SpeechStepSize& size);
  Status attend_to_source(size_t layer, const SpeechStepSize& size);
  Status attend(const Pages& pages, size_t layer, bool source, const SpeechStepSize& size,
                int64_t q_stride);

  const WhisperSizes& sizes_;
  const CudaWhisperWeights& weights_;
  CudaLayers& layers_;
  const int32_t num_slots_, tokens_max_;  // the latter of a part of a step
  cuda::DeviceBuffer block_, pages_block_;
  cuda::PinnedBuffer pinned_, pinned_logits_;
  Pages tokens_, source_;
  SpeechStepArrays host_, device_;
  int32_t *positions_ = nullptr, *kv_rows_ = nullptr;  // [tokens]
  // Rows of a step, [tokens, width], and of the widest result between them.
  std::byte *x_ = nullptr, *normed_ = nullptr, *wide_ = nullptr;
  float* logits_ = nullptr;                // [2 * num_slots, outputs of the head]
  std::map<int32_t, cuda::Graph> graphs_;  // by number of entries
};

}  // namespace espalier::speech
