#include "models/cuda/weights.h"

#include "models/weight_layout.h"

namespace espalier {
namespace {

constexpr int64_t kRowMultiple = 8;  // of a product's outputs: kernels/linear/cuda.h

// Places every weight, first without memory to measure, then with it to load.
class Placer {
 public:
  // loader: null in the measuring pass.
  Placer(DType type, cuda::Arena& arena, CudaTensorLoader* loader)
      : type_(type), arena_(arena), loader_(loader) {}

  Status place_all(const WeightLayout& layout, CudaWeights& out) {
    out.type = type_;
    ESP_RETURN_IF_ERROR(matrix(layout.head, out.head));
    out.embedding = out.head;
    if (!layout.embedding.empty()) ESP_RETURN_IF_ERROR(matrix(layout.embedding, out.embedding));
    out.layers.assign(layout.layers.size(), {});
    for (size_t i = 0; i < layout.layers.size(); ++i) {
      ESP_RETURN_IF_ERROR(layer(layout.layers[i], out.layers[i]));
    }
    return vector(layout.final_norm, out.final_norm);
  }

 private:
  Status layer(const LayerLayout& layout, CudaLayerWeights& out) {
    ESP_RETURN_IF_ERROR(vector(layout.input_norm, out.input_norm));
    ESP_RETURN_IF_ERROR(matrix(layout.qkv, out.qkv));
    ESP_RETURN_IF_ERROR(vector(layout.qkv_bias, out.qkv_bias));
    ESP_RETURN_IF_ERROR(vector(layout.q_norm, out.q_norm));
    ESP_RETURN_IF_ERROR(vector(layout.k_norm, out.k_norm));
    ESP_RETURN_IF_ERROR(matrix(layout.attention_output, out.attention_output));
    ESP_RETURN_IF_ERROR(vector(layout.attention_output_bias, out.attention_output_bias));
    ESP_RETURN_IF_ERROR(vector(layout.attention_output_norm, out.attention_output_norm));
    ESP_RETURN_IF_ERROR(vector(layout.post_attention_norm, out.post_attention_norm));
    ESP_RETURN_IF_ERROR(matrix(layout.mlp.gate_up, out.gate_up));
    ESP_RETURN_IF_ERROR(vector(layout.mlp.gate_up_bias, out.gate_up_bias));
    ESP_RETURN_IF_ERROR(matrix(layout.mlp.down, out.down));
    ESP_RETURN_IF_ERROR(vector(layout.mlp.down_bias, out.down_bias));
    return vector(layout.mlp_output_norm, out.mlp_output_norm);
  }

  Status matrix(const MatrixLayout& layout, CudaMatrix& out) {
    const int64_t rows = (layout.out_features() + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
    auto* data = arena_.take<std::byte>(rows * layout.in_features * size());
    out = {data, static_cast<int32_t>(layout.in_features), static_cast<int32_t>(rows)};
    if (layout.fused) {
      const int64_t shape[] = {layout.out_features(), layout.in_features};
      return put(layout.blocks.front().name, shape, data);
    }
    for (const WeightBlock& block : layout.blocks) {
      const int64_t shape[] = {block.rows, layout.in_features};
      ESP_RETURN_IF_ERROR(put(block.name, shape, data));
      if (data != nullptr) data += block.rows * layout.in_features * size();
    }
    return Status();
  }

  Status vector(const VectorLayout& layout, const void*& out) {
    out = nullptr;
    if (layout.empty()) return Status();
    auto* data = arena_.take<std::byte>(layout.size() * size());
    out = data;
    for (const WeightBlock& block : layout.blocks) {
      const int64_t shape[] = {block.rows};
      ESP_RETURN_IF_ERROR(put(block.name, shape, data));
      if (data != nullptr) data += block.rows * size();
    }
    return Status();
  }

  Status put(const std::string& name, std::span<const int64_t> shape, std::byte* device) {
    return loader_ == nullptr ? Status() : loader_->put(name, shape, device);
  }
  int64_t size() const { return static_cast<int64_t>(dtype_size(type_)); }

  const DType type_;
  cuda::Arena& arena_;
  CudaTensorLoader* const loader_;
};

}  // namespace

Result<PendingCudaWeights> load_cuda_weights(const DecoderSpec& spec, DType type,
                                             const ModelLoadOptions& options) {
  const WeightLayout layout = weight_layout(spec);
  PendingCudaWeights out;
  cuda::Arena measured;
  ESP_RETURN_IF_ERROR(Placer(type, measured, nullptr).place_all(layout, out.weights));
  cuda::DeviceBuffer& block = out.weights.block;
  ESP_ASSIGN_OR_RETURN(block, cuda::DeviceBuffer::allocate(measured.used_bytes(), "the weights"));
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(block.data(), 0, block.size_bytes(), stream));
  ESP_RETURN_IF_ERROR(stream.synchronize());

  ESP_ASSIGN_OR_RETURN(out.loader, options.format == LoadFormat::kDummy
                                       ? make_dummy_loader(options.seed, type)
                                       : make_checkpoint_loader(options, spec, type));
  cuda::Arena arena(block.data());
  ESP_RETURN_IF_ERROR(Placer(type, arena, out.loader.get()).place_all(layout, out.weights));
  ESP_RETURN_IF_ERROR(out.loader->start());
  return out;
}

}  // namespace espalier
