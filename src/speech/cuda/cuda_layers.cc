#include "speech/cuda/cuda_layers.h"

#include <algorithm>

#include "kernels/activation/cuda.h"
#include "kernels/embedding/cuda.h"
#include "kernels/norm/cuda.h"

namespace espalier::speech {

namespace kc = kernels::cuda;

Result<std::unique_ptr<CudaLayers>> CudaLayers::create(DType type, int32_t width) {
  std::unique_ptr<CudaLayers> layers(new CudaLayers(type, width));
  ESP_ASSIGN_OR_RETURN(layers->stream_, cuda::Stream::create());
  ESP_ASSIGN_OR_RETURN(layers->linear_,
                       kc::Linear::create({.cache_folder = kc::default_linear_cache()}));
  return layers;
}

Status CudaLayers::tune(std::span<const kc::LinearArgs> shapes) {
  int32_t rows = 1;
  for (const kc::LinearArgs& args : shapes) rows = std::max(rows, args.rows);
  const size_t bytes = linear_->workspace_bytes(shapes, rows);
  ESP_ASSIGN_OR_RETURN(workspace_, cuda::DeviceBuffer::allocate(static_cast<int64_t>(bytes),
                                                                "scratch of speech's GEMMs"));
  ESP_RETURN_IF_ERROR(linear_->tune(shapes, workspace_.data(), bytes, stream_.get()));
  return stream_.synchronize();
}

kc::LinearArgs CudaLayers::linear_args(const Linear& linear, const void* x, int32_t rows,
                                       void* y) const {
  return {.type = type_,
          .out_type = type_,
          .rows = rows,
          .in_features = linear.matrix.inputs,
          .out_features = linear.matrix.outputs,
          .x = x,
          .x_stride = linear.matrix.inputs,
          .weights = linear.matrix.data,
          .y = y,
          .y_stride = linear.matrix.outputs,
          .bias = linear.bias};
}

kc::LinearArgs CudaLayers::head_args(const CudaMatrix& head, const void* x, int32_t rows,
                                     float* y) const {
  return {.type = type_,
          .out_type = DType::kFloat32,
          .rows = rows,
          .in_features = head.inputs,
          .out_features = head.outputs,
          .x = x,
          .x_stride = head.inputs,
          .weights = head.data,
          .y = y,
          .y_stride = head.outputs};
}

Status CudaLayers::run(const kc::LinearArgs& args) {
  return linear_->run(args, workspace_.data(), static_cast<size_t>(workspace_.size_bytes()),
                      launch());
}

Status CudaLayers::linear(const Linear& linear, const void* x, int32_t rows, void* y, bool add) {
  kc::LinearArgs args = linear_args(linear, x, rows, y);
  if (add) args.residual = y;
  return run(args);
}

Status CudaLayers::head(const CudaMatrix& head, const void* x, int32_t rows, float* y) {
  return run(head_args(head, x, rows, y));
}

Status CudaLayers::norm(const LayerNormOf<CudaFormat>& weights, const void* x, void* y,
                        int32_t rows) const {
  return kc::layer_norm({.type = type_,
                         .x = x,
                         .x_stride = width_,
                         .weight = weights.weight,
                         .bias = weights.bias,
                         .y = y,
                         .y_stride = width_,
                         .rows = rows,
                         .dim = width_},
                        launch());
}

Status CudaLayers::gelu(void* x, int32_t rows, int32_t dim) const {
  return kc::gelu(
      {.type = type_, .x = x, .x_stride = dim, .y = x, .y_stride = dim, .rows = rows, .dim = dim},
      launch());
}

Status CudaLayers::mlp(const MlpOf<CudaFormat>& weights, void* x, void* normed, void* wide,
                       int32_t rows) {
  ESP_RETURN_IF_ERROR(norm(weights.norm, x, normed, rows));
  ESP_RETURN_IF_ERROR(linear(weights.up, normed, rows, wide));
  ESP_RETURN_IF_ERROR(gelu(wide, rows, weights.up.matrix.outputs));
  return linear(weights.down, wide, rows, x, true);
}

Status CudaLayers::add(const void* x, void* y, int32_t rows) const {
  return kc::add_scaled({.type = type_,
                         .x = x,
                         .x_stride = width_,
                         .y = y,
                         .y_stride = width_,
                         .rows = rows,
                         .dim = width_},
                        launch());
}

Status CudaLayers::gather(const Table& table, const int32_t* ids, int32_t count, void* out) const {
  return kc::gather_rows({.type = type_,
                          .table = table.data,
                          .num_rows = table.num_rows,
                          .table_stride = table.stride,
                          .dim = table.dim,
                          .ids = ids,
                          .out = out,
                          .out_stride = table.dim,
                          .tokens = count},
                         launch());
}

}  // namespace espalier::speech
