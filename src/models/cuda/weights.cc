#include "models/cuda/weights.h"

#include "kernels/relayout/cuda.h"
#include "models/weight_layout.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

constexpr int64_t kRowMultiple = 8;  // of a product's outputs: kernels/linear/cuda.h
constexpr int64_t kMxBlock = 32;     // elements that share a scale
constexpr int64_t kMxBytes = 16;     // of such a block

// Places every weight, first without memory to measure, then with it to load. What the checkpoint
// has in another order goes to a place of its own first.
class Placer {
 public:
  // loader: null in the measuring pass.
  Placer(DType type, cuda::Arena& arena, cuda::Arena& staging, CudaTensorLoader* loader)
      : type_(type), arena_(arena), staging_(staging), loader_(loader) {}

  Status place_all(const DecoderSpec& spec, const WeightLayout& layout, CudaWeights& out) {
    out.type = type_;
    ESP_RETURN_IF_ERROR(matrix(layout.head, out.head));
    out.embedding = out.head;
    if (!layout.embedding.empty()) ESP_RETURN_IF_ERROR(matrix(layout.embedding, out.embedding));
    ESP_RETURN_IF_ERROR(matrix(layout.position_embedding, out.position_embedding));
    out.layers.assign(layout.layers.size(), {});
    for (size_t i = 0; i < layout.layers.size(); ++i) {
      ESP_RETURN_IF_ERROR(layer(spec, spec.layers[i], layout.layers[i], out.layers[i]));
    }
    return vector(layout.final_norm, out.final_norm);
  }

  // To be run when the loader has finished.
  const std::vector<kc::RelayoutArgs>& relayouts() const { return relayouts_; }

 private:
  Status layer(const DecoderSpec& spec, const LayerSpec& of, const LayerLayout& layout,
               CudaLayerWeights& out) {
    ESP_RETURN_IF_ERROR(vector(layout.input_norm, out.input_norm));
    ESP_RETURN_IF_ERROR(matrix(layout.qkv, out.qkv));
    ESP_RETURN_IF_ERROR(vector(layout.qkv_bias, out.qkv_bias));
    ESP_RETURN_IF_ERROR(vector(layout.q_norm, out.q_norm));
    ESP_RETURN_IF_ERROR(vector(layout.k_norm, out.k_norm));
    if (of.attention.latent) {
      ESP_RETURN_IF_ERROR(latent(of.attention, layout.latent, out.latent));
    }
    ESP_RETURN_IF_ERROR(floats(layout.sinks, out.sinks));
    ESP_RETURN_IF_ERROR(matrix(layout.attention_output, out.attention_output));
    ESP_RETURN_IF_ERROR(vector(layout.attention_output_bias, out.attention_output_bias));
    ESP_RETURN_IF_ERROR(vector(layout.attention_output_norm, out.attention_output_norm));
    ESP_RETURN_IF_ERROR(vector(layout.post_attention_norm, out.post_attention_norm));
    ESP_RETURN_IF_ERROR(matrix(layout.mlp.gate_up, out.gate_up));
    ESP_RETURN_IF_ERROR(vector(layout.mlp.gate_up_bias, out.gate_up_bias));
    ESP_RETURN_IF_ERROR(matrix(layout.mlp.down, out.down));
    ESP_RETURN_IF_ERROR(vector(layout.mlp.down_bias, out.down_bias));
    if (of.experts) ESP_RETURN_IF_ERROR(experts(spec, *of.experts, layout.experts, out.experts));
    return vector(layout.mlp_output_norm, out.mlp_output_norm);
  }

