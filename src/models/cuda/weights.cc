#include "models/cuda/weights.h"

#include "kernels/relayout/cuda.h"
#include "models/weight_layout.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

constexpr int64_t kRowMultiple = 8;  // of a GEMM's outputs: kernels/linear/cuda.h
constexpr int64_t kMxBlock = 32;     // elements that share a scale
constexpr int64_t kMxBytes = 16;     // of such a block

constexpr size_t kNumKinds = static_cast<size_t>(WeightKind::kPoolingHeadBias) + 1;

// Places every weight, first without memory to measure, then with it to load. What the checkpoint
// has in another order goes to a place of its own first.
class Placer {
 public:
  // loader: null in the measuring pass.
  Placer(DType type, cuda::Arena& arena, cuda::Arena& staging, CudaTensorLoader* loader)
      : type_(type), arena_(arena), staging_(staging), loader_(loader) {}

  Status place_all(const DecoderSpec& spec, const WeightLayout& layout, CudaWeights& out) {
    out_ = &out;
    ESP_RETURN_IF_ERROR(matrix(layout.head, {WeightKind::kHead}));
    out.at({WeightKind::kEmbedding}) = out.at({WeightKind::kHead});
    ESP_RETURN_IF_ERROR(matrix(layout.embedding, {WeightKind::kEmbedding}));
    ESP_RETURN_IF_ERROR(matrix(layout.position_embedding, {WeightKind::kPositionEmbedding}));
    for (size_t i = 0; i < layout.layers.size(); ++i) {
      layer_ = static_cast<int32_t>(i);
      ESP_RETURN_IF_ERROR(layer(spec, spec.layers[i], layout.layers[i]));
    }
    return vector(layout.final_norm, {WeightKind::kFinalNorm});
  }

  // To be run when the loader has finished.
  const std::vector<kc::RelayoutArgs>& relayouts() const { return relayouts_; }

 private:
  WeightId id(WeightKind kind) const { return {kind, layer_}; }

  Status layer(const DecoderSpec& spec, const LayerSpec& of, const LayerLayout& layout) {
    ESP_RETURN_IF_ERROR(vector(layout.input_norm, id(WeightKind::kInputNorm)));
    ESP_RETURN_IF_ERROR(matrix(layout.qkv, id(WeightKind::kQkv)));
    ESP_RETURN_IF_ERROR(vector(layout.qkv_bias, id(WeightKind::kQkvBias)));
    ESP_RETURN_IF_ERROR(vector(layout.q_norm, id(WeightKind::kQNorm)));
    ESP_RETURN_IF_ERROR(vector(layout.k_norm, id(WeightKind::kKNorm)));
    if (of.attention.latent) ESP_RETURN_IF_ERROR(latent(of.attention, layout.latent));
    ESP_RETURN_IF_ERROR(floats(layout.sinks, id(WeightKind::kSinks)));
    ESP_RETURN_IF_ERROR(matrix(layout.attention_output, id(WeightKind::kAttentionOutput)));
    ESP_RETURN_IF_ERROR(vector(layout.attention_output_bias, id(WeightKind::kAttentionOutputBias)));
    ESP_RETURN_IF_ERROR(vector(layout.attention_output_norm, id(WeightKind::kAttentionOutputNorm)));
    ESP_RETURN_IF_ERROR(vector(layout.post_attention_norm, id(WeightKind::kPostAttentionNorm)));
    ESP_RETURN_IF_ERROR(matrix(layout.mlp.gate_up, id(WeightKind::kGateUp)));
    ESP_RETURN_IF_ERROR(vector(layout.mlp.gate_up_bias, id(WeightKind::kGateUpBias)));
    ESP_RETURN_IF_ERROR(matrix(layout.mlp.down, id(WeightKind::kDown)));
    ESP_RETURN_IF_ERROR(vector(layout.mlp.down_bias, id(WeightKind::kDownBias)));
    if (of.experts) ESP_RETURN_IF_ERROR(experts(spec, *of.experts, layout.experts));
    return vector(layout.mlp_output_norm, id(WeightKind::kMlpOutputNorm));
  }

  Status latent(const AttentionSpec& a, const LatentLayout& layout) {
    const LatentSpec& spec = *a.latent;
    ESP_RETURN_IF_ERROR(matrix(layout.q_a, id(WeightKind::kLatentQA)));
    ESP_RETURN_IF_ERROR(vector(layout.q_a_norm, id(WeightKind::kLatentQANorm)));
    ESP_RETURN_IF_ERROR(matrix(layout.q, id(WeightKind::kLatentQ)));
    ESP_RETURN_IF_ERROR(matrix(layout.kv_a, id(WeightKind::kLatentKvA)));
    ESP_RETURN_IF_ERROR(vector(layout.kv_a_norm, id(WeightKind::kLatentKvANorm)));
    return absorbed(a.num_heads, spec, layout.kv_b);
  }

