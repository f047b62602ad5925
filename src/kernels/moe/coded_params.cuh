// What the kernels of experts in codes of 4 bits share (coded_experts.cu, coded_experts_decode.cu):
// their parameters, the copy of records, and what becomes of sums. Device code, and the parameters'
// construction on the host.
#pragma once

#include "kernels/activation/activation.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/moe/cuda.h"
#include "kernels/moe/expert_items.cuh"

namespace espalier::kernels::cuda {

// An item's rows of W are two records' of 64, which lie beside each other.
inline constexpr int kItemHalves = 2;

struct CodedParams {
  const char* x;
  int64_t x_stride_bytes;
  const char* weights;
  int64_t weights_stride;
  const int32_t* begins;  // [groups + 1]
  const int32_t* pairs;
  int32_t pairs_per_row;
  const bf16* bias;  // [groups, out_features], or none
  bf16* y;
  int64_t y_stride;
  int32_t groups, in_bytes, out_features;  // in_bytes: of a row of x
  int32_t columns;                         // of y
  int32_t row_records;                     // of a matrix
  int32_t chunks;                          // items of a tile of rows
  int32_t steps;                           // records from a row's first input to its last
  Activation activation;
  float limit;
  bool row_invariant;

  // The records that an item has beside each other.
  __device__ int halves(const ExpertItem& item) const {
    return min(kItemHalves, row_records - item.chunk * kItemHalves);
  }
  // An item's first records; those of the next inputs lie behind.
  __device__ const char* records(const ExpertItem& item, int record_bytes) const {
    return weights + item.group * weights_stride +
           int64_t{item.chunk} * steps * kItemHalves * record_bytes;
  }
};

template <typename CODES>
CodedParams coded_params(const GroupedArgs& args) {
  const bool gated = args.activation.has_value();
  const auto shape = CODES::shape(args.out_features, args.in_features, gated);
  return {.x = static_cast<const char*>(args.x),
          .x_stride_bytes = args.x_stride * 2,
          .weights = static_cast<const char*>(args.weights),
          .weights_stride = args.weights_stride,
          .begins = args.plan->begins,
          .pairs = args.plan->pairs,
          .pairs_per_row = args.pairs_per_row,
          .bias = static_cast<const bf16*>(args.bias),
          .y = static_cast<bf16*>(args.y),
          .y_stride = args.y_stride,
          .groups = args.num_groups,
          .in_bytes = args.in_features * 2,
          .out_features = args.out_features,
          .columns = gated ? args.out_features / 2 : args.out_features,
          .row_records = shape.row_records(),
          .chunks = (shape.row_records() + kItemHalves - 1) / kItemHalves,
          .steps = shape.input_records(),
          .activation = args.activation.value_or(Activation::kSilu),
          .limit = args.limit,
          .row_invariant = args.row_invariant};
}

// Copies records that are read once, so L2 evicts them first, or several times.
template <bool ONCE>
__device__ __forceinline__ void copy_records(void* to, const char* from, uint32_t bytes,
                                             Barrier& full) {
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;
  if constexpr (ONCE)
    ESP_HOPPER_ASM(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(barrier_address(full)), "l"(kEvictFirst)
        : "memory");
  else
    bulk_copy(to, from, bytes, full);
}

// Writes the sums of a warp's 16 rows of W, the warp-th of an item. A lane has rows lane / 4 and
// lane / 4 + 8, of every eight rows of x the two from lane % 4 * 2 on. GATED: its rows are of gate
// and of up. whole: what the sums are multiplied by.
template <bool GATED>
class CodedWriter {
 public:
  __device__ CodedWriter(const CodedParams& p, const ExpertItem& item, int warp, float whole)
      : p_(p), item_(item), whole_(whole) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    upper_ = item.chunk * kExpertItemRows / (GATED ? 2 : 1) + warp * (GATED ? 8 : 16) + lane / 4;
    lower_ = upper_ + (GATED ? p.columns : 8);
  }

  template <int SUMS>
  __device__ void write(const float (&sums)[SUMS]) const {
    const float upper_bias = bias(upper_), lower_bias = bias(lower_);
    const int row0 = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < SUMS / 2; ++i) {  // of every eight rows two, each with two rows of W
      const int row = i / 2 * 8 + row0 + i % 2;
      if (row >= item_.rows) continue;
      const float high = sums[i / 2 * 4 + i % 2] * whole_ + upper_bias;
      const float low = sums[i / 2 * 4 + 2 + i % 2] * whole_ + lower_bias;
      bf16* y = p_.y + int64_t{item_.first + row} * p_.y_stride;
      if constexpr (GATED) {
        if (upper_ < p_.columns)
          y[upper_] = from_float<bf16>(activated(p_.activation, high, low, p_.limit));
      } else {
        if (upper_ < p_.columns) y[upper_] = from_float<bf16>(high);
        if (lower_ < p_.columns) y[lower_] = from_float<bf16>(low);
      }
    }
  }

 private:
  __device__ float bias(int row) const {
    if (row >= p_.out_features || p_.bias == nullptr) return 0;
    return to_float(p_.bias[int64_t{item_.group} * p_.out_features + row]);
  }

  const CodedParams& p_;
  const ExpertItem& item_;
  const float whole_;
  int upper_, lower_;  // the lane's rows of W
};

}  // namespace espalier::kernels::cuda
