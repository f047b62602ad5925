// begin_chains: one thread a token or a chain. extend_chains: one block a chain, which finds the
// largest of its logits.
// Roof: memory, chains x draft_vocab_size x 4 bytes; at few chains a launch's time.
#include <cfloat>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/draft/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kBeginThreads = 128, kExtendThreads = 1024;

__device__ int accepted_tokens(const BeginChainsArgs& args, const ChainStart& start) {
  int accepted = 0;
  while (accepted + 1 < start.num_rows &&
         args.step_ids[start.token + 1 + accepted] == args.sampled[start.row + accepted]) {
    ++accepted;
  }
  return accepted;
}

__device__ void begin_chain(const BeginChainsArgs& args, int chain, int count) {
  const ChainArrays& chains = args.chains;
  chains.counts[chain] = 0;
  chains.query_begin[chain + 1] = min(chain + 1, count);
  if (chain == 0) chains.query_begin[0] = 0;
  if (chain >= count) {
    args.wanted[chain] = 0;
    chains.ids[chain] = 0;
    chains.prefix_len[chain] = chains.page_begin[chain] = 0;
    return;
  }
  const ChainStart start = chains.starts[chain];
  const int accepted = accepted_tokens(args, start);
  args.wanted[chain] = start.token + accepted;
  chains.prefix_len[chain] = min(start.position + accepted + 1, start.position_max);
  chains.page_begin[chain] = start.page_begin;
}

__global__ void begin_chains_kernel(BeginChainsArgs args) {
  release_next();
  wait_for_previous();
  const int at = static_cast<int>(blockIdx.x * kBeginThreads + threadIdx.x);
  if (at < args.tokens) {
    const int id = args.next_ids[at];
    args.ids[at] = id >= 0 ? id : args.sampled[-1 - id];
  }
  if (at < args.chains.max_chains) begin_chain(args, at, *args.chains.num_chains);
}

struct Best {
  float value;
  int column;
};
__device__ Best better(const Best& a, const Best& b) {
  const bool first = a.value > b.value || (a.value == b.value && a.column < b.column);
  return first ? a : b;
}
__device__ Best best_of_warp(Best best) {
  for (int offset = 16; offset > 0; offset /= 2)
    best = better(best, {__shfl_xor_sync(~0u, best.value, offset),
                         __shfl_xor_sync(~0u, best.column, offset)});
  return best;
}

__global__ void __launch_bounds__(kExtendThreads) extend_chains_kernel(ExtendChainsArgs args) {
  release_next();
  wait_for_previous();
  const ChainArrays& chains = args.chains;
  const int chain = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  if (chain >= *chains.num_chains) return;
  const float* logits = args.logits + chain * args.logits_stride;
  Best best{-FLT_MAX, 0};
  for (int i = thread; i < args.draft_vocab_size; i += kExtendThreads)
    best = better(best, {logits[i] >= -FLT_MAX ? logits[i] : -FLT_MAX, i});
  __shared__ Best of_warps[kExtendThreads / 32];
  best = best_of_warp(best);
  if (thread % 32 == 0) of_warps[thread / 32] = best;
  __syncthreads();
  if (thread >= 32) return;
  best = best_of_warp(of_warps[thread]);
  if (thread > 0) return;
  const ChainStart start = chains.starts[chain];
  const int count = chains.counts[chain];
  const int id = args.draft_ids[best.column];
  chains.ids[chain] = id;
  if (count >= start.length || count >= chains.chain_max) return;
  chains.drafted[chain * chains.chain_max + count] = id;
  chains.counts[chain] = count + 1;
  // The first token's entry is begin_chains()'.
  if (count > 0 && chains.prefix_len[chain] < start.position_max) ++chains.prefix_len[chain];
}

}  // namespace

Status begin_chains(const BeginChainsArgs& args, const LaunchOptions& launch) {
  if (args.tokens < 0 || args.chains.max_chains < 0)
    return invalid_argument("begin_chains: {} tokens and {} chains", args.tokens,
                            args.chains.max_chains);
  const int most = args.tokens > args.chains.max_chains ? args.tokens : args.chains.max_chains;
  if (most == 0) return {};
  const auto blocks = static_cast<unsigned>((most + kBeginThreads - 1) / kBeginThreads);
  return launch_kernel("begin_chains", begin_chains_kernel, dim3(blocks), dim3(kBeginThreads), 0,
                       launch, args);
}

Status extend_chains(const ExtendChainsArgs& args, const LaunchOptions& launch) {
  if (args.chains.max_chains < 0 || args.chains.chain_max < 1 || args.draft_vocab_size < 1 ||
      args.logits_stride < args.draft_vocab_size)
    return invalid_argument("extend_chains: {} chains of {}, rows of {} logits, {} apart",
                            args.chains.max_chains, args.chains.chain_max, args.draft_vocab_size,
                            args.logits_stride);
  if (args.chains.max_chains == 0) return {};
  return launch_kernel("extend_chains", extend_chains_kernel,
                       dim3(static_cast<unsigned>(args.chains.max_chains)), dim3(kExtendThreads), 0,
                       launch, args);
}

}  // namespace espalier::kernels::cuda