  Status latent(const AttentionSpec& a, const LatentLayout& layout, CudaLatentWeights& out) {
    const LatentSpec& spec = *a.latent;
    ESP_RETURN_IF_ERROR(matrix(layout.q_a, out.q_a));
    ESP_RETURN_IF_ERROR(vector(layout.q_a_norm, out.q_a_norm));
    ESP_RETURN_IF_ERROR(matrix(layout.q, out.q));
    ESP_RETURN_IF_ERROR(matrix(layout.kv_a, out.kv_a));
    ESP_RETURN_IF_ERROR(vector(layout.kv_a_norm, out.kv_a_norm));
    CudaMatrix kv_b;
    ESP_RETURN_IF_ERROR(matrix(layout.kv_b, kv_b));
    out.kv_b = kv_b.data;
    auto* turned = take(int64_t{a.num_heads} * spec.rank * spec.nope_dim);
    out.query_to_latent = turned;
    relayouts_.push_back({.type = type_,
                          .from = kv_b.data,
                          .from_group_stride = int64_t{spec.nope_dim + spec.value_dim} * spec.rank,
                          .to = turned,
                          .groups = a.num_heads,
                          .rows = spec.rank,
                          .columns = spec.nope_dim});
    return Status();
  }

  Status experts(const DecoderSpec& spec, const ExpertsSpec& of, const ExpertsLayout& layout,
                 CudaExpertsWeights& out) {
    ESP_RETURN_IF_ERROR(float_matrix(layout.router, out.router));
    ESP_RETURN_IF_ERROR(floats(layout.router_bias, out.router_bias));
    ESP_RETURN_IF_ERROR(floats(layout.router_correction, out.router_correction));
    ESP_RETURN_IF_ERROR(float_matrix(layout.shared_gate, out.shared_gate));
    const int64_t count = of.router.num_experts, ffn = of.expert.intermediate_size;
    const int64_t hidden = spec.hidden_size;
    auto* gate_up = take(count * 2 * ffn * hidden);
    auto* down = take(count * hidden * ffn);
    auto* gate_up_bias = of.expert.bias ? take(count * 2 * ffn) : nullptr;
    auto* down_bias = of.expert.bias ? take(count * hidden) : nullptr;
    out.gate_up = gate_up;
    out.down = down;
    out.gate_up_bias = gate_up_bias;
    out.down_bias = down_bias;
    if (layout.experts.empty()) {
      const bool mxfp4 = spec.names.experts == WeightNames::Experts::kFusedMxfp4;
      const auto place = mxfp4 ? &Placer::mxfp4_experts : &Placer::turned_experts;
      const std::string &first = layout.fused_gate_up, &second = layout.fused_down;
      ESP_RETURN_IF_ERROR((this->*place)(first, count, 2 * ffn, hidden, true, gate_up));
      ESP_RETURN_IF_ERROR((this->*place)(second, count, hidden, ffn, false, down));
      // A bias is a matrix of one column, which has no other order.
      ESP_RETURN_IF_ERROR(biases(first + "_bias", count, 2 * ffn, true, gate_up_bias));
      return biases(second + "_bias", count, hidden, false, down_bias);
    }
    for (const MlpLayout& expert : layout.experts) {
      ESP_RETURN_IF_ERROR(blocks(expert.gate_up, gate_up));
      ESP_RETURN_IF_ERROR(blocks(expert.down, down));
      if (!of.expert.bias) continue;
      ESP_RETURN_IF_ERROR(blocks(expert.gate_up_bias, gate_up_bias));
      ESP_RETURN_IF_ERROR(blocks(expert.down_bias, down_bias));
    }
    return Status();
  }

  // [count, columns, rows] in the checkpoint.
  Status turned_experts(const std::string& name, int64_t count, int64_t rows, int64_t columns,
                        bool interleaved, std::byte* to) {
    const int64_t shape[] = {count, columns, rows};
    return turned(name, shape, count, rows, columns, interleaved, to);
  }

  Status biases(const std::string& name, int64_t count, int64_t size, bool interleaved,
                std::byte* to) {
    const int64_t shape[] = {count, size};
    return turned(name, shape, count, size, 1, interleaved, to);
  }

