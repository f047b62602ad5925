#include "models/program/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/activation/gelu.h"
#include "kernels/activation/op.h"
#include "kernels/embedding/op.h"
#include "kernels/linear/op.h"
#include "kernels/norm/op.h"
#include "kernels/router/op.h"

namespace espalier::program {
namespace {

// Calls run(data, count) for all elements of an operand at once where its rows are adjacent, else
// row by row.
template <typename Run>
void for_elements(const CpuView& view, int64_t rows, int64_t columns, const Run& run) {
  if (view.stride == columns) return run(int64_t{0}, rows * columns);
  for (int64_t row = 0; row < rows; ++row) run(row * view.stride, columns);
}

// Rows of tokens that another rank has: what was looked up for them is not theirs.
void clear_other_rows(CpuContext& context, const VocabularyPart& part, const CpuView& out) {
  const std::span<const TokenId> ids = context.token_ids();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= part.first && ids[i] < part.first + part.count) continue;
    std::fill_n(out.data + static_cast<int64_t>(i) * out.stride, context.spec().hidden_size, 0.0f);
  }
}

// Calls run(from, to) for each row of a picture in the batch: a part of it, and the token's row.
template <typename Run>
void for_span_rows(const CpuContext& context, int32_t part, const CpuView& out, const Run& run) {
  const int64_t hidden = context.spec().hidden_size;
  const int64_t width = context.spec().span_width();
  for (const EmbeddingSpan& span : context.batch().embedding_spans) {
    ESP_CHECK(span.rows->width == width && span.first_row + span.count <= span.rows->num_rows,
              "rows {} to {} of {}, {} wide", span.first_row, span.first_row + span.count,
              span.rows->num_rows, span.rows->width);
    const float* from = span.rows->values.data() + span.first_row * width + part * hidden;
    for (int32_t i = 0; i < span.count; ++i, from += width)
      run(from, out.data + (span.token_begin + i) * out.stride);
  }
}

// Rows of pictures take the places of those of their keys. Of several ranks the first one has them,
// for the ranks' rows are added.
void embed_spans(CpuContext& context, bool first_rank, const CpuView& out) {
  const int64_t width = context.spec().hidden_size;
  for_span_rows(context, 0, out, [&](const float* from, float* to) {
    first_rank ? std::copy_n(from, width, to) : std::fill_n(to, width, 0.0f);
  });
}

// All ranks have the same rows, so each adds all of the part.
void run_add_spans(CpuContext& context, const Op& op) {
  const int64_t width = op.outputs[0].columns;
  for_span_rows(
      context, op.as<SpanPart>().index, context.view(op.outputs[0]),
      [&](const float* from, float* to) { kernels::add(context.backend(), to, from, width); });
}

// Of the entries' rows, or of their wanted tails.
void run_add_control(CpuContext& context, const Op& op) {
  const int64_t width = op.outputs[0].columns;
  const int32_t layer = context.spec().stage.first_layer + op.layer;
  const CpuView rows = context.view(op.outputs[0]);
  for (const BatchEntry& entry : context.entries(context.rows_of(op.outputs[0]).count)) {
    const ControlUse use = context.adapters().control_of(entry.slot);
    if (!use.any() || layer < use.first_layer || layer > use.last_layer) continue;
    const float* const from = context.spec().control_vectors->row(use.index, layer).data();
    for (int32_t i = 0; i < entry.num_query_tokens; ++i) {
      float* const to = rows.data + (entry.query_begin + i) * rows.stride;
      for (int64_t k = 0; k < width; ++k) to[k] += use.scale * from[k];
    }
  }
}

void run_embed(CpuContext& context, const Op& op) {
  const DecoderSpec& spec = context.spec();
  const bool spans = !context.batch().embedding_spans.empty();
  const bool cross = !context.batch().cross_spans.empty();
  for (const TokenId id : context.token_ids()) {
    ESP_CHECK((id >= 0 && id < spec.vocab_size) || ((spans || cross) && id >= kFirstSpanKey),
              "token {} of a vocabulary of {}", id, spec.vocab_size);
  }
  const CpuView out = context.view(op.outputs[0]);
  const auto* part = std::get_if<VocabularyPart>(&op.attributes);
  const std::span<const TokenId> ids =
      cross             ? context.tokens().with_placeholder(spec.images->placeholder)
      : part != nullptr ? context.tokens().local(*part)
      : spans           ? context.tokens().local({.first = 0, .count = spec.vocab_size})
                        : context.token_ids();
  embed_rows(context.backend(), spec, context.weights(), ids, out);
  if (part != nullptr) clear_other_rows(context, *part, out);
  if (spans) embed_spans(context, part == nullptr || part->first == 0, out);
}

