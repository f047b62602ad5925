// The operations of a program on the CPU kernels: a table from kinds to functions.
#pragma once

#include "models/program/cpu_context.h"
#include "models/program/program.h"

namespace espalier::program {

// Runs one operation of the step that the context is in. REQUIRES: it computes at least one row.
using CpuOp = void (*)(CpuContext& context, const Op& op);

// Null: the CPU does not run this kind.
CpuOp cpu_op(OpKind kind);

// Rows of the embedding, as the table has them.
void embed_rows(kernels::CpuBackend& backend, const DecoderSpec& spec,
                const DecoderWeights& weights, std::span<const TokenId> ids, const CpuView& out);

// cpu_attention.cc
void run_rope(CpuContext& context, const Op& op);
void run_kv_append(CpuContext& context, const Op& op);
void run_attention(CpuContext& context, const Op& op);
void run_cross_attention(CpuContext& context, const Op& op);
void run_keep_rows(CpuContext& context, const Op& op);
void run_head_matmul(CpuContext& context, const Op& op);
void run_head_copy(CpuContext& context, const Op& op);

}  // namespace espalier::program
