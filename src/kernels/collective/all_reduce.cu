// Sums over ranks, with the residual and the RMS norm behind them.
// Messages, for few rows: each rank writes its rows into every peer's memory and reads what peers
// wrote into its own. A word is its own flag (kMissing until it comes), so there is one way over
// the link and no barrier. Three buffers take turns: while message e comes, the buffer of e - 1 is
// cleared; a peer writes it again in e + 2, which it begins after all of this rank's e + 1 came, so
// after this kernel's end.
// In place, for many rows: each rank adds up its part of all ranks' rows and writes the sums to
// all, between two meetings of each block with the same block of the peers.
// Parallel: messages one block a row, as rms_norm; in place 16 bytes a thread, several at once.
// Roof: the link, (ranks - 1) / ranks x 2 x bytes each way in place, (ranks - 1) x bytes for
// messages. History: docs/notes/collective.md.
#include <algorithm>

#include "kernels/collective/kernels.h"
#include "kernels/collective/peers.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kReduceThreads = 512;
constexpr int kInPlaceUnroll = 4;

// Eight elements as words of 16 bytes.
template <typename T>
struct Packed {
  static constexpr int kWords = static_cast<int>(sizeof(T)) / 2;
  uint4 words[kWords];

  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  // Without the word that stands for one that has not come.
  __device__ __forceinline__ void make_sendable() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      uint4& w = words[i];
      w.x = w.x == kMissing ? 0 : w.x, w.y = w.y == kMissing ? 0 : w.y;
      w.z = w.z == kMissing ? 0 : w.z, w.w = w.w == kMissing ? 0 : w.w;
    }
  }
  __device__ __forceinline__ void send(std::byte* to) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) store_relaxed(reinterpret_cast<uint4*>(to) + i, words[i]);
  }
  __device__ __forceinline__ bool receive(const std::byte* from) {
    bool whole = true;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = load_relaxed(reinterpret_cast<const uint4*>(from) + i);
      whole &= words[i].x != kMissing && words[i].y != kMissing && words[i].z != kMissing &&
               words[i].w != kMissing;
    }
    return whole;
  }
  __device__ __forceinline__ void unpack(float (&to)[8]) const {
    if constexpr (sizeof(T) == 2) {
      const uint32_t word[4] = {words[0].x, words[0].y, words[0].z, words[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) to[2 * i] = low_half(word[i]), to[2 * i + 1] = high_half(word[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        to[4 * i] = __uint_as_float(words[i].x), to[4 * i + 1] = __uint_as_float(words[i].y);
        to[4 * i + 2] = __uint_as_float(words[i].z), to[4 * i + 3] = __uint_as_float(words[i].w);
      }
    }
  }
};

// The message of this kernel: where it lies in each inbox.
struct Message {
  MessageState state;
  uint32_t buffer;

  __device__ __forceinline__ explicit Message(const PeerView& peers)
      : state(peers.counters->messages), buffer(state.epoch % kMessageBuffers) {}
  __device__ __forceinline__ std::byte* at(const PeerView& peers, int to, int from,
                                           uint32_t which) const {
    return peers.inbox[to] +
           (static_cast<int64_t>(which) * peers.num_ranks + from) * peers.message_capacity;
  }
};

// Removes what the last message left of each peer.
__device__ __forceinline__ void clear_last(const PeerView& peers, const Message& message) {
  const uint32_t last = (message.buffer + kMessageBuffers - 1) % kMessageBuffers;
  const auto words = static_cast<int>(message.state.bytes[last] / sizeof(uint4));
  for (int r = 0; r < peers.num_ranks; ++r) {
    if (r == peers.rank) continue;
    auto* to = reinterpret_cast<uint4*>(message.at(peers, peers.rank, r, last));
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < words;
         i += static_cast<int>(gridDim.x * blockDim.x)) {
      to[i] = make_uint4(kMissing, kMissing, kMissing, kMissing);
    }
  }
}

// The last block to have read the state writes the next message's. REQUIRES: all threads of the
// block have read it.
__device__ __forceinline__ void advance(const PeerView& peers, const Message& message,
                                        uint32_t bytes) {
  if (threadIdx.x != 0) return;
  RankCounters& counters = *peers.counters;
  if (atomicAdd(&counters.arrived, 1u) != gridDim.x - 1) return;
  counters.arrived = 0;
  const uint32_t last = (message.buffer + kMessageBuffers - 1) % kMessageBuffers;
  counters.messages.bytes[message.buffer] = bytes;
  counters.messages.bytes[last] = 0;
  counters.messages.epoch = message.state.epoch + 1;
}