  Status turned(const std::string& name, std::span<const int64_t> shape, int64_t count,
                int64_t rows, int64_t columns, bool interleaved, std::byte* to) {
    auto* from = staging_.take<std::byte>(count * rows * columns * size());
    relayouts_.push_back({.type = type_,
                          .from = from,
                          .from_group_stride = rows * columns,
                          .to = to,
                          .groups = static_cast<int32_t>(count),
                          .rows = static_cast<int32_t>(rows),
                          .columns = static_cast<int32_t>(columns),
                          .interleaved = interleaved});
    return put(name, shape, from);
  }

  Status mxfp4_experts(const std::string& name, int64_t count, int64_t rows, int64_t columns,
                       bool interleaved, std::byte* to) {
    if (columns % kMxBlock != 0) {
      return invalid_argument("'{}': {} columns are no whole number of MXFP4 blocks of {}", name,
                              columns, kMxBlock);
    }
    const int64_t groups = columns / kMxBlock;
    auto* from = staging_.take<std::byte>(count * rows * groups * kMxBytes);
    auto* scales = staging_.take<std::byte>(count * rows * groups);
    relayouts_.push_back({.kind = kc::RelayoutArgs::From::kMxfp4,
                          .type = type_,
                          .from = from,
                          .scales = reinterpret_cast<const uint8_t*>(scales),
                          .to = to,
                          .groups = static_cast<int32_t>(count),
                          .rows = static_cast<int32_t>(rows),
                          .columns = static_cast<int32_t>(columns),
                          .interleaved = interleaved});
    if (loader_ == nullptr) return Status();
    const int64_t block_shape[] = {count, rows, groups, kMxBytes};
    const int64_t scale_shape[] = {count, rows, groups};
    ESP_RETURN_IF_ERROR(loader_->put_bytes(name + "_blocks", block_shape, from));
    return loader_->put_bytes(name + "_scales", scale_shape, scales);
  }

