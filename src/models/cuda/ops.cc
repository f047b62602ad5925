#include "models/cuda/ops.h"

#include "kernels/activation/cuda.h"
#include "kernels/control/cuda.h"
#include "kernels/embedding/cuda.h"
#include "kernels/moe/cuda.h"
#include "kernels/norm/cuda.h"
#include "kernels/router/cuda.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;
using program::Op;
using program::Operand;
using program::OpKind;
using program::RowCount;

constexpr int32_t kWidestFusedNorm = 16384;  // of kernels/linear/cuda.h, inputs

DType type_of(const CudaContext& c, const Operand& operand) {
  return c.plan().program().buffer(operand).type == program::ElementType::kFloat32 ? DType::kFloat32
                                                                                   : c.type();
}

// Behind the rows of the tokens.
Status place_spans(CudaContext& c, const Op& op) {
  const Operand& out = op.outputs[0];
  const int64_t pitch = c.stride(out) * static_cast<int64_t>(dtype_size(c.type()));
  for (const StepSpan& span : c.step().spans) {
    ESP_RETURN_IF_ERROR(
        kc::place_rows({.type = c.type(),
                        .rows = span.rows,
                        .rows_stride = c.spec().span_width(),
                        .count = span.count,
                        .dim = out.columns,
                        .out = static_cast<std::byte*>(c.write(out)) + span.token_begin * pitch,
                        .out_stride = c.stride(out)},
                       c.launch(op)));
  }
  return Status();
}

// The kernel reads each row once, from where it lies: most often the host's memory, which a copy in
// front of it would read as fast. All ranks have the same rows, so each adds all of the part.
Status run_add_spans(CudaContext& c, const Op& op) {
  const Operand& out = op.outputs[0];
  const auto size = static_cast<int64_t>(dtype_size(c.type()));
  const int64_t first = int64_t{op.as<program::SpanPart>().index} * out.columns;
  for (const StepSpan& span : c.step().spans) {
    ESP_RETURN_IF_ERROR(kc::add_scaled(
        {.type = c.type(),
         .x = static_cast<const std::byte*>(span.rows) + first * size,
         .x_stride = c.spec().span_width(),
         .y = static_cast<std::byte*>(c.write(out)) + span.token_begin * c.stride(out) * size,
         .y_stride = c.stride(out),
         .rows = span.count,
         .dim = out.columns},
        c.launch(op)));
  }
  return Status();
}

// Behind attention of the last layer rows are wanted ones alone.
Status run_add_control(CudaContext& c, const Op& op) {
  const CudaStep& step = c.step();
  if (step.slot_controls == nullptr) return Status();
  const Operand& x = op.outputs[0];
  const bool wanted =
      c.plan().program().buffer(x).rows.count == program::RowCount::kWanted && step.rows != nullptr;
  return kc::add_control({.type = c.type(),
                          .x = c.write(x),
                          .x_stride = c.stride(x),
                          .rows = c.num_rows(x),
                          .dim = x.columns,
                          .layer = c.spec().stage.first_layer + op.layer,
                          .tokens = wanted ? step.rows : nullptr,
                          .token_slots = step.token_slots,
                          .slots = step.slot_controls,
                          .vectors = c.scratch().control_vectors,
                          .num_layers = c.spec().control_vectors->num_layers()},
                         c.launch(op));
}

// Starts when all that was enqueued before it has ended, so what starts after it, with PDL or not,
// finds the plans of attention and the cached keys there: AttentionArgs::prefetch_cached_kv.
//
// The keys of pictures' positions are in no vocabulary, so their rows are zeros at first. Of
// several ranks the first one has the pictures' rows, for the ranks' rows are added.
Status run_embed(CudaContext& c, const Op& op) {
  const CudaStep& step = c.step();
  program::VocabularyPart part{.count = c.spec().vocab_size};
  if (const auto* own = std::get_if<program::VocabularyPart>(&op.attributes)) part = *own;
  ESP_RETURN_IF_ERROR(kc::gather_rows({.type = c.type(),
                                       .table = c.weights().data(op.table),
                                       .num_rows = part.count,
                                       .first_id = part.first,
                                       .dim = op.outputs[0].columns,
                                       .ids = step.ids,
                                       .token_slots = step.token_slots,
                                       .slot_tokens = step.slot_tokens,
                                       .out = c.write(op.outputs[0]),
                                       .out_stride = c.stride(op.outputs[0]),
                                       .tokens = c.num_rows(op.outputs[0])},
                                      c.launch(op)));
  return part.first == 0 ? place_spans(c, op) : Status();
}

