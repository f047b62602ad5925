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
Status share_slot_tokens(const PeerView& peers, const ShareTokensArgs& args,
                         const LaunchOptions& launch);
// Makes all words of messages missing.
Status clear_messages(std::byte* messages, int64_t bytes, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