void run_embed_position(CpuContext& context, const Op& op) {
  const CpuView out = context.view(op.outputs[0]);
  kernels::gather_rows(context.backend(), {.table = context.weights().position_embedding.data(),
                                           .type = context.weights().type,
                                           .dim = context.spec().hidden_size,
                                           .ids = context.batch().positions,
                                           .out = out.data,
                                           .out_stride = out.stride});
}

void run_tile_position(CpuContext& context, const Op& op) {
  const CpuView out = context.view(op.outputs[0]);
  kernels::gather_rows(context.backend(),
                       {.table = context.weights().joint_tiles.tile_position.data(),
                        .type = context.weights().type,
                        .dim = context.spec().hidden_size,
                        .ids = context.given().tiles,
                        .out = out.data,
                        .out_stride = out.stride});
}

void run_fill(CpuContext& context, const Op& op) {
  const CpuView x = context.view(op.outputs[0]);
  for_elements(
      x, context.num_rows(op.outputs[0]), op.outputs[0].columns,
      [&](int64_t at, int64_t count) { std::fill_n(x.data + at, count, op.as<Fill>().value); });
}

void run_embed_type(CpuContext& context, const Op& op) {
  const CpuView out = context.view(op.outputs[0]);
  kernels::gather_rows(context.backend(), {.table = context.weights().type_embedding.data(),
                                           .type = context.weights().type,
                                           .dim = context.spec().hidden_size,
                                           .ids = context.given().types,
                                           .out = out.data,
                                           .out_stride = out.stride});
}

void run_grid_position(CpuContext& context, const Op& op) {
  const CpuView out = context.view(op.outputs[0]);
  kernels::mix_rows(context.backend(), {.table = context.weights().position_embedding.data(),
                                        .type = context.weights().type,
                                        .dim = context.spec().hidden_size,
                                        .rows = context.given().positions,
                                        .out = out.data,
                                        .out_stride = out.stride});
}

// Patches come picture after picture; entries are pictures.
void run_patches(CpuContext& context, const Op& op) {
  const CpuView out = context.view(op.outputs[0]);
  const auto columns = static_cast<size_t>(op.outputs[0].columns);
  const bool class_token = context.spec().patches->class_token;
  const float* from = context.given().patches.data();
  const float* const end = from + context.given().patches.size();
  for (const BatchEntry& entry : context.batch().entries) {
    for (int32_t i = 0; i < entry.num_query_tokens; ++i) {
      float* to = out.data + (entry.query_begin + i) * out.stride;
      if ((i == 0 && class_token) || from == end) {  // tiles behind the picture's own are black
        std::fill_n(to, columns, 0.0f);
      } else {
        std::memcpy(to, from, columns * sizeof(float));
        from += columns;
      }
    }
  }
}

void run_input(CpuContext& context, const Op& op) {
  const GivenRows& given = context.given();
  const CpuView out = context.view(op.outputs[0]);
  if (op.as<Input>().kind == Input::Kind::kStage) {
    const float* const from = given.stage.received;
    const int64_t columns = op.outputs[0].columns;
    for_elements(out, context.num_rows(op.outputs[0]), columns, [&](int64_t first, int64_t count) {
      std::copy_n(from + first / out.stride * columns, count, out.data + first);
    });
    return;
  }
  const auto bytes = static_cast<size_t>(op.outputs[0].columns) * sizeof(float);
  const bool states = op.as<Input>().kind == Input::Kind::kStates;
  const CpuView& from = states ? given.states : given.embeddings;
  const int64_t rows = context.num_rows(op.outputs[0]);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t source = states ? given.state_rows[static_cast<size_t>(row)] : row;
    std::memcpy(out.data + row * out.stride, from.data + source * from.stride, bytes);
  }
}

