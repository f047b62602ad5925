// Operations that encoders of pictures alone have. Pictures, or their tiles, are the step's
// sequences.
#include "kernels/activation/cuda.h"
#include "kernels/attention/bidirectional.h"
#include "kernels/embedding/cuda.h"
#include "kernels/moe/cuda.h"
#include "kernels/norm/cuda.h"
#include "kernels/rope/cuda.h"
#include "models/cuda/ops.h"

namespace espalier {

namespace kc = kernels::cuda;
using program::Op;
using program::Operand;

Status run_patches(CudaContext& c, const Op& op) {
  const PatchesSpec& patches = *c.spec().patches;
  // Patches of any number of pictures are rows one behind the other where none has a class row.
  const bool any_size = patches.num_patches == 0;
  return kc::place_patches(
      {.type = c.type(),
       .patches = c.scratch().patches,
       .pictures = any_size ? 1 : c.step().pictures.count,
       .patches_each = any_size ? c.num_rows(op.outputs[0]) : patches.num_patches,
       .features = patches.features(),
       .class_row = patches.class_token,
       .out = c.write(op.outputs[0]),
       .columns = op.outputs[0].columns},
      c.launch(op));
}

// One vector for the first row of each picture.
Status run_class_embed(CudaContext& c, const Op& op) {
  const Operand& x = op.outputs[0];
  return kc::copy_parts({.type = c.type(),
                         .x = c.weights().data(op.table),
                         .x_stride = 0,
                         .x_head = x.columns,
                         .y = c.write(x),
                         .y_stride = c.spec().patches->num_rows() * c.stride(x),
                         .y_head = x.columns,
                         .count = x.columns,
                         .rows = c.step().pictures.count,
                         .heads = 1},
                        c.launch(op));
}

// Positions lie in the order of the patches, whatever their pictures.
Status run_grid_position(CudaContext& c, const Op& op) {
  const Operand& out = op.outputs[0];
  return kc::mix_rows({.type = c.type(),
                       .x = c.weights().data(op.table),
                       .rows = c.step().grid_positions,
                       .count = c.num_rows(out),
                       .dim = out.columns,
                       .out = c.write(out)},
                      c.launch(op));
}

Status run_bidirectional(CudaContext& c, const Op& op) {
  const auto& a = op.as<program::Attention>();
  const Operand &q = op.inputs[0], &out = op.outputs[0];
  const StepSequences& sequences = a.windowed ? c.step().windows : c.step().pictures;
  const bool equal = sequences.begins == nullptr;
  return kc::bidirectional_attention(
      {.type = c.type(),
       .num_heads = a.num_heads,
       .head_dim = a.head_dim,
       .sequences = sequences.count,
       .rows = equal ? c.num_rows(q) / sequences.count : sequences.rows_max,
       .begins = sequences.begins,
       .q = c.read(q),
       .k = c.read(op.inputs[1]),
       .v = c.read(op.inputs[2]),
       .stride = c.stride(q),
       .out = c.write(out),
       .out_stride = c.stride(out),
       .scale = a.scale,
       .reach = a.reach},
      c.launch(op));
}

// Of decoders the rotation is a part of kQkRopeAppend.
Status run_rope(CudaContext& c, const Op& op) {
  const auto& a = op.as<program::Rope>();
  const RopeSpec& rope = c.spec().ropes[static_cast<size_t>(a.rope)];
  const Operand& x = op.outputs[0];
  // All pairs of one without sections turn by the first component.
  const int32_t pairs = rope.rotary_dim / 2;
  const bool one = rope.sections.empty();
  const int32_t first = one ? pairs : rope.sections[0];
  return kc::placed_rope({.type = c.type(),
                          .x = c.write(x),
                          .x_stride = c.stride(x),
                          .rows = c.num_rows(x),
                          .heads = a.heads,
                          .head_dim = a.head_dim,
                          .rotary_dim = rope.rotary_dim,
                          .places = c.step().places,
                          .section_ends = {first, one ? pairs : first + rope.sections[1]},
                          .frequencies = c.scratch().ropes[static_cast<size_t>(a.rope)]},
                         c.launch(op));
}

// Rows side by side, which are one row of so many times the width and begin at any row.
Status run_merge_rows(CudaContext& c, const Op& op) {
  const int32_t count = op.as<program::MergeRows>().count;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Operand &from = op.inputs[i], &to = op.outputs[i];
    ESP_RETURN_IF_ERROR(kc::gather_rows({.type = c.type(),
                                         .table = c.read(from),
                                         .num_rows = c.num_rows(from) - count + 1,
                                         .table_stride = c.stride(from),
                                         .dim = to.columns,
                                         .ids = c.step().rows + c.buffers().first_output(),
                                         .out = c.write(to),
                                         .out_stride = c.stride(to),
                                         .tokens = c.num_rows(to)},
                                        c.launch(op)));
  }
  return Status();
}

Status run_mean_parts(CudaContext& c, const Op& op) {
  const Operand &x = op.inputs[0], &y = op.outputs[0];
  return kc::mean_parts({.type = c.type(),
                         .x = c.read(x),
                         .x_stride = c.stride(x),
                         .y = c.write(y),
                         .y_stride = c.stride(y),
                         .rows = c.num_rows(y),
                         .parts = x.columns / y.columns,
                         .dim = y.columns},
                        c.launch(op));
}

}  // namespace espalier
