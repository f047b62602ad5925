// The launchers of this folder's kernels, for the group's host code (peer_group.cc). Internal to
// kernels/collective; as kernels/cuda/stream.h.
#pragma once

#include "kernels/collective/peers.h"

namespace espalier::kernels::cuda {

// Sums by messages: every rank sends its rows to all and adds up what comes. REQUIRES: the rows
// take at most message_capacity.
Status all_reduce_messages(const PeerView& peers, const AllReduceArgs& args,
                           const LaunchOptions& launch);
// Sums x in place: each rank adds up a part of all ranks' x and writes it to all. x: of each rank.
Status all_reduce_in_place(const PeerView& peers, const PeerBuffers& x, DType type,
                           int64_t elements, const LaunchOptions& launch);
// parts: of each rank.
Status gather_parts(const PeerView& peers, const PeerBuffers& parts, const AllGatherArgs& args,
                    const LaunchOptions& launch);
// own: of each rank.
Status gather_rank_rows(const PeerView& peers, const PeerBuffers& own, const RankRowsArgs& args,
                        const LaunchOptions& launch);
// all: of each rank.
Status sum_rank_rows(const PeerView& peers, const PeerBuffers& all, const RankRowsArgs& args,
                     const LaunchOptions& launch);
Status share_slot_tokens(const PeerView& peers, const ShareTokensArgs& args,
                         const LaunchOptions& launch);
// to[row, p * columns + c] = from[p * from_part + row * from_stride + c]: parts that lie behind
// each other, side by side. 16-byte aligned; strides in elements.
struct RowCopies {
  DType type = DType::kFloat32;
  const void* from = nullptr;
  int64_t from_stride = 0, from_part = 0;
  void* to = nullptr;
  int64_t to_stride = 0;
  int32_t rows = 0, columns = 0, parts = 1;  // above 0
};
Status copy_rows(const RowCopies& copies, const LaunchOptions& launch);
// Tokens of slots into tokens[rows], and back.
Status pack_slot_tokens(const ShareTokensArgs& args, int32_t* tokens, const LaunchOptions& launch);
Status unpack_slot_tokens(const ShareTokensArgs& args, int32_t* tokens,
                          const LaunchOptions& launch);
// Makes all words of messages missing.
Status clear_messages(std::byte* messages, int64_t bytes, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
