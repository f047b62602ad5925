// Parts of rows from all ranks, and the tokens that rank 0 has sampled.
// Parts: each rank reads every rank's part where it lies, between two meetings of each block with
// the same block of the peers. Tokens: one block; a word of eight bytes holds a token and the
// number of the call, by which a peer sees that it has come. Roof: the link, (ranks - 1) x bytes of
// a part into each rank that wants the result.
#include <algorithm>

#include "kernels/collective/kernels.h"
#include "kernels/collective/peers.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kGatherThreads = 512;

// Word: the largest type that divides rows and strides, whose numbers here are of words.
template <typename Word>
__global__ void __launch_bounds__(kGatherThreads)
    gather_parts_kernel(const __grid_constant__ PeerView peers,
                        const __grid_constant__ PeerBuffers parts, int rows, int columns,
                        int64_t part_stride, Word* out, int64_t out_stride) {
  release_next();
  wait_for_previous();
  meet_peers(peers, Meeting::kBefore);
  if (out != nullptr) {
    const int64_t all = int64_t{rows} * columns;
    for (int r = 0; r < peers.num_ranks; ++r) {
      const auto* from = static_cast<const Word*>(parts.of[r]);
      Word* to = out + int64_t{r} * columns;
      for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all;
           i += int64_t{gridDim.x} * blockDim.x) {
        const int64_t row = i / columns, column = i - row * columns;
        to[row * out_stride + column] = from[row * part_stride + column];
      }
    }
  }
  meet_peers(peers, Meeting::kAfter);
}

// A mailbox is written again by the next call, which rank 0 makes behind a collective of the step
// in between, in which all ranks take part behind their reads.
__global__ void __launch_bounds__(kGatherThreads)
    share_tokens_kernel(const __grid_constant__ PeerView peers, ShareTokensArgs args) {
  wait_for_previous();
  const uint32_t epoch = peers.counters->tokens_epoch + 1;
  for (int row = static_cast<int>(threadIdx.x); row < args.rows; row += kGatherThreads) {
    const int slot = args.row_slots[row];
    if (slot < 0) continue;
    if (peers.rank == 0) {
      const auto token = static_cast<uint32_t>(args.slot_tokens[slot]);
      for (int r = 1; r < peers.num_ranks; ++r)
        store_relaxed(peers.mailbox[r] + row, uint64_t{epoch} << 32 | token);
      continue;
    }
    uint64_t word = 0;
    wait_for_peer(peers, 0, [&] {
      word = load_relaxed(peers.mailbox[peers.rank] + row);
      return word >> 32 == epoch;
    });
    args.slot_tokens[slot] = static_cast<int32_t>(static_cast<uint32_t>(word));
  }
  __syncthreads();
  if (threadIdx.x == 0) peers.counters->tokens_epoch = epoch;
}

template <typename Word>
__global__ void __launch_bounds__(kGatherThreads) copy_rows_kernel(RowCopies c) {
  release_next();
  wait_for_previous();
  const int64_t part = int64_t{c.rows} * c.columns, all = part * c.parts;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t p = i / part, row = i % part / c.columns, column = i % c.columns;
    static_cast<Word*>(c.to)[row * c.to_stride + p * c.columns + column] =
        static_cast<const Word*>(c.from)[p * c.from_part + row * c.from_stride + column];
  }
}

// PACKS: tokens of slots into a row of tokens; else the other way.
template <bool PACKS>
__global__ void __launch_bounds__(kGatherThreads)
    move_tokens_kernel(ShareTokensArgs args, int32_t* tokens) {
  wait_for_previous();
  for (int row = static_cast<int>(threadIdx.x); row < args.rows; row += kGatherThreads) {
    const int slot = args.row_slots[row];
    if (PACKS)
      tokens[row] = slot < 0 ? 0 : args.slot_tokens[slot];
    else if (slot >= 0)
      args.slot_tokens[slot] = tokens[row];
  }
}

template <typename Word>
Status launch_copy(RowCopies c, const LaunchOptions& launch) {
  const int64_t elements = static_cast<int64_t>(sizeof(Word) / dtype_size(c.type));
  c.columns /= static_cast<int32_t>(elements);
  for (int64_t* stride : {&c.from_stride, &c.from_part, &c.to_stride}) *stride /= elements;
  const int64_t all = int64_t{c.rows} * c.columns * c.parts;
  const auto blocks = std::min<int64_t>(all / kGatherThreads + 1, 1024);
  return launch_kernel("copy_rows", copy_rows_kernel<Word>, dim3(static_cast<unsigned>(blocks)),
                       kGatherThreads, 0, launch, c);
}

template <typename Word>
Status launch_gather(const PeerView& peers, const PeerBuffers& parts, const AllGatherArgs& args,
                     int64_t element_bytes, const LaunchOptions& launch) {
  const auto words = [&](int64_t elements) {
    return elements * element_bytes / static_cast<int64_t>(sizeof(Word));
  };
  const int64_t all = args.rows * words(args.columns);
  const auto blocks = std::min<int64_t>(all / kGatherThreads + 1, kBarrierBlocksMax);
  return launch_kernel("all_gather", gather_parts_kernel<Word>, dim3(static_cast<unsigned>(blocks)),
                       kGatherThreads, 0, launch, peers, parts, args.rows,
                       static_cast<int>(words(args.columns)), words(args.part_stride),
                       static_cast<Word*>(args.out), words(args.out_stride));
}

}  // namespace

// Ranks take the same word, for their blocks meet: it depends on sizes alone, which the alignment
// of buffers has to allow.
Status gather_parts(const PeerView& peers, const PeerBuffers& parts, const AllGatherArgs& args,
                    const LaunchOptions& launch) {
  const auto size = static_cast<int64_t>(dtype_size(args.type));
  const auto divides = [&](int64_t bytes) {
    return args.columns * size % bytes == 0 && args.part_stride * size % bytes == 0 &&
           args.out_stride * size % bytes == 0;
  };
  if (divides(16)) return launch_gather<uint4>(peers, parts, args, size, launch);
  if (divides(4)) return launch_gather<uint32_t>(peers, parts, args, size, launch);
  return launch_gather<uint16_t>(peers, parts, args, size, launch);
}

Status share_slot_tokens(const PeerView& peers, const ShareTokensArgs& args,
                         const LaunchOptions& launch) {
  return launch_kernel("share_tokens", share_tokens_kernel, dim3(1), kGatherThreads, 0, launch,
                       peers, args);
}

Status copy_rows(const RowCopies& c, const LaunchOptions& launch) {
  const auto size = static_cast<int64_t>(dtype_size(c.type));
  const auto fits = [&](int64_t bytes) {
    return c.columns * size % bytes == 0 && c.from_stride * size % bytes == 0 &&
           c.from_part * size % bytes == 0 && c.to_stride * size % bytes == 0;
  };
  if (fits(16)) return launch_copy<uint4>(c, launch);
  if (fits(4)) return launch_copy<uint32_t>(c, launch);
  return launch_copy<uint16_t>(c, launch);
}

Status pack_slot_tokens(const ShareTokensArgs& args, int32_t* tokens, const LaunchOptions& launch) {
  return launch_kernel("share_tokens", move_tokens_kernel<true>, dim3(1), kGatherThreads, 0, launch,
                       args, tokens);
}
Status unpack_slot_tokens(const ShareTokensArgs& args, int32_t* tokens,
                          const LaunchOptions& launch) {
  return launch_kernel("share_tokens", move_tokens_kernel<false>, dim3(1), kGatherThreads, 0,
                       launch, args, tokens);
}

}  // namespace espalier::kernels::cuda