// Rows that a draft head is given: states where they lie, for which the buffer stands from here on,
// and embeddings from the target's table. As run_embed()'s, the gather waits for all work before
// it, so keys that earlier passes wrote may be prefetched behind it. Those of a stage before are in
// the buffer already (CudaDecoder::stage_rows()).
Status run_input(CudaContext& c, const Op& op) {
  const Operand& out = op.outputs[0];
  switch (op.as<program::Input>().kind) {
    case program::Input::Kind::kStage:
      return Status();
    case program::Input::Kind::kStates:
      c.buffers().alias(out, c.step().states);
      return Status();
    case program::Input::Kind::kEmbeddings:
      break;
  }
  return kc::gather_rows({.type = c.type(),
                          .table = c.scratch().embedding,
                          .num_rows = c.spec().draft->target_vocab_size,
                          .dim = out.columns,
                          .ids = c.step().ids,
                          .out = c.write(out),
                          .out_stride = c.stride(out),
                          .tokens = c.num_rows(out)},
                         {.stream = c.launch(op).stream});
}

// The next stage's rows stay where they are (CudaDecoder::stage_rows()).
Status run_output(CudaContext&, const Op&) { return Status(); }

Status run_embed_position(CudaContext& c, const Op& op) {
  return kc::gather_rows({.type = c.type(),
                          .table = c.weights().data(op.table),
                          .num_rows = c.spec().learned_positions,
                          .dim = op.outputs[0].columns,
                          .ids = c.scratch().positions,
                          .out = c.write(op.outputs[0]),
                          .out_stride = c.stride(op.outputs[0]),
                          .tokens = c.num_rows(op.outputs[0])},
                         c.launch(op));
}

Status run_embed_type(CudaContext& c, const Op& op) {
  return kc::gather_rows({.type = c.type(),
                          .table = c.weights().data(op.table),
                          .num_rows = c.spec().texts->token_types,
                          .dim = op.outputs[0].columns,
                          .ids = c.step().types,
                          .out = c.write(op.outputs[0]),
                          .out_stride = c.stride(op.outputs[0]),
                          .tokens = c.num_rows(op.outputs[0])},
                         c.launch(op));
}

// The kernel works in place; a result of its own is a copy first.
Status run_scale(CudaContext& c, const Op& op) {
  const Operand &x = op.inputs[0], &y = op.outputs[0];
  const int32_t rows = c.num_rows(y);
  if (x != y) {
    ESP_RETURN_IF_ERROR(kc::copy_parts({.type = type_of(c, y),
                                        .x = c.read(x),
                                        .x_stride = c.stride(x),
                                        .x_head = x.columns,
                                        .y = c.write(y),
                                        .y_stride = c.stride(y),
                                        .y_head = y.columns,
                                        .count = y.columns,
                                        .rows = rows,
                                        .heads = 1},
                                       c.launch(op)));
    if (op.as<program::Scale>().factor == 1.0f) return Status();
  }
  ESP_RETURN_IF_ERROR(kc::scale({.type = type_of(c, y),
                                 .x = c.write(y),
                                 .x_stride = c.stride(y),
                                 .rows = rows,
                                 .dim = y.columns,
                                 .scale = op.as<program::Scale>().factor},
                                c.launch(op)));
  return op.as<program::Scale>().tokens ? place_spans(c, op) : Status();
}

Status run_softcap(CudaContext& c, const Op& op) {
  const Operand& x = op.outputs[0];
  return kc::scale({.type = type_of(c, x),
                    .x = c.write(x),
                    .x_stride = c.stride(x),
                    .rows = c.num_rows(x),
                    .dim = x.columns,
                    .softcap = op.as<program::Softcap>().cap},
                   c.launch(op));
}

// y = norm(x), rows of x.columns.
Status normalize(CudaContext& c, const Op& op, const program::Norm& norm, const Operand& x,
                 const Operand& y) {
  return normalize_rows(c.weights(), norm,
                        {.x = c.read(x),
                         .x_stride = c.stride(x),
                         .y = c.write(y),
                         .y_stride = c.stride(y),
                         .rows = c.num_rows(y),
                         .dim = x.columns},
                        c.launch(op));
}

Status run_norm(CudaContext& c, const Op& op) {
  return normalize(c, op, op.as<program::Norm>(), op.inputs[0], op.outputs[0]);
}

// Fewer outputs than a GEMM takes, in float32: the router's kernel.
Status run_score(CudaContext& c, const Op& op) {
  const auto& matmul = op.as<program::Matmul>();
  return kc::score({.type = c.type(),
                    .x = c.read(op.inputs[0]),
                    .x_stride = c.stride(op.inputs[0]),
                    .weights = c.weights().floats(matmul.weight),
                    .bias = c.weights().floats(matmul.bias),
                    .y = static_cast<float*>(c.write(op.outputs[0])),
                    .rows = c.num_rows(op.outputs[0]),
                    .dim = matmul.in_features,
                    .outputs = matmul.out_features},
                   c.launch(op));
}

