// Latent attention of prompts with expanded keys and values: see
// kernels/attention/latent_prefill.h.
#include <algorithm>

#include "kernels/attention/latent_prefill.h"
#include "models/cuda/ops.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;
using program::Op;
using program::Operand;

// Heads whose keys and values of the step's rows fit into the memory; a multiple of four where the
// model's are.
int32_t heads_at_once(const CudaContext& c, const program::LatentPrefill& a, int64_t rows) {
  const int64_t head_bytes =
      rows * (a.nope_dim + a.value_dim) * static_cast<int64_t>(dtype_size(c.type()));
  const int64_t fit = c.scratch().expanded.keys_values_bytes / head_bytes;
  if (fit >= a.heads) return a.heads;
  return static_cast<int32_t>(fit >= 4 ? fit / 4 * 4 : std::max<int64_t>(fit, 1));
}

const std::byte* elements_behind(const void* data, int64_t elements, DType type) {
  return static_cast<const std::byte*>(data) + elements * static_cast<int64_t>(dtype_size(type));
}

// Heads [first, first + heads).
Status attend_heads(CudaContext& c, const Op& op, int32_t first, int32_t heads) {
  const auto& a = op.as<program::LatentPrefill>();
  const CudaExpandedScratch& scratch = c.scratch().expanded;
  const auto rows = static_cast<int32_t>(c.step().expanded.rows);
  kc::LinearArgs expand = expansion_shape(c.weights(), op, rows, heads);
  expand.weights =
      elements_behind(expand.weights, first * c.weights().at(a.weight).group_stride, c.type());
  expand.x = scratch.latents;
  expand.y = scratch.keys_values;
  ESP_RETURN_IF_ERROR(c.linear(expand, op));
  const Operand &queries = op.inputs[0], &rotated = op.inputs[1], &values = op.outputs[0];
  const int64_t width = a.nope_dim + a.rope_dim, latent_width = a.rank + a.rope_dim;
  return kc::attention_expanded(
      {.entries = c.step().entries,
       .plan = scratch.plan,
       .num_heads = heads,
       .q_nope = elements_behind(c.read(queries), first * width, c.type()),
       .q_rope = elements_behind(c.read(rotated), first * latent_width + a.rank, c.type()),
       .q_nope_stride = c.stride(queries),
       .q_nope_head = width,
       .q_rope_stride = c.stride(rotated),
       .q_rope_head = latent_width,
       .rows = rows,
       .keys_values = scratch.keys_values,
       .k_rope = elements_behind(scratch.latents, a.rank, c.type()),
       .k_rope_stride = latent_width,
       .out = const_cast<std::byte*>(
           elements_behind(c.write(values), int64_t{first} * a.value_dim, c.type())),
       .out_stride = c.stride(values),
       .scale = a.scale},
      c.launch(op));
}

}  // namespace

// The values' matrix of the first head lies behind its keys' matrix (CudaWeights keeps kv_b whole).
kc::LinearArgs expansion_shape(const CudaWeights& weights, const Op& op, int32_t rows,
                               int32_t heads) {
  const auto& a = op.as<program::LatentPrefill>();
  const CudaWeight& values = weights.at(a.weight);
  const DType type = values.format.type;
  const int32_t outputs = heads * (a.nope_dim + a.value_dim);
  return {.type = type,
          .out_type = type,
          .rows = rows,
          .in_features = a.rank,
          .out_features = outputs,
          .x_stride = int64_t{a.rank} + a.rope_dim,
          .weights = elements_behind(values.data, -int64_t{a.nope_dim} * a.rank, type),
          .y_stride = outputs};
}

Status run_latent_prefill(CudaContext& c, const Op& op) {
  const auto& a = op.as<program::LatentPrefill>();
  const auto rows = static_cast<int32_t>(c.step().expanded.rows);
  ESP_RETURN_IF_ERROR(kc::gather_latents({.entries = c.step().entries,
                                          .plan = c.scratch().expanded.plan,
                                          .kv = planes_of(c.kv(), static_cast<size_t>(op.layer)),
                                          .rows = rows,
                                          .out = c.scratch().expanded.latents},
                                         c.launch(op)));
  const int32_t heads = heads_at_once(c, a, rows);
  for (int32_t first = 0; first < a.heads; first += heads) {
    ESP_RETURN_IF_ERROR(attend_heads(c, op, first, std::min(heads, a.heads - first)));
  }
  return Status();
}

}  // namespace espalier
