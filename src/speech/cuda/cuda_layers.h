// What the layers of encoder and decoder share on a GPU. Enqueues on its stream and waits for
// nothing; pointers are device memory, rows lie without gaps in the weights' type.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/linear/cuda.h"
#include "speech/cuda/cuda_weights.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier::speech {

class CudaLayers {
 public:
  using Linear = LinearOf<CudaFormat>;

  static Result<std::unique_ptr<CudaLayers>> create(DType type, int32_t width);

  DType type() const { return type_; }
  int64_t element_bytes() const { return static_cast<int64_t>(dtype_size(type_)); }
  const cuda::Stream& stream() const { return stream_; }
  kernels::cuda::LaunchOptions launch() const { return {.stream = stream_.get()}; }

  // For GEMMs of these shapes (linear_args()), each at its own number of rows: takes scratch and
  // measures. Pointers have room for the rows. REQUIRED before linear() and head().
  Status tune(std::span<const kernels::cuda::LinearArgs> shapes);
  // x and y may be null where only the shape matters.
  kernels::cuda::LinearArgs linear_args(const Linear& linear, const void* x, int32_t rows,
                                        void* y) const;
  // Of the embedding as the head: y is float32.
  kernels::cuda::LinearArgs head_args(const CudaMatrix& head, const void* x, int32_t rows,
                                      float* y) const;

  // y = x W^T + bias, or y += where it accumulates.
  Status linear(const Linear& linear, const void* x, int32_t rows, void* y, bool add = false);
  Status head(const CudaMatrix& head, const void* x, int32_t rows, float* y);
  Status norm(const LayerNormOf<CudaFormat>& weights, const void* x, void* y, int32_t rows) const;
  Status gelu(void* x, int32_t rows, int32_t dim) const;
  // x += down(gelu(up(norm(x)))). normed: [rows, width], wide: [rows, intermediate], scratch.
  Status mlp(const MlpOf<CudaFormat>& weights, void* x, void* normed, void* wide, int32_t rows);
  // y += x, [rows, width].
  Status add(const void* x, void* y, int32_t rows) const;

  // Rows of a table by their numbers; rows of `dim` elements begin `stride` apart and may overlap.
  struct Table {
    const void* data = nullptr;
    int32_t num_rows = 0;
    int64_t stride = 0;
    int32_t dim = 0;
  };
  Status gather(const Table& table, const int32_t* ids, int32_t count, void* out) const;

 private:
  CudaLayers(DType type, int32_t width) : type_(type), width_(width) {}
  Status run(const kernels::cuda::LinearArgs& args);

  const DType type_;
  const int32_t width_;
  cuda::Stream stream_;
  std::unique_ptr<kernels::cuda::Linear> linear_;
  cuda::DeviceBuffer workspace_;
};

}  // namespace espalier::speech
