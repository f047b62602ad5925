#include "kernels/lora/cuda.h"
#include "models/cuda/adapted_layers.h"
#include "models/cuda/ops.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;
using program::Op;
using program::RowCount;

// Of the operation's rows those that have an adapter. Without a list of wanted rows these are all
// rows.
const kc::LoraRows& adapter_rows(const CudaContext& c, const Op& op) {
  const CudaStep& step = c.step();
  const RowCount count = c.plan().program().buffer(op.outputs[0]).rows.count;
  const bool wanted = count == RowCount::kWanted && step.rows != nullptr;
  return wanted ? step.adapters.wanted : step.adapters.tokens;
}

// A matrix whose tensors have no names of their own takes no factors.
using LoraKernel = Status (*)(const kc::LoraArgs&, const kc::LaunchOptions&);
Status run_lora(CudaContext& c, const Op& op, LoraKernel kernel) {
  const CudaScratch& scratch = c.scratch();
  const kc::LoraRows& rows = adapter_rows(c, op);
  if (rows.max_tiles == 0) return Status();
  const kc::LoraMatrix* matrix = scratch.adapted->find(op.as<program::Matmul>().weight);
  if (matrix == nullptr) return Status();
  return kernel({.type = c.type(),
                 .matrix = *matrix,
                 .rows = rows,
                 .x = c.read(op.inputs[0]),
                 .x_stride = c.stride(op.inputs[0]),
                 .y = c.write(op.outputs[0]),
                 .y_stride = c.stride(op.outputs[0]),
                 .rank_max = scratch.adapted->rank_max(),
                 .workspace = reinterpret_cast<float*>(scratch.lora_workspace.data()),
                 .workspace_bytes = std::ssize(scratch.lora_workspace)},
                c.launch(op));
}

}  // namespace

Status shrink_adapters(CudaContext& c, const Op& op) { return run_lora(c, op, kc::lora_shrink); }
Status expand_adapters(CudaContext& c, const Op& op) { return run_lora(c, op, kc::lora_expand); }

}  // namespace espalier
