// Memory of a group of ranks, as the host lays it out and kernels see it. Plain structs; internal
// to kernels/collective.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/collective/cuda.h"

namespace espalier::kernels::cuda {

inline constexpr int kBarrierBlocksMax = 128;  // of a kernel whose blocks meet those of peers
inline constexpr int kMessageBuffers = 3;
// A word of a message that has not come. A sender writes +0 for the float32 -0 that it stands for,
// or for the bfloat16 pair (+0, -0).
inline constexpr uint32_t kMissing = 0x80000000u;

// Pinned host memory of the group, which all devices read and write.
struct GroupControl {
  uint32_t stop;        // not 0: waiting has no end, so do not
  int32_t stalled;      // 1 + the rank that waited too long; 0: none
  int32_t stalled_for;  // the rank that it waited for
};

// A rank's own, for messages. One aligned word of 16 bytes.
struct alignas(16) MessageState {
  uint32_t epoch;                   // of the next message
  uint32_t bytes[kMessageBuffers];  // that the last message left in each buffer of each sender
};

// Counters of a rank that its own kernels alone use.
struct RankCounters {
  MessageState messages;
  uint32_t arrived;                      // blocks of the message kernel that runs
  uint32_t tokens_epoch;                 // of the next share_tokens()
  uint32_t meetings[kBarrierBlocksMax];  // so far, of each block
};

// Flags of a rank that peers write: the number of the meeting to which each peer's block has come,
// before the work of a kernel and after it.
struct RankFlags {
  uint32_t arrived[2][kBarrierBlocksMax][kRanksMax];
};

// By value to kernels.
struct PeerView {
  int32_t rank, num_ranks;
  RankCounters* counters;          // own
  RankFlags* flags[kRanksMax];     // of each rank
  std::byte* inbox[kRanksMax];     // of each rank, [kMessageBuffers][num_ranks][message_capacity]
  uint64_t* mailbox[kRanksMax];    // of each rank, [tokens_max]
  int64_t message_capacity;        // bytes
  volatile GroupControl* control;  // the group's
  uint64_t stall_nanoseconds;
};
// One buffer of each rank.
struct PeerBuffers {
  void* of[kRanksMax];
};

}  // namespace espalier::kernels::cuda
