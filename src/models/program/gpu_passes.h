// The chains of passes of the GPU's interpreter. They need no GPU, so they are tested, and printed
// by `espalier inspect --program`, everywhere.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "models/program/program.h"

namespace espalier::program {

// What a GPU runs of a lowered program: SiLU, residuals and RMS norms in GEMMs or in sums over
// ranks, norms of heads with rope and the append in one kernel, the combination of experts with
// what is added to it, unwanted rows dropped behind attention, and the launch policy.
// adapters: GEMMs of layers take adapters where the kernels have their sizes; what is in front of
// and behind these GEMMs then is computed by itself.
// all_rows: unwanted rows are dropped behind the last layer, for their hidden states are returned.
Program gpu_passes(Program program, bool adapters = false, bool all_rows = false);

// The same of an encoder of pictures, whose attention reads keys and values from the rows of the
// step: nothing goes to pages. Rows of patches are as wide as GEMMs read them
// (kGemmColumns).
Program encoder_passes(Program program);
inline constexpr int32_t kGemmColumns = 8;  // inputs of a GEMM are a multiple of it

// An operation that computes what the operations [first, last) of a program compute, where its
// kernel supports the step and the device. Both ways have the same inputs and results; intermediate
// buffers are the same too, and are the operation's outputs behind its first.
struct Alternative {
  size_t first = 0, last = 0;
  Op op;
};

// All alternatives of a program; none begins where another one does:
// - MoE blocks for the kernels for small batches: norm, router, gated experts, a shared expert that
//   is like them, and the residual. Layer norms, and shared experts with biases or other
//   activations, are left out.
// - The experts' first GEMM with their gated activation (kMoeMatmul with an activation).
// - Latent attention, from the queries in the latent space to each head's values, for the long
//   entries of a step (kLatentPrefill). The rotation and the append among these operations are run
//   as they are, and all of them where the step has short entries too.
std::vector<Alternative> find_alternatives(const Program& program);

// The program of a step of one token: one persistent kernel for the embedding and all layers, then
// the output section. Nothing where the layers have not all one plain shape: dense, gated SiLU, two
// RMS norms of one epsilon, no latents, sinks, scaled residuals or norms behind blocks.
std::optional<Program> fuse_megakernel(const Program& lowered);

// Launch policy: all kernels but the first may start while the one in front of them ends.
Program allow_dependent_launch(Program program);

}  // namespace espalier::program