  // kv_b, [heads, nope + value, rank], stays as it is for the values of the heads; its keys' part
  // is transposed once, to [heads, rank, nope].
  Status absorbed(int32_t heads, const LatentSpec& spec, const MatrixLayout& layout) {
    ESP_RETURN_IF_ERROR(check_readable(layout));
    const int64_t rows = int64_t{spec.nope_dim} + spec.value_dim;
    std::byte* kv_b = take(heads * rows * spec.rank);
    auto* transposed = take(int64_t{heads} * spec.rank * spec.nope_dim);
    const int64_t values = int64_t{spec.nope_dim} * spec.rank * size();
    set(id(WeightKind::kLatentToValue), kv_b == nullptr ? nullptr : kv_b + values, spec.rank,
        spec.value_dim, rows * spec.rank);
    set(id(WeightKind::kQueryToLatent), transposed, spec.nope_dim, spec.rank,
        int64_t{spec.rank} * spec.nope_dim);
    relayouts_.push_back({.type = type_,
                          .from = kv_b,
                          .from_group_stride = rows * spec.rank,
                          .to = transposed,
                          .groups = heads,
                          .rows = spec.rank,
                          .columns = spec.nope_dim});
    return blocks(layout, kv_b);
  }

  Status experts(const DecoderSpec& spec, const ExpertsSpec& of, const ExpertsLayout& layout) {
    ESP_RETURN_IF_ERROR(float_matrix(layout.router, id(WeightKind::kRouter)));
    ESP_RETURN_IF_ERROR(floats(layout.router_bias, id(WeightKind::kRouterBias)));
    ESP_RETURN_IF_ERROR(floats(layout.router_correction, id(WeightKind::kRouterCorrection)));
    ESP_RETURN_IF_ERROR(float_matrix(layout.shared_gate, id(WeightKind::kSharedGate)));
    const int32_t ffn = of.expert.intermediate_size, hidden = spec.hidden_size;
    const int64_t count = of.router.num_experts;
    auto* gate_up = stack(id(WeightKind::kExpertGateUp), count, 2 * ffn, hidden);
    auto* down = stack(id(WeightKind::kExpertDown), count, hidden, ffn);
    const bool bias = of.expert.bias;
    auto* gate_up_bias =
        bias ? stack(id(WeightKind::kExpertGateUpBias), count, 2 * ffn, 1) : nullptr;
    auto* down_bias = bias ? stack(id(WeightKind::kExpertDownBias), count, hidden, 1) : nullptr;
    if (layout.experts.empty()) {
      const bool mxfp4 = spec.names.experts == WeightNames::Experts::kFusedMxfp4;
      const auto place = mxfp4 ? &Placer::mxfp4_experts : &Placer::transposed_experts;
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
      if (!bias) continue;
      ESP_RETURN_IF_ERROR(blocks(expert.gate_up_bias, gate_up_bias));
      ESP_RETURN_IF_ERROR(blocks(expert.down_bias, down_bias));
    }
    return Status();
  }

  // Memory of `count` matrices, one behind the other.
  std::byte* stack(WeightId weight, int64_t count, int32_t rows, int32_t columns) {
    std::byte* data = take(count * rows * columns);
    set(weight, data, columns, rows, int64_t{rows} * columns);
    return data;
  }

  // [count, columns, rows] in the checkpoint.
  Status transposed_experts(const std::string& name, int64_t count, int64_t rows, int64_t columns,
                            bool interleaved, std::byte* to) {
    const int64_t shape[] = {count, columns, rows};
    return transposed(name, shape, count, rows, columns, interleaved, to);
  }

  Status biases(const std::string& name, int64_t count, int64_t size, bool interleaved,
                std::byte* to) {
    const int64_t shape[] = {count, size};
    return transposed(name, shape, count, size, 1, interleaved, to);
  }

