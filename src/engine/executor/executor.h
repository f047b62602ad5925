// Executor: the interface through which the scheduler runs steps on a device.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "base/status.h"
#include "cache/page_copier.h"
#include "models/model.h"
#include "seams/forward_batch.h"
#include "seams/step_result.h"

namespace espalier {

// Packed token masks for the entries of one step that have has_mask, in entry order; the masks of
// an entry's draft samples follow its own. [num_masks, words_per_mask]; bit t % 32 of word t / 32
// set means that token t is allowed. Borrowed.
struct MaskView {
  std::span<const uint32_t> words;
  int32_t words_per_mask = 0;
};

// How a device's memory was divided at the start, in bytes; all 0 where it is the host's memory.
struct MemoryPlan {
  int64_t weights = 0;
  int64_t encoder = 0;   // weights and buffers of the encoder of pictures
  int64_t adapters = 0;  // reserved for LoRA adapters
  int64_t scratch = 0;   // buffers of one forward pass
  int64_t steps = 0;     // inputs and results of steps, sampling, page tables
  int64_t graphs = 0;    // an estimate for the CUDA graphs that are captured later
  int64_t kv = 0;
};

// Not thread-safe: one thread makes all calls. Steps run in the order of their launch; step N+1 may
// be launched before N is waited for (its kTokenFromSlot tokens come from N), so at most two are in
// flight.
class Executor {
 public:
  static constexpr int kMaxInFlight = 2;
  virtual ~Executor() = default;

  // Queues `batch` behind the steps in flight and returns at once. `batch` stays unchanged and
  // alive until its wait() has returned. REQUIRES: fewer than kMaxInFlight steps in flight.
  virtual void launch(const ForwardBatch& batch) = 0;

  // Provides the masks of a launched step; REQUIRED once, before its wait(), if any of its entries
  // has_mask. The words are copied. The step's forward pass does not wait for them, its sampling
  // does.
  virtual void provide_masks(uint64_t step, const MaskView& masks) = 0;

  // Waits for the oldest step in flight and returns its results, valid until the next wait().
  // REQUIRES: `step` is the oldest in flight.
  virtual const StepResult& wait(uint64_t step) = 0;

  // Copies the keys and values of page from[i] to page to[i], in all layers, before any step that
  // is launched from here on. REQUIRES that no step in flight writes any of them or reads those of
  // `to`, and that all layers have the same pages. kUnimplemented where the executor has no copies.
  virtual Status copy_pages(std::span<const PageId> from, std::span<const PageId> to) {
    static_cast<void>(from), static_cast<void>(to);
    return error(StatusCode::kUnimplemented, "this device copies no pages of its cache");
  }

  // Copies pages between the device and the host's memory; thread-safe as it states, also while
  // steps run. Null where the pages of this device cannot be copied.
  virtual PageCopier* page_copier() { return nullptr; }

  // As Model's: thread-safe, also while steps run. kUnimplemented where entries have no adapters.
  virtual Result<AdapterInfo> load_adapter(AdapterId, const std::filesystem::path&, int32_t) {
    return fail(error(StatusCode::kUnimplemented, "this device takes no adapters"));
  }
  virtual void unload_adapter(AdapterId) {}

  virtual MemoryPlan memory_plan() const { return {}; }

  // How many draft samples (BatchEntry::num_draft_samples) all entries of a step may have together.
  // 0: entries must have no draft tokens.
  virtual int32_t draft_samples_max() const { return 0; }

  // Whether entries with draft tokens may have penalties, whose counts then advance with these.
  virtual bool penalises_draft_tokens() const { return false; }

  // The most that BatchEntry::chain_length may be. 0: there is no draft head, and it is not read.
  virtual int32_t chain_max() const { return 0; }

  // Whether entries may have kLengthFromSlot. Where not, such an entry fails with kUnimplemented.
  virtual bool takes_lengths_from_slots() const { return false; }
};

}  // namespace espalier
