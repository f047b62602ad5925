// token_rows: kv row, position and entry of each token of a step, from the entries' arrays.
// One thread a token; it finds its entry by bisection. Tens of thousands of tokens cost a launch's
// time.
#include "kernels/attention/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kTokenRowThreads = 256;

// The entry whose tokens include `token`: the last whose first token is not behind it. Entries
// without tokens at the end begin where the last token ends, so they are never found.
__device__ int entry_of(const EntryArrays& entries, int token) {
  int low = 0, high = entries.num_entries;  // query_begin[low] <= token < query_begin[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (entries.query_begin[middle] <= token ? low : high) = middle;
  }
  return low;
}

__global__ void __launch_bounds__(kTokenRowThreads) token_rows_kernel(TokenRowsArgs args) {
  release_next();
  wait_for_previous();
  const int token = static_cast<int>(blockIdx.x * kTokenRowThreads + threadIdx.x);
  if (token >= args.entries.num_tokens) return;
  const EntryArrays& entries = args.entries;
  int entry = -1, position = 0, row = -1;
  if (token < entries.query_begin[entries.num_entries]) {
    entry = entry_of(entries, token);
    position = entries.prefix_len[entry] + token - entries.query_begin[entry];
    row = entries.page_tables[entries.page_begin[entry] + position / args.page_size] *
              args.page_size +
          position % args.page_size;
  }
  if (args.kv_rows != nullptr) args.kv_rows[token] = row;
  if (args.positions != nullptr) args.positions[token] = position;
  if (args.token_entries != nullptr) args.token_entries[token] = entry;
}

}  // namespace

Status token_rows(const TokenRowsArgs& args, const LaunchOptions& launch) {
  if (args.entries.num_entries < 0 || args.entries.num_tokens < 0 || args.page_size < 1)
    return invalid_argument("token_rows: {} entries, {} tokens, pages of {}",
                            args.entries.num_entries, args.entries.num_tokens, args.page_size);
  if (args.entries.num_tokens == 0) return {};
  const auto blocks =
      static_cast<unsigned>((args.entries.num_tokens + kTokenRowThreads - 1) / kTokenRowThreads);
  return launch_kernel("token_rows", token_rows_kernel, dim3(blocks), kTokenRowThreads, 0, launch,
                       args);
}

}  // namespace espalier::kernels::cuda