  Status matrix(const MatrixLayout& layout, CudaMatrix& out) {
    if (layout.empty()) return Status();
    const int64_t rows = (layout.out_features() + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
    auto* data = take(rows * layout.in_features);
    out = {data, static_cast<int32_t>(layout.in_features), static_cast<int32_t>(rows)};
    return layout.transposed ? turned_blocks(layout, data) : blocks(layout, data);
  }

  // One block after the other, each [in, out] in the checkpoint.
  Status turned_blocks(const MatrixLayout& layout, std::byte* data) {
    const int64_t in = layout.in_features;
    if (layout.fused) {
      const int64_t shape[] = {in, layout.out_features()};
      return turned(layout.blocks.front().name, shape, 1, shape[1], in, false, data);
    }
    for (const WeightBlock& block : layout.blocks) {
      const int64_t shape[] = {in, block.rows};
      ESP_RETURN_IF_ERROR(turned(block.name, shape, 1, block.rows, in, false, data));
      if (data != nullptr) data += block.rows * in * size();
    }
    return Status();
  }

  // The matrix's or vector's blocks to `data`, which moves behind them.
  Status blocks(const MatrixLayout& layout, std::byte*& data) {
    if (layout.fused) {
      const int64_t shape[] = {layout.out_features(), layout.in_features};
      ESP_RETURN_IF_ERROR(put(layout.blocks.front().name, shape, data));
      if (data != nullptr) data += shape[0] * shape[1] * size();
      return Status();
    }
    for (const WeightBlock& block : layout.blocks) {
      const int64_t shape[] = {block.rows, layout.in_features};
      ESP_RETURN_IF_ERROR(put(block.name, shape, data));
      if (data != nullptr) data += block.rows * layout.in_features * size();
    }
    return Status();
  }
  Status blocks(const VectorLayout& layout, std::byte*& data) {
    for (const WeightBlock& block : layout.blocks) {
      const int64_t shape[] = {block.rows};
      ESP_RETURN_IF_ERROR(put(block.name, shape, data));
      if (data != nullptr) data += block.rows * size();
    }
    return Status();
  }

  Status vector(const VectorLayout& layout, const void*& out) {
    out = nullptr;
    if (layout.empty()) return Status();
    auto* data = take(layout.size());
    out = data;
    return blocks(layout, data);
  }

  // In float32 whatever the others are.
  Status floats(const VectorLayout& layout, const float*& out) {
    out = nullptr;
    if (layout.empty()) return Status();
    const int64_t shape[] = {layout.size()};
    return put_floats(layout.blocks.front().name, shape, layout.size(), out);
  }
  Status float_matrix(const MatrixLayout& layout, const float*& out) {
    out = nullptr;
    if (layout.empty()) return Status();
    const int64_t shape[] = {layout.out_features(), layout.in_features};
    return put_floats(layout.blocks.front().name, shape, shape[0] * shape[1], out);
  }
  Status put_floats(const std::string& name, std::span<const int64_t> shape, int64_t count,
                    const float*& out) {
    auto* data = arena_.take<float>(count);
    out = data;
    if (loader_ == nullptr) return Status();
    return loader_->put(name, shape, DType::kFloat32, reinterpret_cast<std::byte*>(data));
  }

  std::byte* take(int64_t count) { return arena_.take<std::byte>(count * size()); }
  Status put(const std::string& name, std::span<const int64_t> shape, std::byte* device) {
    return loader_ == nullptr ? Status() : loader_->put(name, shape, type_, device);
  }
  int64_t size() const { return static_cast<int64_t>(dtype_size(type_)); }

  const DType type_;
  cuda::Arena &arena_, &staging_;
  CudaTensorLoader* const loader_;
  std::vector<kc::RelayoutArgs> relayouts_;
};

Result<cuda::DeviceBuffer> allocate_zeros(int64_t size_bytes, const cuda::Stream& stream) {
  ESP_ASSIGN_OR_RETURN(cuda::DeviceBuffer block,
                       cuda::DeviceBuffer::allocate(size_bytes, "the weights"));
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(block.data(), 0, block.size_bytes(), stream));
  ESP_RETURN_IF_ERROR(stream.synchronize());
  return block;
}

}  // namespace

Result<PendingCudaWeights> load_cuda_weights(const DecoderSpec& spec, DType type,
                                             const ModelLoadOptions& options) {
  const WeightLayout layout = weight_layout(spec);
  PendingCudaWeights out;
  cuda::Arena measured, measured_staging;
  ESP_RETURN_IF_ERROR(
      Placer(type, measured, measured_staging, nullptr).place_all(spec, layout, out.weights));
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  cuda::DeviceBuffer& block = out.weights.block;
  ESP_ASSIGN_OR_RETURN(block, allocate_zeros(measured.used_bytes(), stream));
  cuda::DeviceBuffer staged;  // given back when this returns
  if (measured_staging.used_bytes() > 0) {
    ESP_ASSIGN_OR_RETURN(staged, cuda::DeviceBuffer::allocate(measured_staging.used_bytes(),
                                                              "weights on their way"));
  }

  ESP_ASSIGN_OR_RETURN(out.loader, options.format == LoadFormat::kDummy
                                       ? make_dummy_loader(options.seed)
                                       : make_checkpoint_loader(options, spec));
  cuda::Arena arena(block.data()), staging(staged.data());
  Placer placer(type, arena, staging, out.loader.get());
  ESP_RETURN_IF_ERROR(placer.place_all(spec, layout, out.weights));
  ESP_RETURN_IF_ERROR(out.loader->start());
  if (placer.relayouts().empty()) return out;
  ESP_RETURN_IF_ERROR(out.loader->finish());
  for (const kc::RelayoutArgs& args : placer.relayouts()) {
    ESP_RETURN_IF_ERROR(kc::relayout(args, {.stream = stream.get()}));
  }
  ESP_RETURN_IF_ERROR(stream.synchronize());
  return out;
}

}  // namespace espalier
