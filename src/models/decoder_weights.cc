#include "models/decoder_weights.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "models/weight_layout.h"

namespace espalier {
namespace {

using kernels::CpuBackend;
using kernels::PackedMatrix;
using kernels::PackSpec;
using kernels::WeightRows;

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
    const WeightLayout layout = weight_layout(spec_);
    DecoderWeights weights;
    weights.type = type_;
    if (!layout.embedding.empty()) {
      ESP_RETURN_IF_ERROR(load_embedding(layout.embedding, weights.embedding));
    }
    ESP_RETURN_IF_ERROR(pack(layout.head, weights.head));
    for (size_t i = 0; i < layout.layers.size(); ++i) {
      const bool plain = spec_.layers[i].mlp.bias || spec_.faults.linear_activation;
      ESP_RETURN_IF_ERROR(load_layer(layout.layers[i], !plain, weights.layers.emplace_back()));
    }
    ESP_RETURN_IF_ERROR(append(layout.final_norm, weights.final_norm));
    ESP_RETURN_IF_ERROR(source_.finish());
    return weights;
  }

 private:
  Status load_layer(const LayerLayout& layout, bool fuse_gate_up, LayerWeights& out) {
    ESP_RETURN_IF_ERROR(append(layout.input_norm, out.input_norm));
    ESP_RETURN_IF_ERROR(pack(layout.qkv, out.qkv));
    ESP_RETURN_IF_ERROR(append(layout.qkv_bias, out.qkv_bias));
    ESP_RETURN_IF_ERROR(append(layout.q_norm, out.q_norm));
    ESP_RETURN_IF_ERROR(append(layout.k_norm, out.k_norm));
    ESP_RETURN_IF_ERROR(pack(layout.attention_output, out.attention_output));
    ESP_RETURN_IF_ERROR(append(layout.attention_output_bias, out.attention_output_bias));
    ESP_RETURN_IF_ERROR(append(layout.post_attention_norm, out.post_attention_norm));
    ESP_RETURN_IF_ERROR(pack(layout.gate_up, out.gate_up, fuse_gate_up));
    ESP_RETURN_IF_ERROR(append(layout.gate_up_bias, out.gate_up_bias));
    ESP_RETURN_IF_ERROR(pack(layout.down, out.down));
    return append(layout.down_bias, out.down_bias);
  }

  Status pack(const MatrixLayout& layout, PackedMatrix& out, bool gate_up = false) {
    std::vector<WeightRows> rows;
    for (const WeightBlock& block : layout.blocks) {
      const int64_t shape[] = {block.rows, layout.in_features};
      ESP_ASSIGN_OR_RETURN(const LentTensor lent, source_.lend(block.name, shape));
      rows.push_back({.data = lent.data, .type = lent.type, .rows = block.rows});
    }
    const PackSpec spec{
        .in_features = layout.in_features, .type = type_, .blocks = rows, .gate_up = gate_up};
    ESP_ASSIGN_OR_RETURN(out, PackedMatrix::pack(backend_, spec));
    for (const WeightBlock& block : layout.blocks) source_.give_back(block.name);
    return Status();
  }

  Status append(const VectorLayout& layout, std::vector<float>& out) {
    for (const WeightBlock& block : layout.blocks) {
      const int64_t shape[] = {block.rows};
      ESP_ASSIGN_OR_RETURN(const LentTensor lent, source_.lend(block.name, shape));
      for (int64_t i = 0; i < block.rows; ++i) out.push_back(element(lent, i));
      source_.give_back(block.name);
    }
    return Status();
  }

  Status load_embedding(const MatrixLayout& layout, Buffer& out) {
    const std::string& name = layout.blocks[0].name;
    const int64_t shape[] = {layout.out_features(), layout.in_features};
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
