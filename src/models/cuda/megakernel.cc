#include "models/cuda/megakernel.h"

#include <algorithm>

#include "base/check.h"
#include "models/cuda/ops.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;
using program::Op;
using program::OpKind;

// The kernel's weights of a layer.
kc::MegakernelLayer layer_weights(const CudaWeights& weights, int32_t layer) {
  const auto data = [&](WeightKind kind) { return weights.data({kind, layer}); };
  return {.input_norm = data(WeightKind::kInputNorm),
          .qkv = data(WeightKind::kQkv),
          .qkv_bias = data(WeightKind::kQkvBias),
          .q_norm = data(WeightKind::kQNorm),
          .k_norm = data(WeightKind::kKNorm),
          .output = data(WeightKind::kAttentionOutput),
          .output_bias = data(WeightKind::kAttentionOutputBias),
          .mlp_norm = data(WeightKind::kPostAttentionNorm),
          .gate_up = data(WeightKind::kGateUp),
          .gate_up_bias = data(WeightKind::kGateUpBias),
          .down = data(WeightKind::kDown),
          .down_bias = data(WeightKind::kDownBias)};
}

void add_rope(const program::Rope& rope, const DecoderSpec& spec,
              std::span<const float* const> ropes, kc::MegakernelLayer& out) {
  const RopeSpec& of = spec.ropes[static_cast<size_t>(rope.rope)];
  out.frequencies = ropes[static_cast<size_t>(rope.rope)];
  out.attention_factor = static_cast<float>(of.attention_factor);
  out.rotary_dim = of.rotary_dim;
  out.interleaved = of.pairing == RopeSpec::Pairing::kInterleaved ? 1 : 0;
}

}  // namespace

CudaMegakernel::CudaMegakernel(const program::Program& program, const DecoderSpec& spec,
                               const CudaWeights& weights, std::span<const float* const> ropes) {
  for (const Op& op : program.ops) {
    if (op.kind == OpKind::kEmbed) shape_.hidden = op.outputs[0].columns;
    if (op.layer < 0) continue;
    if (op.layer >= shape_.num_layers) {
      shape_.num_layers = op.layer + 1;
      layers_.push_back(layer_weights(weights, op.layer));
    }
    add_op(op, spec, ropes);
  }
}

void CudaMegakernel::add_op(const Op& op, const DecoderSpec& spec,
                            std::span<const float* const> ropes) {
  kc::MegakernelLayer& layer = layers_.back();
  if (op.kind == OpKind::kMatmul) {
    const auto& matmul = op.as<program::Matmul>();
    if (matmul.norm) layer.norm_epsilon = matmul.norm->spec.epsilon;
    if (matmul.activation) shape_.ffn = matmul.activation->dim;
  } else if (op.kind == OpKind::kQkRopeAppend) {
    const auto& fused = op.as<program::QkRopeAppend>();
    if (fused.q_norm) layer.qk_epsilon = fused.q_norm->spec.epsilon;
    if (fused.rope) add_rope(*fused.rope, spec, ropes, layer);
  } else if (op.kind == OpKind::kAttention) {
    const auto& a = op.as<program::Attention>();
    shape_.num_heads = a.num_heads;
    shape_.num_kv_heads = a.num_kv_heads;
    shape_.head_dim = a.head_dim;
    layer.sliding_window = a.sliding_window;
    layer.scale = a.scale;
    layer.softcap = a.softcap;
  }
}

void CudaMegakernel::set_workspace(std::byte* data, int64_t bytes) {
  workspace_ = data;
  workspace_bytes_ = bytes;
}

int64_t CudaMegakernel::kv_bytes_per_token() const {
  return int64_t{4} * shape_.num_kv_heads * shape_.head_dim;
}

Status CudaMegakernel::run(CudaContext& c, const Op& op) const {
  const KvView::Layer& first = c.kv().layer(0);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const KvView::Layer& layer = c.kv().layers[i];
    ESP_CHECK(layer.type == first.type && layer.page_stride == first.page_stride &&
                  layer.token_stride == first.token_stride &&
                  layer.head_stride == first.head_stride,
              "the megakernel takes layers of one KV layout, and layer {} has another", i);
    layers_[i].k = layer.k;
    layers_[i].v = layer.v;
  }
  const CudaStep& step = c.step();
  return kc::megakernel({.shape = shape_,
                         .layers = layers_,
                         .ids = step.ids,
                         .token_slots = step.token_slots,
                         .slot_tokens = step.slot_tokens,
                         .embedding = c.weights().data(op.table),
                         .vocab_size = c.spec().vocab_size,
                         .entries = c.entries(layers_.front().sliding_window),
                         .kv = planes_of(c.kv(), 0),
                         .out = c.write(op.outputs[0]),
                         .workspace = workspace_,
                         .workspace_bytes = static_cast<size_t>(workspace_bytes_)},
                        c.launch(op));
}

Status run_megakernel(CudaContext& c, const Op& op) { return c.scratch().megakernel->run(c, op); }

}  // namespace espalier
