#include "models/weight_layout.h"

namespace espalier {
namespace {

struct Part {
  const std::string& name;  // without ".weight" or ".bias"
  int64_t rows = 0;
};

std::vector<WeightBlock> blocks(std::initializer_list<Part> parts, std::string_view suffix,
                                int32_t layer) {
  std::vector<WeightBlock> out;
  for (const Part& part : parts) {
    out.push_back({layer_name(part.name, layer).append(suffix), part.rows});
  }
  return out;
}

LayerLayout layer_layout(const DecoderSpec& spec, int32_t index) {
  const WeightNames& names = spec.names;
  const LayerSpec& layer = spec.layers[static_cast<size_t>(index)];
  const AttentionSpec& a = layer.attention;
  const int64_t hidden = spec.hidden_size, ffn = layer.mlp.intermediate_size;
  const auto weight = [&](std::initializer_list<Part> parts) {
    return blocks(parts, ".weight", index);
  };
  const auto bias = [&](std::initializer_list<Part> parts) {
    return blocks(parts, ".bias", index);
  };
  const std::initializer_list<Part> qkv = {
      {names.q, a.q_dim()}, {names.k, a.kv_dim()}, {names.v, a.kv_dim()}};
  const std::initializer_list<Part> gate_up = {{names.gate, ffn}, {names.up, ffn}};
  const std::initializer_list<Part> output = {{names.attention_output, hidden}};
  const std::initializer_list<Part> down = {{names.down, hidden}};

  LayerLayout out;
  if (layer.input_norm) out.input_norm.blocks = weight({{names.input_norm, hidden}});
  out.qkv = {weight(qkv), hidden};
  if (a.qkv_bias) out.qkv_bias.blocks = bias(qkv);
  if (a.qk_norm) {
    out.q_norm.blocks = weight({{names.q_norm, a.head_dim}});
    out.k_norm.blocks = weight({{names.k_norm, a.head_dim}});
  }
  out.attention_output = {weight(output), a.q_dim()};
  if (a.output_bias) out.attention_output_bias.blocks = bias(output);
  if (layer.post_attention_norm) {
    out.post_attention_norm.blocks = weight({{names.post_attention_norm, hidden}});
  }
  out.gate_up = {weight(gate_up), hidden};
  out.down = {weight(down), ffn};
  if (layer.mlp.bias) {
    out.gate_up_bias.blocks = bias(gate_up);
    out.down_bias.blocks = bias(down);
  }
  return out;
}

int64_t rows_of(const std::vector<WeightBlock>& blocks) {
  int64_t rows = 0;
  for (const WeightBlock& block : blocks) rows += block.rows;
  return rows;
}

}  // namespace

int64_t MatrixLayout::out_features() const { return rows_of(blocks); }
int64_t VectorLayout::size() const { return rows_of(blocks); }

WeightLayout weight_layout(const DecoderSpec& spec) {
  const auto table = [&](const std::string& name) {
    return MatrixLayout{{{name + ".weight", spec.vocab_size}}, spec.hidden_size};
  };
  WeightLayout out;
  if (!spec.tied_embeddings) out.embedding = table(spec.names.embedding);
  out.head = table(spec.tied_embeddings ? spec.names.embedding : spec.names.head);
  for (int32_t i = 0; i < static_cast<int32_t>(spec.layers.size()); ++i) {
    out.layers.push_back(layer_layout(spec, i));
  }
  if (spec.final_norm) {
    out.final_norm.blocks = {{spec.names.final_norm + ".weight", spec.hidden_size}};
  }
  return out;
}

}  // namespace espalier