void run_output(CpuContext& context, const Op& op) {
  const CpuView x = context.view(op.inputs[0]);
  const int64_t columns = op.inputs[0].columns;
  float* const to = context.given().stage.handed_on;
  if (to == nullptr) return;  // another rank has the same rows
  for_elements(x, context.num_rows(op.inputs[0]), columns, [&](int64_t first, int64_t count) {
    std::copy_n(x.data + first, count, to + first / x.stride * columns);
  });
}

void run_class_embed(CpuContext& context, const Op& op) {
  const CpuView x = context.view(op.outputs[0]);
  const float* embedding = context.weights().vector(op.table);
  for (const BatchEntry& entry : context.batch().entries) {
    std::copy_n(embedding, op.outputs[0].columns, x.data + entry.query_begin * x.stride);
  }
}

void copy_rows(const CpuView& from, const CpuView& to, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to.data + row * to.stride, from.data + row * from.stride,
                static_cast<size_t>(columns) * sizeof(float));
  }
}

void run_scale(CpuContext& context, const Op& op) {
  const CpuView x = context.view(op.inputs[0]), y = context.view(op.outputs[0]);
  const int64_t rows = context.num_rows(op.outputs[0]), columns = op.outputs[0].columns;
  if (x.data != y.data) copy_rows(x, y, rows, columns);
  for_elements(y, rows, columns, [&](int64_t at, int64_t count) {
    kernels::scale(context.backend(), y.data + at, op.as<Scale>().factor, count);
  });
  if (op.as<Scale>().tokens) embed_spans(context, true, y);
}

void run_softcap(CpuContext& context, const Op& op) {
  const CpuView x = context.view(op.outputs[0]);
  for_elements(x, context.num_rows(op.outputs[0]), op.outputs[0].columns,
               [&](int64_t at, int64_t count) {
                 kernels::softcap(context.backend(), x.data + at, op.as<Softcap>().cap, count);
               });
}

void run_norm(CpuContext& context, const Op& op) {
  const auto& a = op.as<Norm>();
  const NormWeights& weights = context.weights().norm(a.weight);
  const CpuView x = context.view(op.inputs[0]), y = context.view(op.outputs[0]);
  const int64_t rows = context.num_rows(op.outputs[0]), dim = op.inputs[0].columns / a.groups;
  if (a.spec.kind == NormSpec::Kind::kGate) {
    if (x.data != y.data) copy_rows(x, y, rows, op.inputs[0].columns);
    return for_elements(y, rows, op.inputs[0].columns, [&](int64_t at, int64_t count) {
      kernels::scale(context.backend(), y.data + at, weights.weight[0], count);
    });
  }
  if (a.spec.kind == NormSpec::Kind::kScale) {
    return kernels::scale_columns(context.backend(), {.x = x.data,
                                                      .x_stride = x.stride,
                                                      .y = y.data,
                                                      .y_stride = y.stride,
                                                      .rows = rows,
                                                      .dim = dim,
                                                      .weight = weights.weight.data()});
  }
  if (a.spec.kind == NormSpec::Kind::kLayer) {
    return kernels::layer_norm(context.backend(), {.x = x.data,
                                                   .x_stride = x.stride,
                                                   .y = y.data,
                                                   .y_stride = y.stride,
                                                   .rows = rows,
                                                   .dim = dim,
                                                   .weight = weights.weight.data(),
                                                   .bias = weights.bias.data(),
                                                   .epsilon = a.spec.epsilon});
  }
  kernels::rms_norm(context.backend(), {.x = x.data,
                                        .x_stride = x.stride,
                                        .y = y.data,
                                        .y_stride = y.stride,
                                        .rows = rows,
                                        .groups = a.groups,
                                        .dim = dim,
                                        .weight = weights.weight.data(),
                                        .epsilon = a.spec.epsilon});
}

