// What a step needs on the device, packed into one pinned block from which one kernel in front of
// the step takes what it needs: no copy engine stands between two steps. Decode steps are padded to
// a number of tokens for which there is a graph: no entry has the added ones.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/executor/cuda/cascade_plan.h"
#include "kernels/attention/cuda.h"
#include "kernels/page_table/cuda.h"
#include "models/cuda/adapter_store.h"
#include "models/cuda/adapter_tiles.h"
#include "models/cuda/decoder.h"
#include "seams/forward_batch.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

struct StepLimits {
  int32_t max_slots = 0;
  int32_t max_entries = 0;        // of a step: a request's, and those of its draft tokens
  int32_t max_tokens = 0;         // of a step
  int32_t max_table_pages = 0;    // of one sequence
  bool window_pages = false;      // room for page tables of layers that see a window
  bool adapters = false;          // entries may have LoRA adapters
  bool places = false;            // rotary positions have three components (M-RoPE)
  bool last_seen = false;         // a picture's rows see each other
  int64_t page_capacity() const;  // new entries of page tables that one kernel brings
};

// The block's parts; the same layout in pinned and in device memory. L = max_entries, T =
// max_tokens.
struct StepArrays {
  int32_t* query_begin = nullptr;     // [L + 1]
  int32_t* prefix_len = nullptr;      // [L]
  int32_t* page_begin = nullptr;      // [L]: into the device's tables
  int32_t* row_slots = nullptr;       // [L]: of the rows that are sampled; -1: padding
  int32_t* output_indices = nullptr;  // [L]
  uint8_t* has_mask = nullptr;        // [L]
  // What entries share; written where something is.
  int32_t* num_shared_segments = nullptr;                   // [1]
  kernels::cuda::SharedSegment* shared_segments = nullptr;  // [L]
  int32_t* shared_members = nullptr;                        // [L * kSegmentsPerEntry]
  int32_t* shared_places = nullptr;                         // [L * kSegmentsPerEntry * 2]
  int32_t* own_begins = nullptr;                            // [L]
  kernels::cuda::LoraTile* adapter_tiles = nullptr;  // [AdapterTiles::capacity(L, T)]; null: none
  kernels::cuda::PageTableRun* runs = nullptr;       // [L], or [2 L] with the windows'; host alone
  int32_t* ids = nullptr;                            // [T]
  int32_t* token_slots = nullptr;                    // [T]
  int32_t* places = nullptr;                         // [T, 3]: CudaStep's; null: none
  int32_t* last_seen = nullptr;                      // [T]: the same
  int32_t* rows = nullptr;  // [L + T]: tokens whose logits are wanted: sampled ones, then inputs'
  int32_t* targets = nullptr;  // [T]: the token whose log-probability each input row returns
  int32_t* pages = nullptr;    // [page_capacity]; host alone

  void lay_out(cuda::Arena& arena, const StepLimits& limits);
};

// What was packed: how the step is to be run.
struct PackedStep {
  int32_t num_entries = 0;  // of attention; with padding, as num_tokens and num_samples
  int32_t num_tokens = 0;
  int32_t num_samples = 0;     // rows that are sampled
  int32_t num_input_rows = 0;  // rows whose input log-probabilities are wanted, after those
  int32_t max_query_tokens = 0;
  int32_t max_prefix_len = 0;
  int32_t fresh_positions = 0, decode_tokens = 1;  // CudaStep's
  ExpandedRows expanded;
  ArrangedTiles adapters;
  int32_t num_masked = 0;
  bool cascade = false;  // some entries' shared prefixes are read once for all of them
  // One token a row, all sampled, no input log-probabilities, no pictures' rows: has graphs.
  bool decode = false;
  bool keeps_states = false;             // CudaStep's
  bool has_controls = false;             // some entry has a control vector
  bool returns_states = false;           // CudaStep's
  std::span<const int32_t> rank_tokens;  // CudaStep's
};

// How attention reads the keys of entries that have some in common.
struct SharedReads {
  std::optional<CascadeCosts> cascade;  // none: each entry reads its own
  // Rows of draft tokens that one entry of decode attention takes together.
  int32_t draft_rows = 1;
};

