// The operations of a program on the GPU's kernels: each fills the arguments of its kernels from
// operands and attributes, and launches them. cuda_op() (plan.h) is the table.
//
// Called from the one thread that enqueues. Nothing allocates or waits.
#pragma once

#include "kernels/linear/cuda.h"
#include "models/cuda/context.h"
#include "models/program/program.h"
#include "seams/kv_view.h"

namespace espalier {

// One layer's keys and values in their pages.
kernels::cuda::KvPlanes planes_of(const KvView& kv, size_t layer);

// A GEMM without operands, for the sizes of its workspace and for tuning. args.rows: `rows`.
kernels::cuda::LinearArgs matmul_shape(const CudaWeights& weights, const program::Matmul& matmul,
                                       int32_t rows);
// The same of a kLatentPrefill, from latents to the keys and values of its first `heads` heads.
kernels::cuda::LinearArgs expansion_shape(const CudaWeights& weights, const program::Op& op,
                                          int32_t rows, int32_t heads);
// Rows of `dim` elements of the weights' type, and where they are normalised to.
struct NormRows {
  const void* x = nullptr;
  int64_t x_stride = 0;
  void* y = nullptr;
  int64_t y_stride = 0;
  int32_t rows = 0;
  int32_t dim = 0;
};
Status normalize_rows(const CudaWeights& weights, const program::Norm& norm, const NormRows& rows,
                      const kernels::cuda::LaunchOptions& launch);
// Whether the operation is a GEMM of kernels/linear; scores of one output have a kernel of their
// own.
bool is_gemm(const program::Op& op);

// ops_attention.cc
Status run_qk_rope_append(CudaContext& context, const program::Op& op);
Status run_attention(CudaContext& context, const program::Op& op);
Status run_head_matmul(CudaContext& context, const program::Op& op);
Status run_head_copy(CudaContext& context, const program::Op& op);

// ops_latent.cc
Status run_latent_prefill(CudaContext& context, const program::Op& op);

// ops_encoder.cc
Status run_patches(CudaContext& context, const program::Op& op);
Status run_class_embed(CudaContext& context, const program::Op& op);
// Learned positions of the places of a picture's patches.
Status run_grid_position(CudaContext& context, const program::Op& op);
// By the places of a picture's rows.
Status run_rope(CudaContext& context, const program::Op& op);
// The step's rows, each several of the input's.
Status run_merge_rows(CudaContext& context, const program::Op& op);
Status run_mean_parts(CudaContext& context, const program::Op& op);
// Attention in which each row sees all rows of its picture, or of its window.
Status run_bidirectional(CudaContext& context, const program::Op& op);

// ops_moe.cc
Status run_moe_route(CudaContext& context, const program::Op& op);
Status run_moe_matmul(CudaContext& context, const program::Op& op);
Status run_moe_combine(CudaContext& context, const program::Op& op);
Status run_gated_add(CudaContext& context, const program::Op& op);

// ops_ranks.cc
// Names the buffers of sums and gathers, where the layout has them, for the other ranks.
void name_collective_buffers(const CudaContext& context);
// Of operations between ranks; null: of none of these.
CudaOp cuda_rank_op(program::OpKind kind);

// ops_lora.cc
// Around the GEMM of a matrix that adapters add to: REQUIRES a plan with adapters. Nothing in a
// step without adapters.
Status shrink_adapters(CudaContext& context, const program::Op& op);
Status expand_adapters(CudaContext& context, const program::Op& op);

// megakernel.cc
Status run_megakernel(CudaContext& context, const program::Op& op);

}  // namespace espalier
