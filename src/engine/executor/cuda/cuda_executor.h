// Runs steps on the GPU. launch() packs a step, enqueues it and returns; sampled tokens stay on the
// device, where the next step finds them; results come back through an event and pinned memory.
// Nothing waits for the device but wait().
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "cache/kv_pool.h"
#include "engine/executor/cuda/cuda_draft_chains.h"
#include "engine/executor/cuda/cuda_page_copier.h"
#include "engine/executor/cuda/device_planes.h"
#include "engine/executor/cuda/draft_rows.h"
#include "engine/executor/cuda/hidden_reader.h"
#include "engine/executor/cuda/host_sampling.h"
#include "engine/executor/cuda/sampling_arrays.h"
#include "engine/executor/cuda/slot_controls.h"
#include "engine/executor/cuda/slot_table.h"
#include "engine/executor/cuda/stage_exchange.h"
#include "engine/executor/cuda/step_block.h"
#include "engine/executor/cuda/step_graphs.h"
#include "engine/executor/cuda/step_results.h"
#include "engine/executor/executor.h"
#include "kernels/collective/cuda.h"
#include "kernels/sampling/cuda.h"
#include "models/cuda/adapter_store.h"
#include "models/cuda/decoder.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

struct CudaExecutorConfig {
  int32_t max_slots = 0;          // entries of a step, and slots
  int32_t max_draft_samples = 0;  // of a step; each has a row of logits. 0: no draft tokens
  int32_t chain_max = 5;          // draft tokens in a row, of a draft head
  int32_t max_tokens = 0;         // of a step
  int32_t context_length = 0;     // of a sequence
  int32_t page_size = 1;
  bool graphs = true;  // decode steps of sizes that come again are replayed from graphs
  // Prefixes that a batch says its entries share are read once where that is cheaper.
  bool cascade = true;
  // Programmatic dependent launch in decode steps of eight and more entries: at 8 entries of an 8 B
  // shape 5.19 ms a step with it, 5.40 without; at one entry it costs time.
  bool allow_pdl = true;
  // One entry's layers as one kernel: 4.24 ms a step of an 8 B shape, 4.67 kernel by kernel.
  bool megakernel = true;
  // Results depend on the request alone, bit for bit (CudaDecoder::set_deterministic): no cascade,
  // no megakernel.
  bool deterministic = false;
  // Of the device's memory, for the adapters of a model that was loaded with enable_lora; taken
  // when the executor is made.
  int64_t adapter_bytes = 0;
  // Of the host, for samples that a GPU does not draw (HostSampling).
  int32_t num_host_threads = 1;
  int32_t first_cpu = 0;
  int64_t encoder_bytes = 0;  // of the device's memory, that an encoder of pictures has taken
  // Not null: the model is one rank's part (CudaDecoder::begin_load), and this executor runs the
  // same steps as those of the other ranks. Rank 0 samples; the others get its tokens, and their
  // results have none. Borrowed.
  kernels::cuda::DeviceCollective* collective = nullptr;
  // Of ranks that have rows of their own (DecoderSpec::whole_attention): each runs its part of a
  // step and samples it.
  bool own_rows = false;
  // Not null: the model is a stage of a pipeline, and the stages' executors run the same steps,
  // each launched in the order of the stages. The last one samples; the results of the others have
  // no tokens. Borrowed.
  StageLink* stage_link = nullptr;
  // Steps that may be launched before the oldest one is waited for.
  int32_t max_in_flight = Executor::kMaxInFlight;
  // Called once, from wait(), when the device has failed: every step from then on fails with this
  // status. Null: it is logged.
  std::function<void(const Status&)> on_device_lost;
};

// What the parts of a step have in common where ranks have rows of their own.
struct RankStep {
  std::vector<int32_t> tokens;  // of each rank
  bool decode = true;           // no rank has anything but decode entries
};

class CudaExecutor final : public Executor, public ReleasablePlanes {
 public:
  // Takes all device memory but the KV pool's.
  // head: beside a model that keeps states for it; null: none.
  static Result<std::unique_ptr<CudaExecutor>> create(std::unique_ptr<CudaDecoder> model,
                                                      const CudaExecutorConfig& config,
                                                      std::unique_ptr<CudaDraftHead> head = {});
  ~CudaExecutor() override;

  // What is left for keys and values, without what graphs will take. Measured.
  Result<int64_t> kv_budget_bytes() const;
  // REQUIRED once, before the first launch; a draft head's pages come on top
  // (CudaDraftChains::num_pages()). Fails where the memory is not there after all.
  Status allocate_kv(const KvPoolConfig& config);
  // Runs a few made-up steps, so that the first request does not wait for kernels to be loaded and
  // the first graph to be made. After allocate_kv, before the first launch; what the steps write to
  // the pages of nobody is written over before anyone reads it.
  Status warm_up();
  // Of the model's weights, which may be loading meanwhile.
  Status finish_loading() { return model_->finish_loading(); }
  MemoryPlan memory_plan() const override { return memory_; }
  const KvView& kv() const { return pages_.pool->view(); }  // after allocate_kv

