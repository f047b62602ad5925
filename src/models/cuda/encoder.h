// An encoder of pictures on the GPU: an interpreter of its program, on a stream of its own beside
// the decoder's steps, for several pictures at once, of one size, of several, or in tiles. Their
// rows come to pinned memory in the decoder's type, from where steps copy them.
//
// encode_batch() and prepare(): from any thread. Owns weights, scratch and staging memory, all
// taken by load(), on one device; afterwards a batch allocates nothing.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/linear/cuda.h"
#include "models/cuda/context.h"
#include "models/cuda/encoder_batch.h"
#include "models/cuda/pinned_rows.h"
#include "models/cuda/plan.h"
#include "models/cuda/ropes.h"
#include "models/cuda/weights.h"
#include "models/image_encoder.h"
#include "models/model_plan.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

struct CudaEncoderOptions {
  int32_t batch_max = 16;                        // pictures of a batch, at most
  int64_t scratch_bytes_max = int64_t{1} << 30;  // of the device; bounds a batch, too
  // Patches of a picture, at most, all tiles counted; 0: as many as the model's processor makes.
  int32_t patches_max = 0;
  // A picture's rows then have the same bits whatever is encoded beside it.
  bool deterministic = false;
};

class CudaEncoder final : public ImageEncoder {
 public:
  // Loads to the thread's current device, which is open; null where the model reads text alone.
  // kUnimplemented names what the GPU does not do.
  static Result<std::unique_ptr<CudaEncoder>> load(const ModelLoadOptions& options,
                                                   const CudaEncoderOptions& own);
  // That of the model's videos; null where the same one reads them, or none does.
  static Result<std::unique_ptr<CudaEncoder>> load_videos(const ModelLoadOptions& options,
                                                          const CudaEncoderOptions& own);
  ~CudaEncoder() override;

  const ImageEncoderInfo& info() const override { return info_; }
  int64_t device_bytes() const { return weights_.size_bytes() + block_.size_bytes(); }

  int32_t batch_max() const override { return batch_max_; }
  int32_t patches_max() const {  // of a picture, all tiles counted
    return units_max_ * std::max(1, spec_.patches->num_patches);
  }
  int64_t row_bytes(int32_t num_rows) const override;
  Result<EncodedRows> allocate_rows(int32_t num_rows) override;
  // While a batch is computed the next one's patches are brought.
  int32_t batches_in_flight_max() const override { return kSlots; }
  // In parts where memory has no room for all of them at once.
  Status encode_batch(std::span<const EncoderTask> tasks) override;

 private:
  static Result<std::unique_ptr<CudaEncoder>> load_planned(EncoderPlan plan,
                                                           const ModelLoadOptions& options,
                                                           const CudaEncoderOptions& own);
  static constexpr int32_t kSlots = 2;
  // Of a batch that is being encoded: its arrays come, and its rows go, while another batch is
  // computed.
  struct Slot {
    cuda::PinnedBuffer staged;
    EncoderArrays host, device;
    std::byte* tiles = nullptr;  // [outputs, width]: what tiles' rows are made of
    std::byte* rows = nullptr;   // [results, width]
    cuda::Event brought, computed, done;
    bool taken = false;

    Status create(const DecoderSpec& spec, const EncoderSizes& sizes);
  };
  struct ReleaseSlot {
    CudaEncoder* encoder = nullptr;
    void operator()(Slot* slot) const;
  };
  using SlotLease = std::unique_ptr<Slot, ReleaseSlot>;
  struct Streams {
    cuda::Stream compute, bring, fetch;
  };
  CudaEncoder(EncoderPlan plan, PendingCudaWeights weights,
              std::unique_ptr<kernels::cuda::Linear> linear, CudaPlan program);
  // A batch of one picture, whose rows become float32.
  Status encode_tile(std::span<const float> patches, const PatchGrid& grid, std::span<float> rows,
                     const std::stop_token& stop) override;
  std::span<const float> line_end() const override { return line_end_; }
  Status read_line_end();
  Status reserve(const CudaEncoderOptions& own);
  int32_t fitting_units(int32_t units_least, int64_t bytes_max);
  int64_t measure(int32_t units);
  void lay_out(cuda::Arena& arena, const EncoderSizes& sizes, int64_t linear_bytes);
  std::vector<kernels::cuda::LinearArgs> gemms(const EncoderSizes& sizes) const;
  Status tune(int32_t units_max);
  Status encode_part(std::span<const EncoderTask> tasks);
  Status bring(const EncoderBatch& batch, const Slot& slot) const;
  Status enqueue(std::span<const EncoderTask> tasks, const EncoderBatch& batch, const Slot& slot);
  Status fetch(std::span<const EncoderTask> tasks, const EncoderBatch& batch, const Slot& slot);
  CudaStep step_of(const EncoderBatch& batch, const Slot& slot) const;
  Status synchronize() const;
  SlotLease take_slot();

  const int32_t device_;
  const DecoderSpec spec_;
  const CudaWeights weights_;
  const std::unique_ptr<kernels::cuda::Linear> linear_;
  const CudaPlan plan_;
  CudaLaunchPolicy policy_;
  CudaRopes ropes_;
  CudaContext context_;
  ImageEncoderInfo info_;
  int32_t batch_max_ = 0, units_max_ = 0;  // pictures, and their units, of a part
  bool deterministic_ = false;
  std::shared_ptr<PinnedRows> rows_;
  std::vector<float> line_end_;  // of tiles, [width]

  Streams streams_;
  cuda::DeviceBuffer block_;
  const KvView no_pages_;

  std::mutex mutex_;  // of what is enqueued, and of the slots
  std::condition_variable freed_;
  std::array<Slot, kSlots> slots_;
};

}  // namespace espalier
