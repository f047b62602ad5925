// Operations between the projections of queries, keys and values and that of attention's result.
#include <algorithm>
#include <cstring>

#include "kernels/attention/op.h"
#include "kernels/kv_append/op.h"
#include "kernels/linear/op.h"
#include "kernels/rope/op.h"
#include "models/program/cpu_ops.h"

namespace espalier::program {
namespace {

// Layers with a sliding window may have pages of their own.
std::span<const PageId> page_tables(const ForwardBatch& batch, int32_t sliding_window) {
  const bool own = sliding_window > 0 && !batch.window_page_tables.empty();
  return own ? batch.window_page_tables : batch.page_tables;
}

// Rows of tokens that see no picture.
void clear_blind(CpuContext& context, const Operand& operand) {
  const CpuView x = context.view(operand);
  context.tokens().cross().for_blind(context.batch(), [&](int32_t first, int32_t count) {
    for (int64_t row = first; row < first + count; ++row)
      std::fill_n(x.data + row * x.stride, operand.columns, 0.0f);
  });
}

}  // namespace

void run_rope(CpuContext& context, const Op& op) {
  const auto& a = op.as<Rope>();
  const CpuRope rope = context.ropes().of(a.rope);
  const CpuView x = context.view(op.outputs[0]);
  kernels::rope(context.backend(),
                {.x = x.data + a.begin,
                 .x_stride = x.stride,
                 .heads = a.heads,
                 .head_dim = a.head_dim,
                 .positions = context.ropes().rows(context.num_rows(op.outputs[0])),
                 .cos = rope.cos,
                 .sin = rope.sin,
                 .rotary_dim = rope.spec->rotary_dim,
                 .interleaved = rope.spec->pairing == RopeSpec::Pairing::kInterleaved});
}

void run_kv_append(CpuContext& context, const Op& op) {
  const CpuView k = context.view(op.inputs[0]);
  const CpuView v = op.inputs.size() > 1 ? context.view(op.inputs[1]) : CpuView{};
  kernels::kv_append(context.backend(),
                     {.k = k.data,
                      .k_stride = k.stride,
                      .v = v.data,
                      .v_stride = v.stride,
                      .entries = context.batch().entries,
                      .page_tables = page_tables(context.batch(), op.as<KvAppend>().sliding_window),
                      .kv = &context.kv(),
                      .layer = context.tokens().kv_layer(op.layer)});
}

void run_cross_attention(CpuContext& context, const Op& op) {
  const auto& a = op.as<CrossAttention>();
  const CpuView q = context.view(op.inputs[0]), out = context.view(op.outputs[0]);
  clear_blind(context, op.outputs[0]);
  CrossRows& rows = context.tokens().cross();
  if (!rows.any()) return;
  kernels::attention(context.backend(), {.q = q.data,
                                         .q_stride = q.stride,
                                         .out = out.data,
                                         .out_stride = out.stride,
                                         .heads = a.num_heads,
                                         .entries = rows.entries(),
                                         .page_offsets = rows.page_offsets(),
                                         .kv = &rows.layer(a.index, a.num_kv_heads, a.head_dim),
                                         .layer = 0,
                                         .scale = a.scale});
}

// An encoder's padding lies behind all other rows.
void run_keep_rows(CpuContext& context, const Op& op) {
  if (!context.spec().patches) return clear_blind(context, op.outputs[0]);
  const CpuView x = context.view(op.outputs[0]);
  for (int64_t row = context.given().num_kept; row < context.num_rows(op.outputs[0]); ++row)
    std::fill_n(x.data + row * x.stride, op.outputs[0].columns, 0.0f);
}

void run_attention(CpuContext& context, const Op& op) {
  const auto& a = op.as<Attention>();
  const CpuView q = context.view(op.inputs[0]), out = context.view(op.outputs[0]);
  const RowCount count = context.rows_of(op.outputs[0]).count;
  std::span<const BatchEntry> entries;
  std::span<const int32_t> windows;
  if (a.pictures && !context.batch().embedding_spans.empty()) {
    const PictureRows& rows = context.picture_rows(count, a.sliding_window);
    entries = rows.entries();
    windows = rows.windows();
  } else if (a.causal) {
    entries = context.entries(count);
  } else {
    const CpuContext::SeeingRows rows = context.each_row(count, a.windowed, a.reach);
    entries = rows.entries;
    windows = rows.windows;
  }
  kernels::attention(context.backend(),
                     {.q = q.data,
                      .q_stride = q.stride,
                      .out = out.data,
                      .out_stride = out.stride,
                      .heads = a.num_heads,
                      .entries = entries,
                      .page_tables = page_tables(context.batch(), a.sliding_window),
                      .kv = &context.kv(),
                      .layer = context.tokens().kv_layer(op.layer),
                      .scale = a.scale,
                      .sliding_window = a.sliding_window,
                      .windows = windows,
                      .softcap = a.softcap,
                      .sinks = context.weights().vector(a.sinks)});
}

void run_head_matmul(CpuContext& context, const Op& op) {
  const auto& a = op.as<HeadMatmul>();
  const CpuView x = context.view(op.inputs[0]), y = context.view(op.outputs[0]);
  const auto matrices = context.weights().head_matrices(a.weight);
  for (int64_t head = 0; head < a.heads; ++head) {
    kernels::linear(context.backend(), matrices[static_cast<size_t>(head)],
                    {.x = x.data + head * a.x_head,
                     .x_stride = x.stride,
                     .y = y.data + head * a.y_head,
                     .y_stride = y.stride,
                     .rows = context.num_rows(op.outputs[0])});
  }
}

void run_head_copy(CpuContext& context, const Op& op) {
  const auto& a = op.as<HeadCopy>();
  const CpuView x = context.view(op.inputs[0]), y = context.view(op.outputs[0]);
  const int64_t rows = context.num_rows(op.outputs[0]);
  const size_t bytes = static_cast<size_t>(a.count) * sizeof(float);
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x.data + row * x.stride + a.x_begin;
    float* to = y.data + row * y.stride + a.y_begin;
    for (int64_t head = 0; head < a.heads; ++head) {
      std::memcpy(to + head * a.y_head, from + head * a.x_head, bytes);
    }
  }
}

}  // namespace espalier::program
