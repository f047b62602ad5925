// Chains of draft tokens by a draft head on the GPU, behind a step's samples and on its stream:
// what the step has accepted is found there, the head reads all rows of the step and then its own
// draft tokens, one a pass, and the host gets accepted tokens and chains with the step's results.
// Nothing waits for the device. Passes of sizes that come again are replayed from graphs.
//
// The head computes keys for rejected rows too: the next step writes them again. What it writes for
// draft tokens lies in the sequence's last page and in pages of this class, which a step appends to
// the device's page table of the slot: the slot's next pages take their place there.
//
// Not thread-safe: the executor's thread alone. Owns the head; sized by create(), but for graphs.
#pragma once

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "engine/executor/cuda/step_block.h"
#include "engine/executor/cuda/step_graphs.h"
#include "kernels/draft/cuda.h"
#include "kernels/page_table/cuda.h"
#include "models/cuda/draft_head.h"
#include "seams/forward_batch.h"
#include "seams/kv_view.h"
#include "seams/step_result.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

class CudaDraftChains {
 public:
  struct Config {
    StepLimits limits;
    int32_t chain_max = 5;
    int32_t page_size = 1;
    int32_t deterministic_context = 0;  // as AttentionLimits'
    bool graphs = true;
  };
  // Reserves and tunes the head.
  static Result<std::unique_ptr<CudaDraftChains>> create(std::unique_ptr<CudaDraftHead> head,
                                                         const Config& config,
                                                         const cuda::Stream& stream);

  // Pages that steps of so many entries need, behind the cache's.
  static int32_t num_pages(int32_t max_slots, int32_t chain_max, int32_t page_size) {
    return max_slots * ((chain_max + page_size - 1) / page_size);
  }
  void set_first_page(PageId page) { first_page_ = page; }

  // What a step in flight has on the host.
  struct Step {
    bool reads = false;  // the head reads the step: some of its entries want its keys
    int32_t num_chains = 0, num_passes = 0;
    std::vector<int32_t> entries;  // of the batch, by chain
    std::vector<int32_t> lengths;

   private:
    friend class CudaDraftChains;
    Status allocate(const Config& config, int64_t input_bytes);
    cuda::PinnedBuffer inputs, outputs;
    cuda::Event begun;
    int32_t num_runs = 0, num_pages = 0;
  };
  Status allocate(Step& step) const;

  // rows: what DraftRows has made of the batch. Fills `step`, whose memory no step in flight uses.
  void pack(const ForwardBatch& batch, const ForwardBatch& rows, const PackedStep& packed,
            Step& step) const;
  // Behind the samples of the step, which are at `sampled`. of: what the target ran. graph_use: as
  // StepGraphs::run() has it. `packed` and `kv` stay until record_graphs().
  Status run(Step& step, const PackedStep& packed, const CudaStep& of, const int32_t* sampled,
             const KvView& kv, GraphUse& graph_use);
  // Makes graphs of the passes that run() had none for, when all of the step has been enqueued.
  Status record_graphs();
  // When the step has ended: EntryResult::chain and length of entries with a chain, and the head's
  // seconds. done: recorded behind run().
  void read(const ForwardBatch& batch, const Step& step, const cuda::Event& done,
            StepResult& result) const;

  int32_t chain_max() const { return config_.chain_max; }
  const CudaDraftHead& head() const { return *head_; }
  int64_t device_bytes() const { return head_->device_bytes() + block_.size_bytes(); }
  int64_t num_replays() const { return first_.num_replays() + next_.num_replays(); }

 private:
  // In pinned memory and, at the same offsets, on the device.
  struct Inputs {
    int32_t* num_chains = nullptr;                // [1]
    kernels::cuda::ChainStart* starts = nullptr;  // [max_slots]
    int32_t* next_ids = nullptr;                  // [max_tokens]
    kernels::cuda::PageTableRun* runs = nullptr;  // [max_slots]; host alone
    int32_t* pages = nullptr;                     // [num_pages()]; host alone
    void lay_out(cuda::Arena& arena, const Config& config);
  };
  // Tokens and chains; cascade, adapters and fresh positions as of the target's graphs.
  using FirstKey = std::tuple<int32_t, int32_t, bool, bool, int32_t>;

  CudaDraftChains(std::unique_ptr<CudaDraftHead> head, const Config& config,
                  const cuda::Stream& stream)
      : head_(std::move(head)), config_(config), stream_(stream) {}
  void lay_out(cuda::Arena& arena);
  void pack_chain(const ForwardBatch& batch, size_t entry, int32_t first_row, const Inputs& to,
                  Step& step) const;
  Status bring(const Step& step, const PackedStep& packed, const int32_t* tables) const;
  kernels::cuda::ChainArrays chains(int32_t count) const;
  CudaStep next_step(const CudaStep& of, int32_t count) const;
  Status extend(int32_t count);
  Status first_pass(const PackedStep& packed, const CudaStep& of, const int32_t* sampled,
                    const KvView& kv, int32_t count);

  const std::unique_ptr<CudaDraftHead> head_;
  const Config config_;
  const cuda::Stream& stream_;
  bool shares_ = false;  // the head's attention reads what entries share once
  PageId first_page_ = 0;
  int64_t input_bytes_ = 0;
  cuda::DeviceBuffer block_;
  Inputs device_;
  kernels::cuda::ChainArrays arrays_;
  int32_t* ids_ = nullptr;     // [max_tokens]: what the head's first pass reads
  int32_t* wanted_ = nullptr;  // [max_slots]
  float* logits_ = nullptr;    // [max_slots, logits_stride]
  StepGraphs<FirstKey> first_;
  StepGraphs<int32_t> next_;  // by chains
};

}  // namespace espalier