// The result lies in the residual where there is one.
void run_matmul(CpuContext& context, const Op& op) {
  const auto& a = op.as<Matmul>();
  const kernels::PackedMatrix& matrix = context.weights().matrix(a.weight);
  const CpuView x = context.view(op.inputs[0]), y = context.view(op.outputs[0]);
  const kernels::LinearArgs args = {.x = x.data,
                                    .x_stride = x.stride,
                                    .y = y.data,
                                    .y_stride = y.stride,
                                    .rows = context.num_rows(op.outputs[0]),
                                    .bias = context.weights().vector(a.bias),
                                    .accumulate = a.residual};
  if (InputObserver* const observer = context.given().stage.observer)
    observer->see({.weight = a.weight,
                   .x = x.data,
                   .stride = x.stride,
                   .rows = args.rows,
                   .columns = op.inputs[0].columns});
  if (a.activation) {
    kernels::linear_silu_mul(context.backend(), matrix, args);
  } else {
    kernels::linear(context.backend(), matrix, args);
  }
  if (!a.adapters) return;
  context.adapters().add(context.backend(), a.weight, context.rows_of(op.outputs[0]).count,
                         {.x = x.data, .x_stride = x.stride, .y = y.data, .y_stride = y.stride});
}

// Rows of the step that are wanted, or wanted rows that are outputs. Where all are, nothing moves.
void run_select_rows(CpuContext& context, const Op& op) {
  const RowCount count = context.rows_of(op.outputs[0]).count;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Operand &from = op.inputs[i], &to = op.outputs[i];
    if (count == RowCount::kWanted && context.num_rows(from) == context.num_rows(to)) {
      context.alias(to, from);
      continue;
    }
    const CpuView x = context.view(from), y = context.view(to);
    const auto copy = [&](int64_t source, int64_t row, int64_t rows) {
      copy_rows({x.data + source * x.stride, x.stride}, {y.data + row * y.stride, y.stride}, rows,
                to.columns);
    };
    if (count == RowCount::kWanted) {
      for (const auto& tail : context.wanted().tails()) copy(tail.source_row, tail.row, tail.count);
    } else {
      const auto* merge = std::get_if<MergeRows>(&op.attributes);
      const int64_t merged = merge != nullptr ? merge->count : 1;
      const auto rows = context.output_rows();
      for (size_t row = 0; row < rows.size(); ++row) {
        copy(merged * rows[row], static_cast<int64_t>(row), 1);
      }
    }
  }
}

void run_mean_parts(CpuContext& context, const Op& op) {
  const CpuView x = context.view(op.inputs[0]), y = context.view(op.outputs[0]);
  kernels::mean_parts(context.backend(), {.x = x.data,
                                          .x_stride = x.stride,
                                          .y = y.data,
                                          .y_stride = y.stride,
                                          .rows = context.num_rows(op.outputs[0]),
                                          .parts = op.inputs[0].columns / op.outputs[0].columns,
                                          .dim = op.outputs[0].columns});
}

void run_activation(CpuContext& context, const Op& op) {
  const auto& a = op.as<Activation>();
  const CpuView x = context.view(op.inputs[0]), y = context.view(op.outputs[0]);
  if (a.gelu) {
    return kernels::gelu(context.backend(), {.kind = *a.gelu,
                                             .x = x.data,
                                             .x_stride = x.stride,
                                             .up = a.gated ? x.data + a.dim : nullptr,
                                             .up_stride = x.stride,
                                             .y = y.data,
                                             .y_stride = y.stride,
                                             .rows = context.num_rows(op.outputs[0]),
                                             .dim = a.dim});
  }
  kernels::gated(context.backend(), {.activation = a.kind,
                                     .limit = a.limit,
                                     .gate = x.data,
                                     .gate_stride = x.stride,
                                     .up = a.gated ? x.data + a.dim : nullptr,
                                     .up_stride = x.stride,
                                     .y = y.data,
                                     .y_stride = y.stride,
                                     .rows = context.num_rows(op.outputs[0]),
                                     .dim = a.dim});
}

// Residuals and branches are whole buffers, whose rows are adjacent.
void run_residual_add(CpuContext& context, const Op& op) {
  const CpuView residual = context.view(op.outputs[0]), x = context.view(op.inputs[1]);
  kernels::add_scaled(context.backend(), residual.data, x.data, op.as<ResidualAdd>().scale,
                      context.num_rows(op.outputs[0]) * op.outputs[0].columns);
}