  Status transposed(const std::string& name, std::span<const int64_t> shape, int64_t count,
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

  Status matrix(const MatrixLayout& layout, WeightId weight) {
    if (layout.empty()) return Status();
    ESP_RETURN_IF_ERROR(check_readable(layout));
    const int64_t rows = (layout.out_features() + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
    auto* data = take(rows * layout.in_features);
    set(weight, data, static_cast<int32_t>(layout.in_features), static_cast<int32_t>(rows), 0);
    out_->at(weight).shard = layout.shard;
    return layout.transposed ? transposed_blocks(layout, data) : blocks(layout, data);
  }

  static Status check_readable(const MatrixLayout& layout) {
    if (layout.shard.whole()) return Status();
    return error(StatusCode::kUnimplemented,
                 "'{}' is cut into {} shards, but a GPU holds whole matrices only; run the model "
                 "on one device",
                 layout.blocks.front().name, layout.shard.num_ranks);
  }

  void set(WeightId weight, const void* data, int32_t in_features, int32_t out_features,
           int64_t group_stride) {
    out_->at(weight) = {.data = data,
                        .in_features = in_features,
                        .out_features = out_features,
                        .group_stride = group_stride,
                        .format = {.type = type_}};
  }

  // One block after the other, each [in, out] in the checkpoint.
  Status transposed_blocks(const MatrixLayout& layout, std::byte* data) {
    const int64_t in = layout.in_features;
    if (layout.fused) {
      const int64_t shape[] = {in, layout.out_features()};
      return transposed(layout.blocks.front().name, shape, 1, shape[1], in, false, data);
    }
    for (const WeightBlock& block : layout.blocks) {
      const int64_t shape[] = {in, block.rows};
      ESP_RETURN_IF_ERROR(transposed(block.name, shape, 1, block.rows, in, false, data));
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

  Status vector(const VectorLayout& layout, WeightId weight) {
    if (layout.empty()) return Status();
    auto* data = take(layout.size());
    set(weight, data, 1, static_cast<int32_t>(layout.size()), 0);
    return blocks(layout, data);
  }

  // In float32 whatever the others are.
  Status floats(const VectorLayout& layout, WeightId weight) {
    if (layout.empty()) return Status();
    const int64_t shape[] = {layout.size()};
    return put_floats(layout.blocks.front().name, shape, 1, weight);
  }
  Status float_matrix(const MatrixLayout& layout, WeightId weight) {
    if (layout.empty()) return Status();
    ESP_RETURN_IF_ERROR(check_readable(layout));
    const int64_t shape[] = {layout.out_features(), layout.in_features};
    return put_floats(layout.blocks.front().name, shape, layout.in_features, weight);
  }
  Status put_floats(const std::string& name, std::span<const int64_t> shape, int64_t in_features,
                    WeightId weight) {
    auto* data = arena_.take<float>(shape[0] * in_features);
    set(weight, data, static_cast<int32_t>(in_features), static_cast<int32_t>(shape[0]), 0);
    out_->at(weight).format.type = DType::kFloat32;
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
  CudaWeights* out_ = nullptr;
  int32_t layer_ = -1;
  std::vector<kc::RelayoutArgs> relayouts_;
};

Status check_format(DType type) {
  if (type == DType::kBFloat16 || type == DType::kFloat32) return Status();
  return error(StatusCode::kUnimplemented,
               "weights of {} are not read by the GPU's kernels; load them as bfloat16 or float32, "
               "or use --device cpu",
               dtype_name(type));
}

Result<cuda::DeviceBuffer> allocate_zeros(int64_t size_bytes, const cuda::Stream& stream) {
  ESP_ASSIGN_OR_RETURN(cuda::DeviceBuffer block,
                       cuda::DeviceBuffer::allocate(size_bytes, "the weights"));
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(block.data(), 0, block.size_bytes(), stream));
  ESP_RETURN_IF_ERROR(stream.synchronize());
  return block;
}

}  // namespace

CudaWeights::CudaWeights(DType type, size_t num_layers)
    : type_(type), table_((num_layers + 1) * kNumKinds) {}

size_t CudaWeights::index_of(WeightId id) {
  return static_cast<size_t>(id.index + 1) * kNumKinds + static_cast<size_t>(id.kind);
}

Result<PendingCudaWeights> load_cuda_weights(const DecoderSpec& spec, DType type,
                                             const ModelLoadOptions& options) {
  ESP_RETURN_IF_ERROR(check_format(type));
  const WeightLayout layout = weight_layout(spec);
  PendingCudaWeights out{.weights = CudaWeights(type, spec.layers.size()), .loader = nullptr};
  cuda::Arena measured, measured_staging;
  ESP_RETURN_IF_ERROR(
      Placer(type, measured, measured_staging, nullptr).place_all(spec, layout, out.weights));
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  ESP_ASSIGN_OR_RETURN(cuda::DeviceBuffer block, allocate_zeros(measured.used_bytes(), stream));
  cuda::Arena arena(block.data());
  out.weights.set_block(std::move(block));
  cuda::DeviceBuffer staged;  // given back when this returns
  if (measured_staging.used_bytes() > 0) {
    ESP_ASSIGN_OR_RETURN(staged, cuda::DeviceBuffer::allocate(measured_staging.used_bytes(),
                                                              "weights on their way"));
  }

  ESP_ASSIGN_OR_RETURN(out.loader, options.format == LoadFormat::kDummy
                                       ? make_dummy_loader(options.seed)
                                       : make_checkpoint_loader(options, spec));
  cuda::Arena staging(staged.data());
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
