// An encoder of texts on the GPU: the interpreter of its program over the rows of several texts,
// one behind the other without padding. Attention reads keys and values from the step's rows, so
// there are no pages; rows are pooled on the device, and what a text's head makes of its row is the
// host's. Owns weights, scratch and staging memory, all taken by load(), on one device.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/linear/cuda.h"
#include "models/cuda/context.h"
#include "models/cuda/plan.h"
#include "models/cuda/ropes.h"
#include "models/cuda/weights.h"
#include "models/model_plan.h"
#include "models/text_encoder.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

struct CudaTextEncoderOptions {
  int32_t step_tokens_max = 0;  // at least one text of the model's length always fits
  bool deterministic = false;   // a text's bits then do not depend on the others of its step
};

class CudaTextEncoder final : public TextEncoder {
 public:
  // Loads to the thread's current device, which is open. kUnimplemented names what the GPU does not
  // do.
  static Result<std::unique_ptr<CudaTextEncoder>> load(const ModelLoadOptions& options,
                                                       const CudaTextEncoderOptions& own);
  ~CudaTextEncoder() override;

  int32_t step_tokens_max() const override { return tokens_max_; }
  int64_t device_bytes() const { return weights_.size_bytes() + block_.size_bytes(); }

 private:
  // What a step brings, in one copy.
  struct Arrays {
    int32_t* ids = nullptr;        // [tokens]
    int32_t* types = nullptr;      // [tokens]
    int32_t* positions = nullptr;  // [tokens]: rows of the position embedding
    int32_t* places = nullptr;     // [tokens, 3]: of rotary positions, the first counts
    int32_t* begins = nullptr;     // [texts + 1]
    int32_t* wanted = nullptr;     // [tokens]

    void lay_out(cuda::Arena& arena, int32_t tokens);
  };
  CudaTextEncoder(const DecoderSpec& spec, TextHead head, PendingCudaWeights weights,
                  std::unique_ptr<kernels::cuda::Linear> linear, CudaPlan program);
  Status reserve(const CudaTextEncoderOptions& own);
  void lay_out(cuda::Arena& arena, int64_t linear_bytes);
  std::vector<kernels::cuda::LinearArgs> gemms(int32_t tokens) const;
  Status tune();
  Result<std::span<const float>> run(std::span<const EncoderText> texts,
                                     const TextRows& rows) override;
  void write_arrays(std::span<const EncoderText> texts, const TextRows& rows);
  Status enqueue(std::span<const EncoderText> texts, const TextRows& rows);
  Status fetch(int64_t rows, const void* from, DType type);
  bool wants_all() const;
  bool pools_here() const;
  int32_t width() const;

  const int32_t device_;
  const CudaWeights weights_;
  const std::unique_ptr<kernels::cuda::Linear> linear_;
  const CudaPlan plan_;
  CudaLaunchPolicy policy_;
  CudaRopes ropes_;
  CudaContext context_;
  int32_t tokens_max_ = 0;
  bool deterministic_ = false;
  cuda::Stream stream_;
  cuda::DeviceBuffer block_;
  cuda::PinnedBuffer staged_, fetched_;
  Arrays host_, arrays_;
  std::byte* results_ = nullptr;  // [tokens, width]
  float* pooled_ = nullptr;       // [tokens, width]
  std::vector<float> floats_;
  const KvView no_pages_;
};

}  // namespace espalier
