// Routing on the GPU: router logits of every expert, and the top-k experts of each row.
// Thread-safe; pointers are borrowed device memory; requirements of streams as
// kernels/cuda/stream.h.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/router/op.h"

namespace espalier::kernels::cuda {

struct ScoreArgs {
  DType type = DType::kBFloat16;  // of x: kBFloat16 or kFloat32
  const void* x = nullptr;        // [rows, dim], rows x_stride apart; 16-byte aligned rows
  int64_t x_stride = 0;
  const float* weights = nullptr;  // [outputs, dim]
  const float* bias = nullptr;     // [outputs], or none
  float* y = nullptr;              // [rows, outputs]
  int32_t rows = 0;                // 0 does nothing
  int32_t dim = 0;                 // a multiple of 8
  int32_t outputs = 0;
};
// y = x weights^T + bias in float32, since a rounded score would select other experts.
Status score(const ScoreArgs& args, const LaunchOptions& launch);

// Where a kernel counts the pairs of each expert that is here. Device memory.
struct PairCounter {
  unsigned long long* pairs = nullptr;  // [experts that are here], added to; null: not counted
  const int32_t* num_rows = nullptr;    // rows behind these are padding
};

// The slots that hold experts, where busy ones lie in several (router/op.h). Device memory.
struct Replicas {
  const int32_t* table = nullptr;  // [num_experts + 1] begins, then slots; null: experts are slots
  int32_t num_experts = 0, num_slots = 0;
  const int32_t* positions = nullptr;  // of tokens
  const int32_t* rows = nullptr;       // the token of each row; null: row i is of token i
};

// Computes what kernels::route does (router/op.h), rows in parallel.
struct RouteArgs {
  RouterSpec spec;
  const float* logits = nullptr;  // [rows, num_experts]
  int32_t rows = 0;
  const float* correction = nullptr;  // [num_experts], where the spec has it
  int32_t* experts = nullptr;         // [rows, top_k], ascending in a row
  float* weights = nullptr;           // [rows, top_k], beside them
};
Status route(const RouteArgs& args, const LaunchOptions& launch);
// What route() refuses.
Status check_route(const RouteArgs& args);

}  // namespace espalier::kernels::cuda
