#include "models/decoder_weights.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

namespace espalier {
namespace {

using kernels::CpuBackend;
using kernels::PackedMatrix;
using kernels::PackSpec;
using kernels::WeightRows;

// One tensor of a packed matrix: its name without ".weight", and its rows.
struct Block {
  std::string name;
  int64_t rows = 0;
};

float element(const LentTensor& tensor, int64_t i) {
  switch (tensor.type) {
    case DType::kFloat32:
      return static_cast<const float*>(tensor.data)[i];
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(tensor.data)[i]);
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(tensor.data)[i]);
  }
  return 0;
}

class Loader {
 public:
  Loader(CpuBackend& backend, const DecoderSpec& spec, DType type, WeightSource& source)
      : backend_(backend), spec_(spec), type_(type), source_(source) {}

  Result<DecoderWeights> load() {
    DecoderWeights weights;
    weights.type = type_;
    const WeightNames& names = spec_.names;
    if (spec_.tied_embeddings) {
      ESP_RETURN_IF_ERROR(
          pack({{names.embedding, spec_.vocab_size}}, spec_.hidden_size, weights.head));
    } else {
      ESP_RETURN_IF_ERROR(load_embedding(weights.embedding));
      ESP_RETURN_IF_ERROR(pack({{names.head, spec_.vocab_size}}, spec_.hidden_size, weights.head));
    }
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      ESP_RETURN_IF_ERROR(
          load_layer(spec_.layers[i], static_cast<int32_t>(i), weights.layers.emplace_back()));
    }
    if (spec_.final_norm) {
      ESP_RETURN_IF_ERROR(
          append(names.final_norm + ".weight", spec_.hidden_size, weights.final_norm));
    }
    ESP_RETURN_IF_ERROR(source_.finish());
    return weights;
  }

 private:
  Status load_layer(const LayerSpec& layer, int32_t index, LayerWeights& out) {
    const WeightNames& names = spec_.names;
    const AttentionSpec& a = layer.attention;
    const int64_t hidden = spec_.hidden_size;
    const auto name = [&](const std::string& pattern) { return layer_name(pattern, index); };

    if (layer.input_norm) {
      ESP_RETURN_IF_ERROR(append(name(names.input_norm) + ".weight", hidden, out.input_norm));
    }
    const std::vector<Block> qkv = {
        {name(names.q), a.q_dim()}, {name(names.k), a.kv_dim()}, {name(names.v), a.kv_dim()}};
    ESP_RETURN_IF_ERROR(pack(qkv, hidden, out.qkv));
    if (a.qkv_bias) ESP_RETURN_IF_ERROR(append_biases(qkv, out.qkv_bias));
    if (a.qk_norm) {
      ESP_RETURN_IF_ERROR(append(name(names.q_norm) + ".weight", a.head_dim, out.q_norm));
      ESP_RETURN_IF_ERROR(append(name(names.k_norm) + ".weight", a.head_dim, out.k_norm));
    }
    const std::vector<Block> output = {{name(names.attention_output), hidden}};
    ESP_RETURN_IF_ERROR(pack(output, a.q_dim(), out.attention_output));
    if (a.output_bias) ESP_RETURN_IF_ERROR(append_biases(output, out.attention_output_bias));

    if (layer.post_attention_norm) {
      ESP_RETURN_IF_ERROR(
          append(name(names.post_attention_norm) + ".weight", hidden, out.post_attention_norm));
    }
    const int64_t ffn = layer.mlp.intermediate_size;
    const std::vector<Block> gate_up = {{name(names.gate), ffn}, {name(names.up), ffn}};
    const std::vector<Block> down = {{name(names.down), hidden}};
    const bool fused = !layer.mlp.bias && !spec_.faults.linear_activation;
    ESP_RETURN_IF_ERROR(pack(gate_up, hidden, out.gate_up, fused));
    ESP_RETURN_IF_ERROR(pack(down, ffn, out.down));
    if (layer.mlp.bias) {
      ESP_RETURN_IF_ERROR(append_biases(gate_up, out.gate_up_bias));
      ESP_RETURN_IF_ERROR(append_biases(down, out.down_bias));
    }
    return Status();
  }

  Status pack(const std::vector<Block>& blocks, int64_t in_features, PackedMatrix& out,
              bool gate_up = false) {
    std::vector<WeightRows> rows;
    for (const Block& block : blocks) {
      const int64_t shape[] = {block.rows, in_features};
      ESP_ASSIGN_OR_RETURN(const LentTensor lent, source_.lend(block.name + ".weight", shape));
      rows.push_back({.data = lent.data, .type = lent.type, .rows = block.rows});
    }
    const PackSpec spec{
        .in_features = in_features, .type = type_, .blocks = rows, .gate_up = gate_up};
    ESP_ASSIGN_OR_RETURN(out, PackedMatrix::pack(backend_, spec));
    for (const Block& block : blocks) source_.give_back(block.name + ".weight");
    return Status();
  }

  Status append(const std::string& name, int64_t size, std::vector<float>& out) {
    const int64_t shape[] = {size};
    ESP_ASSIGN_OR_RETURN(const LentTensor lent, source_.lend(name, shape));
    for (int64_t i = 0; i < size; ++i) out.push_back(element(lent, i));
    source_.give_back(name);
    return Status();
  }

  Status append_biases(const std::vector<Block>& blocks, std::vector<float>& out) {
    for (const Block& block : blocks) {
      ESP_RETURN_IF_ERROR(append(block.name + ".bias", block.rows, out));
    }
    return Status();
  }

  Status load_embedding(Buffer& out) {
    const std::string name = spec_.names.embedding + ".weight";
    const int64_t shape[] = {spec_.vocab_size, spec_.hidden_size};
    ESP_ASSIGN_OR_RETURN(const LentTensor lent, source_.lend(name, shape));
    const int64_t count = shape[0] * shape[1];
    const size_t bytes = static_cast<size_t>(count) * dtype_size(type_);
    ESP_ASSIGN_OR_RETURN(out, Buffer::allocate(bytes));
    constexpr int64_t kGrain = 1 << 16;
    backend_.pool().parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
      if (lent.type == type_) {
        const size_t size = dtype_size(type_), first = static_cast<size_t>(begin) * size;
        std::memcpy(out.data() + first, static_cast<const std::byte*>(lent.data) + first,
                    static_cast<size_t>(end - begin) * size);
        return;
      }
      for (int64_t i = begin; i < end; ++i) {
        const float value = element(lent, i);
        if (type_ == DType::kFloat32) {
          out.as<float>()[i] = value;
        } else {
          out.as<BFloat16>()[i] = to_bfloat16(value);
        }
      }
    });
    source_.give_back(name);
    return Status();
  }

  CpuBackend& backend_;
  const DecoderSpec& spec_;
  const DType type_;
  WeightSource& source_;
};

int64_t bytes_of(const std::vector<float>& values) {
  return static_cast<int64_t>(values.size() * sizeof(float));
}

}  // namespace

int64_t DecoderWeights::size_bytes() const {
  int64_t total =
      static_cast<int64_t>(embedding.size_bytes() + head.size_bytes()) + bytes_of(final_norm);
  for (const LayerWeights& layer : layers) {
    for (const PackedMatrix* matrix :
         {&layer.qkv, &layer.attention_output, &layer.gate_up, &layer.down}) {
      total += static_cast<int64_t>(matrix->size_bytes());
    }
    for (const std::vector<float>* values :
         {&layer.input_norm, &layer.qkv_bias, &layer.q_norm, &layer.k_norm,
          &layer.attention_output_bias, &layer.post_attention_norm, &layer.gate_up_bias,
          &layer.down_bias}) {
      total += bytes_of(*values);
    }
  }
  return total;
}

Result<DecoderWeights> load_weights(CpuBackend& backend, const DecoderSpec& spec, DType type,
                                    WeightSource& source) {
  return Loader(backend, spec, type, source).load();
}

}  // namespace espalier
