// The decoder of a Whisper model on the CPU, for several windows of sound at once. Each has a slot:
// memory of its own for the keys and values of its tokens and of the encoder's rows.
//
// A row's result has the same bits whatever other slots a step has. Not thread-safe: called from
// the thread that may run the back end's pool.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "seams/forward_batch.h"
#include "seams/kv_view.h"
#include "seams/vocab_view.h"
#include "speech/cpu_layers.h"
#include "speech/whisper_config.h"
#include "speech/whisper_runner.h"
#include "speech/whisper_weights.h"
#include "tensor/buffer.h"

namespace espalier::speech {

class WhisperDecoder {
 public:
  // All but num_slots are borrowed and outlive the decoder. The system commits a slot's memory as
  // it is used. kResourceExhausted where there is none.
  static Result<std::unique_ptr<WhisperDecoder>> create(const WhisperSizes& sizes,
                                                        const WhisperWeights& weights,
                                                        kernels::CpuBackend& backend,
                                                        int32_t num_slots);

  // Computes a slot's keys and values of the encoder's rows, [max_source_positions, width].
  void set_source(int32_t slot, std::span<const float> rows);

  // Logits [vocab_size] of each entry: of its last token, behind those of logits_row where there is
  // one. Valid until the next call. REQUIRES: cached and new tokens of an entry are at most
  // max_target_positions; each slot occurs once and has its source.
  std::span<const float> step(std::span<const DecoderEntry> entries);

  static int64_t slot_bytes(const WhisperSizes& sizes, DType type);

 private:
  WhisperDecoder(const WhisperSizes& sizes, const WhisperWeights& weights,
                 kernels::CpuBackend& backend)
      : sizes_(sizes), weights_(weights), backend_(backend) {}
  Status allocate(int32_t num_slots);
  void begin(std::span<const DecoderEntry> entries);
  float* embed();
  void attend_to_tokens(size_t index, float* x);
  void attend_to_source(size_t index, float* x);
  std::span<const float> logits(const float* x);

  const WhisperSizes& sizes_;
  const WhisperWeights& weights_;
  kernels::CpuBackend& backend_;
  std::vector<Buffer> planes_;
  KvView tokens_kv_, source_kv_;  // a page is a slot
  std::vector<PageId> pages_;     // [num_slots]: 0, 1, 2, ...

  // Of the step that runs: its tokens and their positions, one entry a slot, one a row with all of
  // the source before it, and the rows whose logits are wanted.
  std::vector<TokenId> ids_;
  std::vector<int32_t> positions_, wanted_;
  std::vector<BatchEntry> entries_, source_entries_;
  RowBuffer x_, normed_, wide_, logits_, source_;
};

}  // namespace espalier::speech
