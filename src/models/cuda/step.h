// One step of a decoder on the GPU, as its caller describes it. Plain values; borrows all memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"
#include "kernels/attention/cuda.h"
#include "kernels/attention/latent_prefill.h"
#include "kernels/embedding/op.h"
#include "kernels/lora/cuda.h"
#include "seams/control_use.h"

namespace espalier {

// Expanded rows of a step's entries (kernels/attention/latent_prefill.h).
struct ExpandedRows {
  int64_t rows = 0;
  bool has_short_entries = false;  // entries without expanded rows

  void add(int32_t prefix_len, int32_t query_tokens) {
    const int64_t of_entry = kernels::cuda::expanded_rows(prefix_len, query_tokens);
    rows += of_entry;
    has_short_entries |= of_entry == 0;
  }
};

// The adapters of a step's rows, by tokens and by the order of CudaStep::rows. Both empty: no row
// has an adapter.
struct StepAdapters {
  kernels::cuda::LoraRows tokens, wanted;

  bool any() const { return tokens.max_tiles > 0; }
};

// Rows of pictures in place of tokens' embeddings (ForwardBatch::embedding_spans).
struct StepSpan {
  int32_t token_begin = 0;
  int32_t count = 0;
  // [count, hidden_size and its parts (ImagesSpec)] of the decoder's type, in pinned memory of the
  // host or on the device; it stays until the step has ended.
  const void* rows = nullptr;
};

// Of an encoder: sequences of rows that see each other. Without `begins` all have the same length.
struct StepSequences {
  int32_t count = 0;
  int32_t rows_max = 0;             // of one, where there are `begins`
  const int32_t* begins = nullptr;  // [count + 1], on the device
};

// One step, in device memory.
struct CudaStep {
  const int32_t* ids = nullptr;          // [entries.num_tokens], or -1: slot_tokens of token_slots
  const int32_t* token_slots = nullptr;  // [entries.num_tokens]
  const int32_t* slot_tokens = nullptr;  // [slots]: what each slot sampled last
  kernels::cuda::EntryArrays entries;
  // Where ranks have rows of their own (DecoderSpec::whole_attention): the tokens of each rank, of
  // which this one's are entries.num_tokens. Empty: all ranks have as many.
  std::span<const int32_t> rank_tokens;
  // The same entries with the page tables of layers that see a sliding window, where these have
  // pages of their own (see ForwardBatch); else without page_tables.
  kernels::cuda::EntryArrays window_entries;
  // The tokens whose final hidden state is wanted, [num_rows], in the order in which logits()
  // counts them. Null: all of them (num_rows == entries.num_tokens).
  const int32_t* rows = nullptr;
  int32_t num_rows = 0;
  int32_t max_prefix_len = 0;  // of one entry: tokens that attention finds cached
  // Keys at so many positions below an entry's prefix_len may be written by this step, where
  // rows of draft tokens are entries of one slot. 0: an entry's prefix was cached before the step.
  int32_t fresh_positions = 0;
  // Entries of at most this many tokens take the decode kernel, which reads keys and values from
  // pages alone.
  int32_t decode_tokens = 1;
  std::span<const StepSpan> spans;  // in the host's memory; read by forward(), never in a graph
  ExpandedRows expanded;            // what latent attention may expand
  // Components of rotary positions, [entries.num_tokens, 3], where a rope of the model has
  // sections; null: each token's position is all three.
  const int32_t* places = nullptr;
  // Of each token that is a row of a picture whose rows see each other the picture's last position,
  // else -1, [entries.num_tokens]; null: the step has no such picture.
  const int32_t* last_seen = nullptr;
  StepSequences pictures, windows;  // of an encoder; its entries state num_tokens alone
  const int32_t* types = nullptr;   // of an encoder of texts, [entries.num_tokens]
  // Of an encoder with learned positions of a grid, [entries.num_tokens].
  const kernels::MixedRow* grid_positions = nullptr;
  StepAdapters adapters;  // REQUIRES, where there are some: the model takes adapters
  // The control vectors of slots, [slots]; null: no row has one.
  const ControlUse* slot_controls = nullptr;
  // A draft head reads the states of this step, which the kernel of one token's layers keeps none
  // of.
  bool keeps_states = false;
  // Hidden states of this step are returned: CudaDecoder::forward() computes all rows to the end
  // and calls on_states.
  bool returns_states = false;
  // Called by forward() when hidden state `index` of all tokens has been enqueued (0: the
  // embeddings, i: what layer i - 1 leaves); never in a graph. rows: [entries.num_tokens,
  // hidden_size] of the decoder's type, until the next operation. REQUIRED with returns_states.
  const std::function<Status(int32_t index, const void* rows)>* on_states = nullptr;
  const void* states = nullptr;  // of a draft head's step: [entries.num_tokens, width of the input]
  // Called by forward() when the append of a layer's keys and values has been enqueued; never in a
  // graph. Null: not.
  const std::function<Status(int32_t layer)>* on_append = nullptr;
};

}  // namespace espalier