// The sum of eight elements over the ranks, in their order; own: this rank's.
template <typename T>
__device__ __forceinline__ void receive_sum(const PeerView& peers, const Message& message,
                                            const Packed<T>& own, int64_t at, float (&sum)[8]) {
#pragma unroll 1
  for (int r = 0; r < peers.num_ranks; ++r) {
    Packed<T> part = own;
    if (r != peers.rank) {
      const std::byte* from = message.at(peers, peers.rank, r, message.buffer) + at;
      wait_for_peer(peers, r, [&] { return part.receive(from); });
    }
    float values[8];
    part.unpack(values);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] = r == 0 ? values[i] : sum[i] + values[i];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] = to_float(from_float<T>(sum[i]));
}

// The columns of a row that a thread holds, in CHUNKS vectors of eight: those of rms_norm_kernel,
// so that a norm has its bits.
__device__ __forceinline__ int column_of(int chunk) {
  return (chunk * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
}

// Sends the block's rows to all peers. first: what the thread holds of the block's first row.
template <typename T, int CHUNKS>
__device__ __forceinline__ void send_rows(const PeerView& peers, const Message& message,
                                          const AllReduceArgs& args, Packed<T> (&first)[CHUNKS]) {
  const auto begin = static_cast<int>(blockIdx.x);
  for (int row = begin; row < args.rows; row += static_cast<int>(gridDim.x)) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      if (column_of(c) >= args.dim) continue;
      const int64_t at = int64_t{row} * args.dim + column_of(c);
      Packed<T> part;
      part.load(static_cast<const T*>(args.x) + at);
      part.make_sendable();
      if (row == begin) first[c] = part;
      for (int r = 0; r < peers.num_ranks; ++r) {
        if (r == peers.rank) continue;
        part.send(message.at(peers, r, peers.rank, message.buffer) +
                  at * static_cast<int64_t>(sizeof(T)));
      }
    }
  }
}

// The new values of a row, in the residual where there is one. Returns the sum of their squares.
template <typename T, int CHUNKS>
__device__ __forceinline__ float receive_row(const PeerView& peers, const Message& message,
                                             const AllReduceArgs& args, int row,
                                             const Packed<T> (&first)[CHUNKS],
                                             float (&values)[CHUNKS][8]) {
  T* residual = args.residual == nullptr
                    ? nullptr
                    : static_cast<T*>(args.residual) + int64_t{row} * args.residual_stride;
  float squares = 0;
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    if (column_of(c) >= args.dim) continue;
    const int64_t at = int64_t{row} * args.dim + column_of(c);
    float other[8];
    if (residual != nullptr) load8(residual + column_of(c), other);
    Packed<T> own = first[c];
    if (row != static_cast<int>(blockIdx.x)) {
      own.load(static_cast<const T*>(args.x) + at);
      own.make_sendable();
    }
    receive_sum<T>(peers, message, own, at * static_cast<int64_t>(sizeof(T)), values[c]);
    if (residual != nullptr) {
#pragma unroll
      for (int i = 0; i < 8; ++i) values[c][i] = to_float(from_float<T>(values[c][i] + other[i]));
      store8(residual + column_of(c), values[c]);
    } else {
      store8(static_cast<T*>(args.x) + at, values[c]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += values[c][i] * values[c][i];
  }
  return squares;
}

template <typename T, int CHUNKS>
__global__ void __launch_bounds__(kReduceThreads)
    all_reduce_messages_kernel(const __grid_constant__ PeerView peers, AllReduceArgs args) {
  __shared__ float scratch[32];
  release_next();
  constexpr bool kEarly = CHUNKS <= 2;  // more would not fit in registers
  const T* weight_row = static_cast<const T*>(args.norm_weight);
  Eight<T> weights[kEarly ? CHUNKS : 1];
  if (kEarly && args.y != nullptr) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
      if (column_of(c) < args.dim) weights[c].load(weight_row + column_of(c));
  }
  wait_for_previous();
  const Message message(peers);
  Packed<T> first[CHUNKS];
  send_rows(peers, message, args, first);
  clear_last(peers, message);
  __syncthreads();
  advance(peers, message,
          static_cast<uint32_t>(args.rows) * static_cast<uint32_t>(args.dim) * sizeof(T));
  for (int row = static_cast<int>(blockIdx.x); row < args.rows;
       row += static_cast<int>(gridDim.x)) {
    float values[CHUNKS][8];
    const float squares = receive_row(peers, message, args, row, first, values);
    if (args.y == nullptr) continue;
    const float mean = block_sum(squares, scratch) / static_cast<float>(args.dim);
    const float scale = 1.0f / sqrtf(mean + args.norm_epsilon);
    T* y = static_cast<T*>(args.y) + int64_t{row} * args.y_stride;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      if (column_of(c) >= args.dim) continue;
      if constexpr (!kEarly) weights[0].load(weight_row + column_of(c));
      float weight[8];
      weights[kEarly ? c : 0].unpack(weight);
#pragma unroll
      for (int i = 0; i < 8; ++i)
        values[c][i] = values[c][i] * scale * (weight[i] + args.norm_offset);
      store8(y + column_of(c), values[c]);
    }
  }
}