// Packs batches and keeps the device's page tables up to date. Not thread-safe.
class StepPacker {
 public:
  // stream: what the steps run on; borrowed, as all.
  static Result<StepPacker> create(const StepLimits& limits, const SharedReads& reads,
                                   const cuda::Stream& stream);

  // Whether batches bring page tables for layers that see a window. REQUIRES room for them.
  void set_window_pages(bool on) { window_pages_ = on; }

  // Where entries' adapters are, borrowed; null: entries have none. REQUIRES StepLimits::adapters.
  void set_adapters(CudaAdapterStore* adapters) { adapters_ = adapters; }

  // The control vectors of slots, borrowed; null: there are none.
  void set_controls(const ControlUse* controls) { controls_ = controls; }

  // The smallest number of rows with a graph that holds `rows`.
  static int32_t graph_rows(int32_t rows, int32_t max_rows);

  struct Options {
    bool pad_for_graphs = false;
    // Of ranks with rows of their own: whether all of them have decode entries alone, and the most
    // rows of one, for graphs of all ranks are of one size.
    bool may_decode = true;
    int32_t rows_min = 0;
  };
  // Fills `host` (a pinned block's arrays, which then stay as they are until the step is done) and
  // enqueues what brings them to the device and into its page tables. rows: the batch's entries as
  // the device runs them (DraftRows), or `batch` itself.
  Result<PackedStep> pack(const ForwardBatch& batch, const ForwardBatch& rows,
                          const StepArrays& host, const Options& options);

  // The device's arrays as the model takes them.
  CudaStep step(const PackedStep& packed, const int32_t* slot_tokens) const;
  const StepArrays& device() const { return device_; }
  int64_t block_bytes() const { return block_bytes_; }
  int64_t device_bytes() const { return block_.size_bytes() + tables_.size_bytes(); }

 private:
  struct Table {
    uint64_t version = 0;
    int32_t num_pages = 0;  // on the device
  };
  StepPacker(const StepLimits& limits, const SharedReads& reads, const cuda::Stream& stream)
      : limits_(limits), reads_(reads), stream_(&stream) {}
  Status pack_table(const ForwardBatch& batch, const BatchEntry& entry, const StepArrays& host);
  void pack_pages(const PageId* pages, int32_t count, int64_t begin, const StepArrays& host);
  int64_t table_entries() const {  // of one kind of layers
    return int64_t{limits_.max_slots} * limits_.max_table_pages;
  }
  void pack_entries(const ForwardBatch& rows, const StepArrays& host, PackedStep& packed);
  void pack_rows(const ForwardBatch& batch, const StepArrays& host, PackedStep& packed) const;
  void pack_cascade(const StepArrays& host) const;
  void pack_adapters(const ForwardBatch& rows, const StepArrays& host, PackedStep& packed);
  StepAdapters step_adapters(const PackedStep& packed) const;
  void pad(int32_t rows, const StepArrays& host, PackedStep& packed) const;
  // Brings what has been gathered of tables to the device now, and waits: for steps whose cached
  // prefixes are longer than a block holds.
  Status flush_tables(const StepArrays& host);
  // What is new in the page tables and, where `packed` is given, the step's arrays.
  Status bring(const StepArrays& host, const PackedStep* packed) const;

  StepLimits limits_;
  SharedReads reads_;
  CascadePlan cascade_;
  const cuda::Stream* stream_;
  cuda::DeviceBuffer block_;
  cuda::DeviceBuffer tables_;  // [slots, max_table_pages], then the same of the windows' pages
  StepArrays device_;
  int64_t block_bytes_ = 0;
  std::vector<Table> known_;
  std::vector<int32_t> entry_of_row_;  // of the step that is packed, entries of attention
  bool window_pages_ = false;
  int32_t num_runs_ = 0;
  int64_t num_pages_ = 0;
  CudaAdapterStore* adapters_ = nullptr;
  const ControlUse* controls_ = nullptr;
  AdapterTiles tiles_;
  std::vector<AdapterId> adapter_ids_;  // of each entry
  std::vector<const kernels::cuda::LoraPart*> adapter_parts_;
};

}  // namespace espalier
