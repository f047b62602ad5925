// Sampling on the GPU: from logits to the next token, in the order that seams/sampling.h defines.
// Thread-safe; pointers are borrowed device memory; requirements of streams and strides as
// kernels/cuda/stream.h.
#pragma once

#include <cstddef>

#include "kernels/cuda/stream.h"
#include "seams/sampling.h"

namespace espalier::kernels::cuda {

// The device sampling row of one slot: the numbers of a draw and its lists, which are device memory
// that outlives the steps that name the slot.
struct SlotSampling : SamplingValues {
  // [vocab_size], for slots with penalties, else null: 0 for a token not seen, otherwise 1 + how
  // often it is in the output (1: in the prompt alone). sample() counts what it draws.
  uint16_t* counts = nullptr;
  const int32_t* bias_ids = nullptr;  // [num_bias], each at most once
  const float* bias_values = nullptr;
  const int32_t* banned_ids = nullptr;  // [num_banned]: banned before min_new_tokens
  int32_t num_bias = 0;
  int32_t num_banned = 0;
  LogprobsMode logprobs_mode = LogprobsMode::kProcessed;
};

enum SampleStatus : int32_t {
  kSampleOk = 0,
  kSampleNotFinite = 1,  // a logit is NaN or infinite
  kSampleNoToken = 2,    // the mask and the bans leave none
};

struct SampleArgs {
  const float* logits = nullptr;  // [rows, vocab_size] float32
  int64_t logits_stride = 0;
  int32_t rows = 0;
  int32_t vocab_size = 0;                   // at most 2^19
  const SlotSampling* slots = nullptr;      // [slots]
  const int32_t* row_slots = nullptr;       // [rows]; -1: the row is skipped, its token is -1
  const int32_t* output_indices = nullptr;  // [rows]
  // [rows, mask_stride] words; bit t % 32 of word t / 32 allows token t; null: no row has a mask.
  const uint32_t* masks = nullptr;
  int64_t mask_stride = 0;
  const uint8_t* has_mask = nullptr;  // [rows]; null with masks: all rows have one
  // These two may be pinned memory of the host: each row is written once and never read.
  int32_t* tokens = nullptr;       // [rows]: out, -1 where there is none
  int32_t* statuses = nullptr;     // [rows]: out, SampleStatus
  int32_t* slot_tokens = nullptr;  // [slots]: out, the row's token under its slot; may be null
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  // Blocks of a row: 1, 2, 4 or 8 (1 before Hopper); 0: as many as fill the GPU. The tokens do not
  // depend on it.
  int32_t blocks_per_row = 0;
};

Result<size_t> sample_workspace_bytes(int32_t max_rows, int32_t vocab_size);
// Samples one token a row. The draw is a function of (seed, output_index) and of the row alone,
// whatever the batch: the hash_uniform of the CPU, and probabilities in 44-bit fixed point, so that
// no order of a sum matters.
Status sample(const SampleArgs& args, const LaunchOptions& launch);

// Tokens that were sampled elsewhere, in place of those of sample().
struct PutTokensArgs {
  const int32_t* from = nullptr;  // [rows], pinned memory of the host; -1: the row stays as it is
  const int32_t* row_slots = nullptr;  // [rows]
  int32_t rows = 0;
  int32_t* tokens = nullptr;       // [rows]: out; may be null
  int32_t* slot_tokens = nullptr;  // [slots]: out
};
Status put_tokens(const PutTokensArgs& args, const LaunchOptions& launch);

// Log-probabilities of the raw logits, or of those that sample() drew from.
struct LogprobArgs {
  const float* logits = nullptr;  // [rows, vocab_size]
  int64_t logits_stride = 0;
  int32_t rows = 0;
  int32_t vocab_size = 0;
  const int32_t* targets = nullptr;  // [rows]: whose log-probability; -1: the row is skipped
  float* logprobs = nullptr;         // [rows]: out, of the targets
  // The max_top largest logits of each row, largest first, the smaller id first among equals; 0:
  // none.
  int32_t max_top = 0;            // at most 1024
  int32_t* top_ids = nullptr;     // [rows, max_top]: out, -1 beyond vocab_size
  float* top_logprobs = nullptr;  // [rows, max_top]: out
  // Requested ids of each row, wanted_ids[wanted_begin[row]] to wanted_ids[wanted_begin[row + 1]];
  // null: none.
  const int32_t* wanted_begin = nullptr;  // [rows + 1]
  const int32_t* wanted_ids = nullptr;
  float* wanted_logprobs = nullptr;  // out, in wanted_ids' order
  int32_t* statuses = nullptr;       // [rows]: out, SampleStatus; may be null
  // The arguments of the sample() call before this one on the same stream, whose rows these are:
  // each slot's logprobs_mode says of which logits its log-probabilities are. The logits after
  // penalties, bias, mask and bans are those that sample() has left in its workspace. slots null:
  // raw logits for all rows.
  SampleArgs sampled;
};
Status logprobs(const LogprobArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
