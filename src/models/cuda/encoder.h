// An encoder of pictures of a fixed size on the GPU: an interpreter of its program, on a stream of
// its own beside the decoder's steps, for several pictures at once. Their rows come to pinned
// memory in the decoder's type, from where steps copy them.
//
// encode_batch() and prepare(): from any thread. Owns weights, scratch and staging memory, all
// taken by load(), on one device; afterwards a batch allocates nothing.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "base/status.h"
#include "kernels/linear/cuda.h"
#include "models/cuda/context.h"
#include "models/cuda/pinned_rows.h"
#include "models/cuda/plan.h"
#include "models/cuda/weights.h"
#include "models/image_encoder.h"
#include "models/model_plan.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

struct CudaEncoderOptions {
  int32_t batch_max = 16;                        // pictures of a batch, at most
  int64_t scratch_bytes_max = int64_t{1} << 30;  // of the device; bounds a batch, too
  // A picture's rows then have the same bits whatever is encoded beside it.
  bool deterministic = false;
};

class CudaEncoder final : public ImageEncoder {
 public:
  // Loads to the thread's current device, which is open; null where the model reads text alone.
  // kUnimplemented names what the GPU does not do.
  static Result<std::unique_ptr<CudaEncoder>> load(const ModelLoadOptions& options,
                                                   const CudaEncoderOptions& own);
  ~CudaEncoder() override;

  const ImageEncoderInfo& info() const override { return info_; }
  int64_t device_bytes() const { return weights_.size_bytes() + block_.size_bytes(); }

  int32_t batch_max() const override { return batch_max_; }
  int64_t row_bytes(int32_t num_rows) const override;
  // REQUIRES: info().num_rows, for pictures have one size.
  Result<EncodedRows> allocate_rows(int32_t num_rows) override;
  // While a batch is computed the next one's patches are brought.
  int32_t batches_in_flight_max() const override { return kSlots; }
  Status encode_batch(std::span<const EncoderTask> tasks) override;

 private:
  static constexpr int32_t kSlots = 2;
  // Of a batch that is being encoded: its patches come, and its rows go, while another batch is
  // computed.
  struct Slot {
    cuda::PinnedBuffer staged;
    float* patches = nullptr;   // [batch_max, num_patches, features]
    std::byte* rows = nullptr;  // [batch_max * num_patches, width]
    cuda::Event brought, computed, done;
    bool taken = false;

    Status create(int64_t staged_bytes);
  };
  CudaEncoder(EncoderPlan plan, PendingCudaWeights weights,
              std::unique_ptr<kernels::cuda::Linear> linear, CudaPlan program);
  // A batch of one picture, whose rows become float32.
  Status encode_tile(std::span<const float> patches, const PatchGrid& grid, std::span<float> rows,
                     const std::stop_token& stop) override;
  std::span<const float> line_end() const override { return {}; }  // check_cuda_encoder: no tiles
  int64_t picture_bytes() const { return row_bytes(info_.num_rows); }
  Status reserve(const CudaEncoderOptions& own);
  void lay_out(cuda::Arena& arena, int32_t pictures, int64_t linear_bytes);
  std::vector<kernels::cuda::LinearArgs> gemms(int32_t pictures) const;
  Status upload_rows();
  Status tune();
  Status enqueue(std::span<const EncoderTask> tasks, const Slot& slot);
  Status synchronize() const;
  Slot& take_slot();

  const int32_t device_;
  const DecoderSpec spec_;
  const CudaWeights weights_;
  const std::unique_ptr<kernels::cuda::Linear> linear_;
  const CudaPlan plan_;
  CudaLaunchPolicy policy_;
  CudaContext context_;
  ImageEncoderInfo info_;
  int32_t batch_max_ = 0;
  std::shared_ptr<PinnedRows> rows_;

  cuda::Stream stream_, bringing_, fetching_;
  cuda::DeviceBuffer block_;
  int32_t* positions_ = nullptr;  // [batch_max * num_rows]
  int32_t* wanted_ = nullptr;     // [batch_max * num_patches]: all but class rows
  const KvView no_pages_;

  std::mutex mutex_;  // of what is enqueued, and of the slots
  std::condition_variable freed_;
  std::array<Slot, kSlots> slots_;
};

}  // namespace espalier
