// What computes a Whisper model for several windows of sound at once: the CPU or a GPU. Each window
// has a slot, which holds the keys and values of its tokens and of the encoder's rows.
//
// Not thread-safe: one thread calls it.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "media/mel.h"
#include "seams/vocab_view.h"
#include "speech/whisper_config.h"
#include "tensor/dtype.h"
#include "tensor/work_pool.h"

namespace espalier::speech {

// New tokens of a slot. `tokens` is borrowed.
struct DecoderEntry {
  int32_t slot = 0;
  int32_t num_cached = 0;           // tokens whose keys and values the slot has
  std::span<const TokenId> tokens;  // at least one
  int32_t logits_row =
      -1;  // of these, whose logits are wanted too, beside the last one's; -1: none
};

struct RunnerInfo {
  DType type = DType::kFloat32;  // of matrices
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;  // in memory
};

class WhisperRunner {
 public:
  virtual ~WhisperRunner() = default;
  virtual const RunnerInfo& info() const = 0;

  // Encodes the window of window_frames() frames from `first` on, of which those beyond the
  // spectrogram are zero, and computes the slot's keys and values of it.
  // REQUIRES: mel.num_mels is the model's, 0 <= first.
  virtual Status set_source(int32_t slot, const MelSpectrogram& mel, int64_t first) = 0;

  // Logits [vocab_size] of each entry: of its last token, behind those of logits_row where there is
  // one. Valid until the next call. REQUIRES: cached and new tokens of an entry are at most
  // max_target_positions; each slot occurs once and has its source.
  virtual Result<std::span<const float>> step(std::span<const DecoderEntry> entries) = 0;
};

// What a runner is made of; all but num_slots and dtype are borrowed and outlive it.
struct RunnerParts {
  const Checkpoint& checkpoint;  // until it is made
  const WhisperSizes& sizes;
  WorkPool& pool;
  std::string_view dtype = "auto";  // whisper_matrix_type()'s
  int32_t num_slots = 1;
};
using MakeRunner = std::function<Result<std::unique_ptr<WhisperRunner>>(const RunnerParts& parts)>;

Result<std::unique_ptr<WhisperRunner>> make_cpu_runner(const RunnerParts& parts);

}  // namespace espalier::speech