// RANKS: their number, or 0: any.
template <typename T, int RANKS>
__global__ void __launch_bounds__(kReduceThreads)
    all_reduce_in_place_kernel(const __grid_constant__ PeerView peers,
                               const __grid_constant__ PeerBuffers x, int64_t eights) {
  release_next();
  wait_for_previous();
  meet_peers(peers, Meeting::kBefore);
  const int ranks = RANKS > 0 ? RANKS : peers.num_ranks;
  constexpr int kUnroll = RANKS == 0 || RANKS > 4 ? 1 : kInPlaceUnroll;
  const int64_t part = (eights + ranks - 1) / ranks, begin = part * peers.rank;
  const int64_t end = begin + part < eights ? begin + part : eights;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = begin + int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < end;
       i += kUnroll * step) {
    float sums[kUnroll][8];
#pragma unroll
    for (int r = 0; r < (RANKS > 0 ? RANKS : kRanksMax); ++r) {
      if (RANKS == 0 && r >= ranks) break;
      Packed<T> parts[kUnroll] = {};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (i + u * step < end) parts[u].load(static_cast<const T*>(x.of[r]) + (i + u * step) * 8);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        float values[8];
        parts[u].unpack(values);
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[u][j] = r == 0 ? values[j] : sums[u][j] + values[j];
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * step >= end) break;
      for (int r = 0; r < ranks; ++r)
        store8(static_cast<T*>(x.of[r]) + (i + u * step) * 8, sums[u]);
    }
  }
  meet_peers(peers, Meeting::kAfter);
}

__global__ void __launch_bounds__(kReduceThreads) clear_messages_kernel(uint4* to, int64_t words) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x) {
    to[i] = make_uint4(kMissing, kMissing, kMissing, kMissing);
  }
}

template <typename T>
Status launch_messages(const PeerView& peers, const AllReduceArgs& args,
                       const LaunchOptions& launch) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  const int eights = args.dim / 8;
  const auto grid =
      dim3(static_cast<unsigned>(std::min(args.rows, 2 * traits.num_multiprocessors)));
  const auto start = [&](auto kernel, int chunks) {
    const int threads = ((eights + chunks - 1) / chunks + 31) / 32 * 32;
    return launch_kernel("all_reduce", kernel, grid, dim3(static_cast<unsigned>(threads)), 0,
                         launch, peers, args);
  };
  if (eights <= kReduceThreads) return start(all_reduce_messages_kernel<T, 1>, 1);
  if (eights <= 2 * kReduceThreads) return start(all_reduce_messages_kernel<T, 2>, 2);
  return start(all_reduce_messages_kernel<T, 8>, 8);
}

template <typename T>
Status launch_in_place(const PeerView& peers, const PeerBuffers& x, int64_t elements,
                       const LaunchOptions& launch) {
  const int64_t eights = elements / 8;
  const int64_t blocks = eights / peers.num_ranks / kReduceThreads + 1;
  const auto grid = dim3(static_cast<unsigned>(std::min<int64_t>(blocks, kBarrierBlocksMax)));
  const auto start = [&](auto kernel) {
    return launch_kernel("all_reduce", kernel, grid, kReduceThreads, 0, launch, peers, x, eights);
  };
  switch (peers.num_ranks) {
    case 2:
      return start(all_reduce_in_place_kernel<T, 2>);
    case 4:
      return start(all_reduce_in_place_kernel<T, 4>);
    case 8:
      return start(all_reduce_in_place_kernel<T, 8>);
    default:
      return start(all_reduce_in_place_kernel<T, 0>);
  }
}

}  // namespace

Status all_reduce_messages(const PeerView& peers, const AllReduceArgs& args,
                           const LaunchOptions& launch) {
  return args.type == DType::kBFloat16 ? launch_messages<bf16>(peers, args, launch)
                                       : launch_messages<float>(peers, args, launch);
}

Status all_reduce_in_place(const PeerView& peers, const PeerBuffers& x, DType type,
                           int64_t elements, const LaunchOptions& launch) {
  return type == DType::kBFloat16 ? launch_in_place<bf16>(peers, x, elements, launch)
                                  : launch_in_place<float>(peers, x, elements, launch);
}

Status clear_messages(std::byte* messages, int64_t bytes, const LaunchOptions& launch) {
  return launch_kernel("clear_messages", clear_messages_kernel, dim3(64), kReduceThreads, 0, launch,
                       reinterpret_cast<uint4*>(messages),
                       bytes / static_cast<int64_t>(sizeof(uint4)));
}

}  // namespace espalier::kernels::cuda
