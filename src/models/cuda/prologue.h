// What a step needs before its first operation: where each token's key and value go, positions, and
// a plan of attention for each shape of attention in the program.
//
// Not thread-safe: one thread enqueues. Borrows its memory from the arena of lay_out().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/stream.h"
#include "models/cuda/expanded_latents.h"
#include "models/cuda/scratch.h"
#include "models/cuda/step.h"
#include "models/program/program.h"
#include "tensor/cuda/memory.h"

namespace espalier {

struct AttentionLimits {
  int32_t max_tokens = 0;
  int32_t max_entries = 0;
  int32_t page_size = 1;
  int32_t deterministic_context = 0;  // tokens of an entry; 0: results may depend on the step
  int32_t context_length = 0;         // tokens of an entry, at most
  KvType kv_type = KvType::kBFloat16;
};

class CudaPrologue {
 public:
  // alternatives: of the program.
  CudaPrologue(const program::Program& program, std::span<const program::Alternative> alternatives,
               DType type);

  // The shape of a layer's attention.
  kernels::cuda::AttentionShape shape_of(size_t layer, const AttentionLimits& limits) const;
  size_t num_layers() const { return layers_.size(); }
  bool all_layers_have_windows() const;

  // Whether latent attention computes the keys and values of this step's long entries.
  bool expands(const CudaStep& step) const { return expanded_.takes(step); }

  // From an arena without a block this measures.
  void lay_out(cuda::Arena& arena, int32_t max_tokens);
  Status lay_out_attention(cuda::Arena& arena, const AttentionLimits& limits);
  // States what operations read. REQUIRES: both layouts.
  void describe(CudaScratch& out) const;

  Status run(const CudaStep& step, int32_t page_size,
             const kernels::cuda::LaunchOptions& launch) const;

 private:
  const DType type_;
  std::vector<program::Attention> layers_;
  bool has_windows_ = false;
  int32_t *positions_ = nullptr, *kv_rows_ = nullptr;
  int32_t* window_kv_rows_ = nullptr;  // null: no layer has a window
  std::vector<CudaAttentionGroup> groups_;
  std::vector<size_t> group_of_layer_;
  CudaExpandedLatents expanded_;
};

}  // namespace espalier