  void launch(const ForwardBatch& batch) override { launch(batch, batch.step, {}); }
  // Of a rank that has rows of its own its part of a step, which may have no entries; the step's
  // number is that of all ranks.
  void launch(const ForwardBatch& part, uint64_t step, const RankStep& ranks);
  void provide_masks(uint64_t step, const MaskView& masks) override;
  const StepResult& wait(uint64_t step) override;
  int32_t draft_samples_max() const override { return config_.max_draft_samples; }
  int32_t chain_max() const override { return chains_ ? chains_->chain_max() : 0; }
  // Returns when all that was launched has ended.
  Status drain() { return stream_.synchronize(); }
  // Whether wait() would return at once, or what failed.
  Result<bool> is_done(uint64_t step);
  Status copy_pages(std::span<const PageId> from, std::span<const PageId> to) override;

  PageCopier* page_copier() override;  // after allocate_kv

  Result<AdapterInfo> load_adapter(AdapterId id, const std::filesystem::path& folder,
                                   int32_t rank_max) override;
  void unload_adapter(AdapterId id) override;

  // So far. A capture is counted when it is made, a replay each time.
  struct Counts {
    int64_t captures = 0, replays = 0;
    int64_t cascades = 0;       // steps that read shared prefixes once for several entries
    int64_t verifications = 0;  // steps with draft tokens
  };
  Counts counts() const;

 private:
  struct Place {
    const ForwardBatch* batch = nullptr;
    uint64_t step = 0;
    RankStep ranks;
    const ForwardBatch* rows = nullptr;  // `batch`, or what draft_rows has made of it
    DraftRows draft_rows;
    cuda::PinnedBuffer inputs, outputs, masks;
    StepArrays host;
    ResultArrays results;
    cuda::Event started, done;
    PackedStep packed;
    std::vector<StepSpan> spans;
    int32_t num_samples = 0;  // without padding
    LogprobPlan logprobs;
    bool results_on_device = false;  // what was sampled is read there, and copied behind it
    CudaDraftChains::Step chains;
    HiddenReader::Step states;
    HostSampling::Step host_samples;
    GraphUse graph_use = GraphUse::kNone;
    std::vector<Status> refused;
    Status status;
    StepResult result;

    // Room for a step of these limits, whose packed inputs and words of a mask are so many.
    // mask_words: 0 where the stage does not sample.
    Status allocate(const StepLimits& limits, int64_t input_bytes, int64_t mask_words);
  };
  // What goes through the host in the middle of a step.
  struct ThroughHost {
    std::unique_ptr<HostSampling> sampling;  // null: a rank that does not sample
    std::unique_ptr<HiddenReader> states;    // null: the model returns none

    Status allocate(const CudaExecutorConfig& config, const StepLimits& limits, CudaDecoder& model);
    // Runs the layers of a step; of one that returns states with what copies them.
    Status forward(CudaDecoder& model, CudaStep step, HiddenReader::Step& of_step, const KvView& kv,
                   const cuda::Stream& stream) const;
  };
  // By rows with padding, cascade, adapters, whether it is one entry that the layers' one kernel
  // does not take, fresh positions, and control vectors.
  using DecodeKey = std::tuple<int32_t, bool, bool, bool, int32_t, bool>;

  CudaExecutor(std::unique_ptr<CudaDecoder> model, const CudaExecutorConfig& config);
  Status allocate(std::unique_ptr<CudaDraftHead> head);

  Place& place_of(uint64_t step) { return places_[step % places_.size()]; }
  Status enqueue(Place& place);
  Status run(Place& place);
  Status enqueue_input_logprobs(Place& place);
  Status enqueue_sampling(Place& place);
  Status enqueue_samples(Place& place);
  Status enqueue_logprobs(Place& place, int32_t first_row, kernels::cuda::LogprobArgs args);
  Status lose_device(const Status& status);

  const CudaExecutorConfig config_;
  const std::unique_ptr<CudaDecoder> model_;
  const bool samples_;  // no rank, or rank 0; and no stage, or the last one
  StepLimits limits_;
  cuda::Stream stream_;
  std::unique_ptr<StepPacker> packer_;
  std::unique_ptr<SlotTable> slots_;
  std::unique_ptr<SlotControls> controls_;      // null: the model has no control vectors
  std::unique_ptr<CudaAdapterStore> adapters_;  // null: entries have none
  std::unique_ptr<StageExchange> stage_;        // null: the model is no stage of a pipeline
  // Of keys and values.
  struct Pages {
    std::unique_ptr<KvPool> pool;
    std::unique_ptr<CudaPageCopier> copier;  // null until it is wanted
  };
  Pages pages_;

  std::unique_ptr<CudaDraftChains> chains_;  // null: the model has no draft head
  ThroughHost through_host_;

  cuda::DeviceBuffer block_;  // of arrays_
  SamplingArrays arrays_;

  // Results stay valid until the next wait while further steps run: one more than are in flight.
  std::vector<Place> places_;
  StepGraphs<DecodeKey> graphs_;
  MemoryPlan memory_;
  Status lost_;
  Counts counts_;  // but for captures and replays
};

// Made-up steps, as CudaExecutor::warm_up() states: a prompt of some length, a short one, and one
// request's decode, kernel by kernel and recorded, then replayed; of a draft head with states, and
// without. samples: whether steps do. kv: of the pages. lost: what the executor has failed with.
Status run_warm_up_steps(Executor& executor, const CudaExecutorConfig& config, bool samples,
                         const KvPoolConfig& kv, const std::function<Status()>& lost);

}  // namespace espalier