void run_gated_add(CpuContext& context, const Op& op) {
  const CpuView y = context.view(op.outputs[0]), x = context.view(op.inputs[1]);
  float* gate = context.view(op.inputs[2]).data;
  const int64_t rows = context.num_rows(op.outputs[0]);
  for (int64_t row = 0; row < rows; ++row) gate[row] = 1.0f / (1.0f + std::exp(-gate[row]));
  kernels::scatter_add(context.backend(), {.x = x.data,
                                           .rows = context.ropes().rows(rows),
                                           .weights = gate,
                                           .y = y.data,
                                           .y_stride = y.stride,
                                           .dim = op.outputs[0].columns});
}

// REQUIRES: the spec has whole attention, and there are several ranks.
const RankRows& rank_rows_of(const CpuContext& context) { return *context.given().stage.ranks; }

std::span<const int32_t> positions_of(CpuContext& context, RowCount count) {
  switch (count) {
    case RowCount::kTokens:
      return context.batch().positions;
    case RowCount::kRankTokens:
      return rank_rows_of(context).positions;
    case RowCount::kRankWanted:
      return rank_rows_of(context).wanted_positions;
    default:
      return context.experts().positions_of(context.wanted(), context.batch());
  }
}

void run_moe_route(CpuContext& context, const Op& op) {
  const auto& a = op.as<MoeRoute>();
  const CpuView x = context.view(op.inputs[0]);
  const int64_t rows = context.num_rows(op.outputs[0]);
  float* logits = context.experts().logits();
  kernels::linear(context.backend(), context.weights().matrix(a.weight),
                  {.x = x.data,
                   .x_stride = x.stride,
                   .y = logits,
                   .y_stride = a.router.num_experts,
                   .rows = rows,
                   .bias = context.weights().vector(a.bias)});
  kernels::route(a.router, {.logits = logits,
                            .rows = rows,
                            .correction = context.weights().vector(a.correction),
                            .experts = context.ints(op.outputs[0]),
                            .weights = context.view(op.outputs[1]).data});
  if (a.num_slots > 0) {
    kernels::choose_replicas(
        {.table = context.weights().layer(a.weight).experts.replicas.data(),
         .num_experts = a.router.num_experts,
         .positions = positions_of(context, context.rows_of(op.outputs[0]).count),
         .experts = context.ints(op.outputs[0]),
         .weights = context.view(op.outputs[1]).data,
         .top_k = a.router.top_k});
  }
  context.experts().count(
      op.layer, {context.ints(op.outputs[0]), static_cast<size_t>(rows * a.router.top_k)});
}

void run_moe_experts(CpuContext& context, const Op& op) {
  const auto& a = op.as<MoeExperts>();
  context.experts().run(context.backend(),
                        {.op = &a,
                         .weights = &context.weights().layer(a.gate_up.weight).experts,
                         .x = context.view(op.inputs[0]).data,
                         .experts = context.ints(op.inputs[1]),
                         .pair_weights = context.view(op.inputs[2]).data,
                         .y = context.view(op.outputs[0]).data,
                         .rows = context.num_rows(op.outputs[0]),
                         .observer = context.given().stage.observer});
}

// Branches and hidden states are whole buffers, whose rows are adjacent.
void run_all_reduce(CpuContext& context, const Op& op) {
  const CpuView x = context.view(op.outputs[0]);
  const int64_t count = context.num_rows(op.outputs[0]) * op.outputs[0].columns;
  ESP_CHECK(x.stride == op.outputs[0].columns);
  context.collective().all_reduce({x.data, static_cast<size_t>(count)});
}

void run_barrier(CpuContext& context, const Op&) { context.collective().barrier(); }

void run_all_gather(CpuContext& context, const Op& op) {
  const CpuView part = context.view(op.inputs[0]), out = context.view(op.outputs[0]);
  context.collective().all_gather({.part = part.data,
                                   .part_stride = part.stride,
                                   .rows = context.num_rows(op.outputs[0]),
                                   .columns = op.inputs[0].columns,
                                   .out = out.data,
                                   .out_stride = out.stride});
}

// Branches and normed states are whole buffers, whose rows are adjacent.
Collective::RankParts rank_parts(const CpuContext& context, const Operand& own,
                                 const Operand& all) {
  const CpuView rows = context.view(own), of_all = context.view(all);
  ESP_CHECK(rows.stride == own.columns && of_all.stride == all.columns);
  const bool wanted = context.rows_of(own).count == RowCount::kWanted;
  return {.own = rows.data,
          .all = of_all.data,
          .columns = own.columns,
          .counts = wanted ? rank_rows_of(context).num_wanted : rank_rows_of(context).num_tokens};
}

