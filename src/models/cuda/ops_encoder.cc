// Operations that encoders of pictures alone have; entries are pictures of one size.
#include "kernels/activation/cuda.h"
#include "kernels/attention/bidirectional.h"
#include "kernels/embedding/cuda.h"
#include "models/cuda/ops.h"

namespace espalier {

namespace kc = kernels::cuda;
using program::Op;
using program::Operand;

Status run_patches(CudaContext& c, const Op& op) {
  const PatchesSpec& patches = *c.spec().patches;
  return kc::place_patches({.type = c.type(),
                            .patches = c.scratch().patches,
                            .pictures = c.step().entries.num_entries,
                            .patches_each = patches.num_patches,
                            .features = patches.features(),
                            .class_row = patches.class_token,
                            .out = c.write(op.outputs[0]),
                            .columns = op.outputs[0].columns},
                           c.launch(op));
}

// One vector for the first row of each picture.
Status run_class_embed(CudaContext& c, const Op& op) {
  const Operand& x = op.outputs[0];
  return kc::add_scaled({.type = c.type(),
                         .x = c.weights().data(op.table),
                         .x_stride = 0,
                         .y = c.write(x),
                         .y_stride = c.spec().patches->num_rows() * c.stride(x),
                         .rows = c.step().entries.num_entries,
                         .dim = x.columns},
                        c.launch(op));
}

Status run_bidirectional(CudaContext& c, const Op& op) {
  const auto& a = op.as<program::Attention>();
  const Operand &q = op.inputs[0], &out = op.outputs[0];
  const int32_t pictures = c.step().entries.num_entries;
  return kc::bidirectional_attention({.type = c.type(),
                                      .num_heads = a.num_heads,
                                      .head_dim = a.head_dim,
                                      .sequences = pictures,
                                      .rows = c.num_rows(q) / pictures,
                                      .q = c.read(q),
                                      .k = c.read(op.inputs[1]),
                                      .v = c.read(op.inputs[2]),
                                      .stride = c.stride(q),
                                      .out = c.write(out),
                                      .out_stride = c.stride(out),
                                      .scale = a.scale},
                                     c.launch(op));
}

}  // namespace espalier
