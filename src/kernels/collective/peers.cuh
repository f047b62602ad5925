// How the threads of a kernel wait for other devices. Device code.
//
// Memory that peers write is read with sys-scope acquire or relaxed loads, which no cache of this
// device holds back.
#pragma once

#include "kernels/collective/peers.h"
#include "kernels/cuda/device.cuh"

namespace espalier::kernels::cuda {

__device__ __forceinline__ void store_release(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store_relaxed(uint64_t* to, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
// Four words, each of which is whole; they may come one by one.
__device__ __forceinline__ void store_relaxed(uint4* to, const uint4& value) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_relaxed(const uint4* from) {
  uint4 value;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t value;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
  return value;
}

// Whether a wait for `rank` that began at `begin` has to end: the group was stopped, or the bound
// is reached, which stops the group.
static __device__ __noinline__ bool must_stop(const PeerView& peers, int rank, uint64_t begin) {
  if (peers.control->stop != 0) return true;
  if (nanoseconds() - begin < peers.stall_nanoseconds) return false;
  peers.control->stalled_for = rank;
  peers.control->stalled = peers.rank + 1;
  __threadfence_system();
  peers.control->stop = 1;
  return true;
}

// Waits until done() or the group stops. The host's memory is read rarely: that takes microseconds.
template <typename Done>
__device__ __forceinline__ void wait_for_peer(const PeerView& peers, int rank, const Done& done) {
  constexpr int kPollsBetween = 4096;
  uint64_t begin = 0;
  for (int polls = 1; !done(); ++polls) {
    if (polls < kPollsBetween) continue;
    if (begin == 0) begin = nanoseconds();
    if (must_stop(peers, rank, begin)) return;
    polls = 0;
  }
}

enum class Meeting : uint8_t { kBefore, kAfter };

// Meets the same block of all ranks: before the work, so that what kernels in front of this one
// wrote on any rank can be read; after it, so that what this block's threads wrote to any rank can
// be read when that rank's kernel has ended. All threads call it, kBefore first.
__device__ __forceinline__ void meet_peers(const PeerView& peers, Meeting when) {
  __syncthreads();
  const auto rank = static_cast<int>(threadIdx.x);
  const int phase = when == Meeting::kAfter ? 1 : 0;
  const uint32_t meeting = peers.counters->meetings[blockIdx.x] + 1;
  if (rank < peers.num_ranks) {
    __threadfence_system();
    store_release(&peers.flags[rank]->arrived[phase][blockIdx.x][peers.rank], meeting);
    const uint32_t* own = &peers.flags[peers.rank]->arrived[phase][blockIdx.x][rank];
    wait_for_peer(peers, rank,
                  [&] { return static_cast<int32_t>(load_acquire(own) - meeting) >= 0; });
  }
  __syncthreads();
  if (when == Meeting::kAfter && threadIdx.x == 0) peers.counters->meetings[blockIdx.x] = meeting;
}

// Meets as meet_peers(kBefore) does, with nothing behind the work: what this kernel reads of peers
// has to stay until they meet this rank in their next collective.
__device__ __forceinline__ void meet_peers_once(const PeerView& peers) {
  meet_peers(peers, Meeting::kBefore);
  if (threadIdx.x == 0) ++peers.counters->meetings[blockIdx.x];
}

}  // namespace espalier::kernels::cuda