// Few rows are normalised on their way into the GEMM, as are rows that are rounded to e4m3; others
// are first, to the second output.
Status run_gemm(CudaContext& c, const Op& op) {
  const auto& matmul = op.as<program::Matmul>();
  kc::LinearArgs args = matmul_shape(c.weights(), matmul, c.num_rows(op.outputs[0]));
  args.out_type = type_of(c, op.outputs[0]);
  args.y = c.write(op.outputs[0]);
  args.y_stride = c.stride(op.outputs[0]);
  args.bias = c.weights().data(matmul.bias);
  if (matmul.residual) args.residual = c.read(op.inputs[1]);
  args.x = c.read(op.inputs[0]);
  args.x_stride = c.stride(op.inputs[0]);
  if (!matmul.norm) return c.linear(args, op);
  const bool rms = matmul.norm->spec.kind == NormSpec::Kind::kRms;
  // With the rounding of the rows, or with the new order of their inputs.
  const bool rounded = (args.weight_scales != nullptr || args.x_columns != nullptr) && rms;
  if (rounded || (args.rows <= kc::kSmallRows && args.in_features <= kWidestFusedNorm)) {
    args.norm_weight = c.weights().data(matmul.norm->weight);
    args.norm_epsilon = matmul.norm->spec.epsilon;
    return c.linear(args, op);
  }
  ESP_RETURN_IF_ERROR(normalize(c, op, *matmul.norm, op.inputs[0], op.outputs[1]));
  args.x = c.write(op.outputs[1]);
  args.x_stride = c.stride(op.outputs[1]);
  return c.linear(args, op);
}

// Adapters read the GEMM's input before it and add to its result behind it.
Status run_matmul(CudaContext& c, const Op& op) {
  if (!is_gemm(op)) return run_score(c, op);
  if (!op.as<program::Matmul>().adapters) return run_gemm(c, op);
  ESP_RETURN_IF_ERROR(shrink_adapters(c, op));
  ESP_RETURN_IF_ERROR(run_gemm(c, op));
  return expand_adapters(c, op);
}

// Wanted rows are gathered by the step's list, or are all rows where they lie. Outputs are a run of
// the wanted rows, which stay as they are because the section may run again.
Status run_select_rows(CudaContext& c, const Op& op) {
  if (std::holds_alternative<program::MergeRows>(op.attributes)) return run_merge_rows(c, op);
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Operand &from = op.inputs[i], &to = op.outputs[i];
    if (c.plan().program().buffer(to).rows.count == RowCount::kOutputs) {
      const int64_t size = static_cast<int64_t>(dtype_size(c.type()));
      c.buffers().alias_reads(to, static_cast<const std::byte*>(c.read(from)) +
                                      c.buffers().first_output() * c.stride(from) * size);
    } else if (c.step().rows == nullptr) {
      c.buffers().alias(to, c.read(from));
    } else {
      ESP_RETURN_IF_ERROR(kc::gather_rows({.type = c.type(),
                                           .table = c.read(from),
                                           .num_rows = c.num_rows(from),
                                           .dim = from.columns,
                                           .ids = c.step().rows,
                                           .out = c.write(to),
                                           .out_stride = c.stride(to),
                                           .tokens = c.num_rows(to)},
                                          c.launch(op)));
    }
  }
  return Status();
}

Status run_activation(CudaContext& c, const Op& op) {
  const auto& activation = op.as<program::Activation>();
  const Operand& gate = op.inputs[0];
  const Operand up{gate.buffer, gate.column + activation.dim, activation.dim};
  if (activation.gelu) {
    return kc::gelu({.type = c.type(),
                     .kind = *activation.gelu,
                     .x = c.read(gate),
                     .x_stride = c.stride(gate),
                     .up = activation.gated ? c.read(up) : nullptr,
                     .up_stride = c.stride(gate),
                     .y = c.write(op.outputs[0]),
                     .y_stride = c.stride(op.outputs[0]),
                     .rows = c.num_rows(op.outputs[0]),
                     .dim = activation.dim},
                    c.launch(op));
  }
  return kc::gated({.type = c.type(),
                    .gate = c.read(gate),
                    .gate_stride = c.stride(gate),
                    .up = activation.gated ? c.read(up) : nullptr,
                    .up_stride = c.stride(gate),
                    .y = c.write(op.outputs[0]),
                    .y_stride = c.stride(op.outputs[0]),
                    .rows = c.num_rows(op.outputs[0]),
                    .dim = activation.dim,
                    .activation = activation.kind,
                    .limit = activation.limit},
                   c.launch(op));
}