void run_gather_rows(CpuContext& context, const Op& op) {
  context.collective().gather_rows(rank_parts(context, op.inputs[0], op.outputs[0]));
}

void run_scatter_sums(CpuContext& context, const Op& op) {
  context.collective().scatter_sums(rank_parts(context, op.outputs[0], op.inputs[0]));
}

void run_relu(CpuContext& context, const Op& op) {
  const CpuView x = context.view(op.outputs[0]);
  const int64_t rows = context.num_rows(op.outputs[0]);
  for (int64_t row = 0; row < rows; ++row) {
    float* values = x.data + row * x.stride;
    std::transform(values, values + op.outputs[0].columns, values,
                   [](float value) { return std::max(value, 0.0f); });
  }
}

}  // namespace

// An embedding that shares its memory with the head, or is quantised, is a packed matrix.
void embed_rows(kernels::CpuBackend& backend, const DecoderSpec& spec,
                const DecoderWeights& weights, std::span<const TokenId> ids, const CpuView& out) {
  if (spec.tied_embeddings || weights.quantized_embedding.quantized()) {
    const kernels::PackedMatrix& table =
        spec.tied_embeddings ? weights.head : weights.quantized_embedding;
    return kernels::gather_packed_rows(backend, table, ids, out.data, out.stride);
  }
  kernels::gather_rows(backend, {.table = weights.embedding.data(),
                                 .type = weights.type,
                                 .dim = spec.hidden_size,
                                 .ids = ids,
                                 .out = out.data,
                                 .out_stride = out.stride});
}

namespace {

// What cross attention and encoders for it have besides.
CpuOp cross_op(OpKind kind) {
  switch (kind) {
    case OpKind::kTilePosition:
      return run_tile_position;
    case OpKind::kKeepRows:
      return run_keep_rows;
    case OpKind::kCrossAttention:
      return run_cross_attention;
    case OpKind::kFill:
      return run_fill;
    default:
      return nullptr;
  }
}

}  // namespace

CpuOp cpu_op(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbed:
      return run_embed;
    case OpKind::kEmbedPosition:
      return run_embed_position;
    case OpKind::kEmbedType:
      return run_embed_type;
    case OpKind::kGridPosition:
      return run_grid_position;
    case OpKind::kPatches:
      return run_patches;
    case OpKind::kInput:
      return run_input;
    case OpKind::kOutput:
      return run_output;
    case OpKind::kClassEmbed:
      return run_class_embed;
    case OpKind::kAddSpans:
      return run_add_spans;
    case OpKind::kAddControl:
      return run_add_control;
    case OpKind::kScale:
      return run_scale;
    case OpKind::kSoftcap:
      return run_softcap;
    case OpKind::kNorm:
      return run_norm;
    case OpKind::kMatmul:
      return run_matmul;
    case OpKind::kHeadMatmul:
      return run_head_matmul;
    case OpKind::kHeadCopy:
      return run_head_copy;
    case OpKind::kRope:
      return run_rope;
    case OpKind::kKvAppend:
      return run_kv_append;
    case OpKind::kAttention:
      return run_attention;
    case OpKind::kSelectRows:
      return run_select_rows;
    case OpKind::kMeanParts:
      return run_mean_parts;
    case OpKind::kActivation:
      return run_activation;
    case OpKind::kResidualAdd:
      return run_residual_add;
    case OpKind::kGatedAdd:
      return run_gated_add;
    case OpKind::kMoeRoute:
      return run_moe_route;
    case OpKind::kMoeExperts:
      return run_moe_experts;
    case OpKind::kRelu:
      return run_relu;
    case OpKind::kAllReduce:
      return run_all_reduce;
    case OpKind::kAllGather:
      return run_all_gather;
    case OpKind::kBarrier:
      return run_barrier;
    case OpKind::kGatherRows:
      return run_gather_rows;
    case OpKind::kScatterSums:
      return run_scatter_sums;
    default:
      return cross_op(kind);
  }
}

}  // namespace espalier::program
