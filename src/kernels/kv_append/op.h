// Writes the keys and values of a step's new tokens into their pages, on the CPU. Each call runs in
// parallel on the back end's pool; arguments are borrowed for the call.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/backend.h"
#include "seams/forward_batch.h"
#include "seams/kv_view.h"

namespace espalier::kernels {

struct KvAppendArgs {
  // [tokens, kv_heads, head_dim] float32, heads adjacent, tokens stride elements apart, in the
  // order of the batch. Keys are already rotated.
  const float* k = nullptr;
  int64_t k_stride = 0;
  const float* v = nullptr;  // null: there is a K plane alone (latent attention)
  int64_t v_stride = 0;

  std::span<const BatchEntry> entries;
  std::span<const PageId> page_tables;  // the batch's; BatchEntry::page_begin indexes it
  const KvView* kv = nullptr;
  int32_t layer = 0;
};

// Writes token i of an entry to position prefix_len + i, rounded to the planes' type (bfloat16:
// nearest, ties to even). REQUIRES: every entry's pages cover prefix_len + num_query_tokens.
void kv_append(CpuBackend& backend, const KvAppendArgs& args);

}  // namespace espalier::kernels