Status run_residual_add(CudaContext& c, const Op& op) {
  const Operand &x = op.inputs[1], &y = op.outputs[0];
  return kc::add_scaled({.type = c.type(),
                         .x = c.read(x),
                         .x_stride = c.stride(x),
                         .y = c.write(y),
                         .y_stride = c.stride(y),
                         .rows = c.num_rows(y),
                         .dim = y.columns,
                         .scale = op.as<program::ResidualAdd>().scale},
                        c.launch(op));
}

}  // namespace

kc::KvPlanes planes_of(const KvView& kv, size_t layer) {
  const KvView::Layer& from = kv.layers[layer];
  return {.type = from.type,
          .k = from.k,
          .v = from.v,
          .page_size = kv.page_size,
          .num_kv_heads = from.num_kv_heads,
          .head_dim = from.head_dim,
          .page_stride = from.page_stride,
          .token_stride = from.token_stride,
          .head_stride = from.head_stride};
}

Status normalize_rows(const CudaWeights& weights, const program::Norm& norm, const NormRows& rows,
                      const kc::LaunchOptions& launch) {
  const void* weight = weights.data(norm.weight);
  if (norm.spec.kind == NormSpec::Kind::kScale) {
    return kc::scale_columns({.type = weights.type(),
                              .x = rows.x,
                              .x_stride = rows.x_stride,
                              .weight = weight,
                              .y = rows.y,
                              .y_stride = rows.y_stride,
                              .rows = rows.rows,
                              .dim = rows.dim},
                             launch);
  }
  if (norm.spec.kind == NormSpec::Kind::kLayer) {
    const auto size = static_cast<int64_t>(dtype_size(weights.type()));
    return kc::layer_norm({.type = weights.type(),
                           .x = rows.x,
                           .x_stride = rows.x_stride,
                           .weight = weight,
                           .bias = static_cast<const std::byte*>(weight) + rows.dim * size,
                           .y = rows.y,
                           .y_stride = rows.y_stride,
                           .rows = rows.rows,
                           .dim = rows.dim,
                           .epsilon = norm.spec.epsilon},
                          launch);
  }
  const bool one_centred = norm.spec.kind == NormSpec::Kind::kRmsOneCentred;
  return kc::rms_norm({.type = weights.type(),
                       .x = rows.x,
                       .x_stride = rows.x_stride,
                       .weight = weight,
                       .weight_offset = one_centred ? 1.0f : 0.0f,
                       .y = rows.y,
                       .y_stride = rows.y_stride,
                       .rows = rows.rows,
                       .dim = rows.dim,
                       .epsilon = norm.spec.epsilon},
                      launch);
}

bool is_gemm(const Op& op) {
  return op.kind == OpKind::kMatmul && op.as<program::Matmul>().out_features > 1;
}

kc::LinearArgs matmul_shape(const CudaWeights& weights, const program::Matmul& matmul,
                            int32_t rows) {
  const CudaWeight& weight = weights.at(matmul.weight);
  const bool silu_mul = matmul.activation.has_value();
  const int32_t outputs = silu_mul ? weight.out_features / 2 : weight.out_features;
  return {.type = weight.format.type,
          .out_type = weight.format.type,
          .rows = rows,
          .in_features = weight.in_features,
          .out_features = outputs,
          .x_stride = weight.in_features,
          .weights = weight.data,
          .weight_scales = weight.scales,
          .block_scales = weight.format.codes.block_scales,
          .int4 = weight.format.codes.int4,
          .y_stride = outputs,
          .silu_mul = silu_mul,
          .x_columns = weight.columns};
}

CudaOp cuda_op(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbed:
      return run_embed;
    case OpKind::kEmbedPosition:
      return run_embed_position;
    case OpKind::kEmbedType:
      return run_embed_type;
    case OpKind::kGridPosition:
      return run_grid_position;
    case OpKind::kAddSpans:
      return run_add_spans;
    case OpKind::kAddControl:
      return run_add_control;
    case OpKind::kInput:
      return run_input;
    case OpKind::kOutput:
      return run_output;
    case OpKind::kPatches:
      return run_patches;
    case OpKind::kClassEmbed:
      return run_class_embed;
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
    case OpKind::kQkRopeAppend:
      return run_qk_rope_append;
    case OpKind::kAttention:
      return run_attention;
    case OpKind::kLatentPrefill:
      return run_latent_prefill;
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
    case OpKind::kMoeMatmul:
      return run_moe_matmul;
    case OpKind::kMoeCombine:
      return run_moe_combine;
    case OpKind::kMoeBlock:
      return run_moe_block;
    case OpKind::kMegakernel:
      return run_megakernel;
    default:
      return cuda_rank_op(kind);
  }
}

}  // namespace espalier
