// Per-token facts of a step from its lanes' arrays. A block of one step finds a token's lane by
// bisection; some tens of thousands of tokens cost a launch's time.
#include "kernels/attention/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// The lane whose tokens include `token`: the last whose first token is not behind it. Lanes without
// tokens at the end begin where the last token ends, so they are never found.
__device__ int lane_of(const LaneArrays& lanes, int token) {
  int low = 0, high = lanes.num_lanes;  // query_begin[low] <= token < query_begin[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (lanes.query_begin[middle] <= token ? low : high) = middle;
  }
  return low;
}

__global__ void __launch_bounds__(kThreads) token_rows_kernel(TokenRowsArgs args) {
  release_next();
  wait_for_previous();
  const int token = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (token >= args.lanes.num_tokens) return;
  const LaneArrays& lanes = args.lanes;
  int lane = -1, position = 0, row = -1;
  if (token < lanes.query_begin[lanes.num_lanes]) {
    lane = lane_of(lanes, token);
    position = lanes.prefix_len[lane] + token - lanes.query_begin[lane];
    row = lanes.page_tables[lanes.page_begin[lane] + position / args.page_size] * args.page_size +
          position % args.page_size;
  }
  if (args.kv_rows != nullptr) args.kv_rows[token] = row;
  if (args.positions != nullptr) args.positions[token] = position;
  if (args.token_lanes != nullptr) args.token_lanes[token] = lane;
}

}  // namespace

Status token_rows(const TokenRowsArgs& args, const LaunchOptions& launch) {
  if (args.lanes.num_lanes < 0 || args.lanes.num_tokens < 0 || args.page_size < 1)
    return invalid_argument("token_rows: {} lanes, {} tokens, pages of {}", args.lanes.num_lanes,
                            args.lanes.num_tokens, args.page_size);
  if (args.lanes.num_tokens == 0) return {};
  const auto blocks = static_cast<unsigned>((args.lanes.num_tokens + kThreads - 1) / kThreads);
  return launch_kernel("token_rows", token_rows_kernel, dim3(blocks), kThreads, 0, launch, args);
}

}  // namespace espalier::kernels::cuda
