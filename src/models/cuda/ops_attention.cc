// Operations between the GEMMs of attention: norms of heads, rope, pages, attention itself and the
// matrices of single heads.
#include "kernels/attention/latent_prefill.h"
#include "kernels/kv_append/cuda.h"
#include "kernels/moe/cuda.h"
#include "models/cuda/ops.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;
using program::Op;
using program::Operand;

// Whether attention reads the new keys and values from the rows of the step: prompts do, decode
// entries read pages. So does every entry where pages are rounded: a token's result does not depend
// on whether an earlier step has written a key.
bool reads_new_rows(const CudaContext& c) {
  return c.step().entries.max_query_tokens > c.step().decode_tokens &&
         c.kv().layers.front().type != KvType::kFloat8E4M3;
}

// Heads are adjacent; of a rope of q's heads and k's together the elements are the same.
void add_rope(const CudaContext& c, const program::Rope& rope, kc::QkRopeAppendArgs& args) {
  const RopeSpec& spec = c.spec().ropes[static_cast<size_t>(rope.rope)];
  args.frequencies = c.scratch().ropes[static_cast<size_t>(rope.rope)];
  args.rotary_begin = rope.begin;
  args.rotary_dim = spec.rotary_dim;
  args.attention_factor = static_cast<float>(spec.attention_factor);
  args.interleaved = spec.pairing == RopeSpec::Pairing::kInterleaved;
  if (spec.sections.empty() || c.step().places == nullptr) return;
  args.places = c.step().places;
  args.interleaved_sections = spec.interleaved_sections;
  args.section_ends[0] = spec.interleaved_sections ? 3 * spec.sections[1] : spec.sections[0];
  args.section_ends[1] =
      spec.interleaved_sections ? 3 * spec.sections[2] : spec.sections[0] + spec.sections[1];
}

void add_norms(const CudaContext& c, const program::QkRopeAppend& fused,
               kc::QkRopeAppendArgs& args) {
  const auto& norm = fused.q_norm ? fused.q_norm : fused.k_norm;
  if (!norm) return;
  args.q_norm = fused.q_norm ? c.weights().data(fused.q_norm->weight) : nullptr;
  args.k_norm = fused.k_norm ? c.weights().data(fused.k_norm->weight) : nullptr;
  args.epsilon = norm->spec.epsilon;
  args.norm_offset = norm->spec.kind == NormSpec::Kind::kRmsOneCentred ? 1.0f : 0.0f;
}

}  // namespace

// Queries are normalised and rotated in place; keys and values go to their pages. The second
// output, where there is one, are the rotated keys.
Status run_qk_rope_append(CudaContext& c, const Op& op) {
  const auto& fused = op.as<program::QkRopeAppend>();
  const Operand &q = op.inputs[0], &k = op.inputs[1];
  const bool keeps_keys = op.outputs.size() > 1 && reads_new_rows(c);
  const bool has_values = op.inputs.size() > 2;
  kc::QkRopeAppendArgs args{.type = c.type(),
                            .q = c.write(q),
                            .q_stride = c.stride(q),
                            .k = c.read(k),
                            .k_stride = c.stride(k),
                            .new_keys = keeps_keys ? c.write(op.outputs[1]) : nullptr,
                            .v = has_values ? c.read(op.inputs[2]) : nullptr,
                            .v_stride = c.stride(k),
                            .tokens = c.num_rows(q),
                            .num_heads = q.columns / fused.append.head_dim,
                            .positions = c.scratch().positions,
                            .kv = planes_of(c.kv(), static_cast<size_t>(op.layer)),
                            .kv_rows = c.kv_rows(fused.append.sliding_window)};
  add_norms(c, fused, args);
  if (fused.rope) add_rope(c, *fused.rope, args);
  return kc::qk_rope_append(args, c.launch(op));
}

// Shared prefix segments, and an entry's prefix but for its fresh positions, were computed by
// earlier steps, and the embedding of the step has waited for all work before it: these keys may be
// prefetched.
Status run_attention(CudaContext& c, const Op& op) {
  const auto& a = op.as<program::Attention>();
  if (!a.causal) return run_bidirectional(c, op);
  const CudaAttentionGroup& group = c.attention_group(op);
  const Operand &q = op.inputs[0], &out = op.outputs[0];
  const bool new_rows = op.inputs.size() > 2 && reads_new_rows(c);
  return kc::attention(
      {.shape = group.shape,
       .entries = c.entries(group.shape.sliding_window),
       .kv = planes_of(c.kv(), static_cast<size_t>(op.layer)),
       .new_keys = new_rows ? c.read(op.inputs[1]) : nullptr,
       .new_values = new_rows ? c.read(op.inputs[2]) : nullptr,
       .new_kv_stride = c.stride(q),
       .q = c.read(q),
       .q_stride = c.stride(q),
       .out = c.write(out),
       .out_stride = c.stride(out),
       .scale = a.scale,
       .softcap = a.softcap,
       .sinks = c.weights().floats(a.sinks),
       .last_seen = a.pictures ? c.step().last_seen : nullptr,
       .latent_tokens_max = c.leaves_out_long_entries() ? kc::kExpandedTokens - 1 : 0,
       .workspace = group.workspace,
       .workspace_bytes = static_cast<size_t>(group.workspace_bytes),
       .prefetch_cached_kv = c.policy().step_pdl,
       .fresh_positions = c.step().fresh_positions},
      c.launch(op));
}

Status run_head_matmul(CudaContext& c, const Op& op) {
  const auto& a = op.as<program::HeadMatmul>();
  const CudaWeight& weight = c.weights().at(a.weight);
  return kc::grouped_linear({.type = weight.format.type,
                             .num_groups = a.heads,
                             .in_features = a.in_features,
                             .out_features = a.out_features,
                             .x = c.read(op.inputs[0]),
                             .x_stride = c.stride(op.inputs[0]),
                             .weights = weight.data,
                             .weights_stride = weight.group_stride,
                             .y = c.write(op.outputs[0]),
                             .y_stride = c.stride(op.outputs[0]),
                             .rows = c.num_rows(op.outputs[0]),
                             .x_group_stride = a.x_head,
                             .y_group_stride = a.y_head},
                            c.launch(op));
}

Status run_head_copy(CudaContext& c, const Op& op) {
  const auto& a = op.as<program::HeadCopy>();
  return kc::copy_parts({.type = c.type(),
                         .x = c.read(op.inputs[0]),
                         .x_stride = c.stride(op.inputs[0]),
                         .x_head = a.x_head,
                         .from_begin = a.x_begin,
                         .y = c.write(op.outputs[0]),
                         .y_stride = c.stride(op.outputs[0]),
                         .y_head = a.y_head,
                         .to_begin = a.y_begin,
                         .count = a.count,
                         .rows = c.num_rows(op.outputs[0]),
                         .heads = a.heads},
                        c.launch(op));
}

}  // namespace espalier
