// The layers of a decoder for one token, in one launch.
//
// Bytes: every weight once, and the keys and values; all else is small. For the Llama-3.1-8B shape
// 436 MB a layer, 13.96 GB for the 32 (3.00 ms at 4.65 TB/s); the head is a launch of its own.
// Operations: 2 a weight.
//
// One block of nine warps on each multiprocessor, from the first layer to the last. The ninth asks
// the copy engine for this block's rows of all matrices of all layers, in the order in which they
// are used, into a ring in shared memory (8 pieces of 16 KiB here, 17 MB over the GPU, 3.7 us of
// reading), and waits for nothing but room. The other eight multiply as linear/cuda_small.cu does;
// between products they wait for all blocks (an atomic count in the second-level cache) and fetch
// the new x, while the ring fills.
//
// Attention: a key/value head is shared by (blocks / heads) blocks, each with a run of keys; the
// last of a head's blocks merges what they found. The first keys and values come into registers
// while the blocks wait for q. Norm and rotation of q and k are done where they are read, the new
// key and value are put into their page by the block that has the last keys.
//
// Measured on an H200 that reads 4.52 TB/s, a whole step at a context of 1,024: 4.36 ms with a run
// of rows for each block, a ring of 11 and keys that are looked up layer by layer and fetched when
// q is there; 4.24 with the blocks' rows among each other (what all read at one time lies together:
// predicted 6 us a layer, found 2), the first keys fetched early and their places looked up once
// (predicted 10 us of a layer's 20 between qkv and o, found 2 to 4). At 8,192 5.14 and 4.87, at
// 32,768 7.18 and 6.88.
//
// Where a layer's 126 us go (clock stamps of all blocks, us; memory alone would take 96): products
// 11.2 (qkv), 8.9 (o), 51.7 (gate and up), 26.7 (down); waits of all
// blocks 3.6, 5.2, 3.6, 2.8, 4.8, staging x 1 to 1.6 each; attention 8.5, of that q's heads 1.2,
// keys 5.9, their merge 3. At the start of every product the ring is full in every block, yet a
// product takes as long as its bytes from memory: a piece takes 880 cycles from its barrier to the
// next, as much as memory takes for it.
//
// What is lost there (the layers alone, all weights in one allocation, 3.92 ms where reading them
// takes 3.01; a build for such trials 3.97): with nothing multiplied 3.97 as well, and without
// waits for other blocks 3.24; without copies 3.32, without copies and waits 2.96. So the warps are
// just quicker than memory, and quicker ones gain nothing by themselves: memory rests in the waits,
// most of all during attention, and gives blocks unequal shares (gate and up take them 90 to 104
// thousand cycles).
//
// Tried on that, beside 3.92 to 3.97: at most four pieces under way, which evens out the shares (94
// to 97) and shortens what others wait behind, 3.89; with a ring of 11 and two pairs at once
// (without copies and waits 2.49 instead of 2.96) 3.87; then pairs behind the ring into the
// second-level cache during attention, one in 1,500 cycles, 3.80 to 3.83. But much the same text in
// whole steps, twice by turns, took 4.65 and 4.86 ms beside 4.25, it is not known why (latencies
// that four pieces do not cover?), so none of it is here. Copies asked for by an elected lane, 55
// instructions a piece instead of 110 since the compiler need not loop over lanes: no difference. A
// tag beside each value instead of counters, so that who reads waits for the values themselves:
// 4.11 (twice the bytes to 132 readers); with a look at a sample of them first 4.18. Parts of
// attention merged by all blocks of a head, over tagged records, 3.94 instead of 3.97 beside tags
// alone. 16 warps 4.79 (96 registers, spills), 12 in three groups 4.17.
//
// Tried before, when the warps were thought too slow (the layers alone, 3.98 to 4.04 ms by the
// GPU): tensor cores, two rows by four slices of the inputs as an 8 x 16 operand, 4.01: a piece
// takes 935 cycles all the same, and the clock falls from 1.96 to 1.83 GHz. A ring for each warp,
// pairs of rows by turns 4.29, by who has room first 4.38, without tensor cores 4.40. The next
// piece loaded into registers before one is multiplied 4.47 (they spill at 168). Pieces of 2 x 4
// KiB, twice as many, 5.53. Weights behind the ring in the second-level cache during attention
// alone: 4.10 with 8 pieces, 4.15 with 16, beside 4.00. The layers' records in shared memory
// instead of constant memory: 4.32 beside 4.13. A ring of 11 instead of 8: 0.01 more, for
// attention's reads and the barriers wait behind what the ring has asked for. Four keys of a thread
// at once instead of two: 1.8 us instead of 0.7.
//
// Tried before: a text of its own for each product (156 KB of instructions) took 5.68 ms, for what
// is not in the instruction cache comes from memory that the weights keep busy; one text for all,
// loops rolled up and merges out of line (106 KB) 4.02. So every unrolled loop costs twice here.
// Asking for weights behind the ring in the second-level cache all the time: 4.37 ms with 8 pieces,
// 5.81 with 16. Four pairs a turn: 4.14. Half of the warps for every other pair faults, since
// copies land out of order and a warp that passes over a piece may be two phases of its barrier
// ahead; it must wait for and free what it passes over, or have a ring of its own.
#include <algorithm>
#include <bit>
#include <memory>

#include "kernels/cuda/launch.h"
#include "kernels/linear/warp_sums.cuh"
#include "kernels/megakernel/megakernel_attention.cuh"

namespace espalier::kernels::cuda {
namespace stack {

constexpr int kPairs = 8;  // whose sums are added up together
constexpr int kSums = 2 * kPairs;
constexpr int kMostInputs = 4096;  // of a piece, of each of two rows
constexpr int kMaxSlots = 16, kFewSlots = 4;
constexpr size_t kMostRingBytes = 128 * 1024;
constexpr int kMostOffsets = 8192;  // of keys, kept in shared memory

enum Product { kQkv, kOutput, kGateUp, kDown, kNumProducts };

// One matrix, by pairs of rows: adjacent ones, or one of gate and the same of up.
struct Matrix {
  const bf16* weights;
  int in, pairs, second;  // second: rows from a pair's first to its second
  int piece_inputs;
};

__device__ __forceinline__ Matrix matrix(const Params& p, const MegakernelLayer& layer,
                                         int product) {
  const MegakernelShape& s = p.shape;
  Matrix m;
  m.second = 1;
  switch (product) {
    case kQkv:
      m.weights = static_cast<const bf16*>(layer.qkv);
      m.in = s.hidden, m.pairs = (s.num_heads + 2 * s.num_kv_heads) * s.head_dim / 2;
      break;
    case kOutput:
      m.weights = static_cast<const bf16*>(layer.output);
      m.in = s.num_heads * s.head_dim, m.pairs = s.hidden / 2;
      break;
    case kGateUp:
      m.weights = static_cast<const bf16*>(layer.gate_up);
      m.in = s.hidden, m.pairs = s.ffn, m.second = s.ffn;
      break;
    default:
      m.weights = static_cast<const bf16*>(layer.down);
      m.in = s.ffn, m.pairs = s.hidden / 2;
  }
  const int pieces = (m.in + kMostInputs - 1) / kMostInputs;
  m.piece_inputs = ((m.in + pieces - 1) / pieces + 7) / 8 * 8;
  return m;
}

// This block's pairs: first, first + step ... Blocks take turns at having one more than others, and
// what they read at one time lies together.
struct Share {
  int first, step, count;
  __device__ Share(int pairs, int turn) {
    step = static_cast<int>(gridDim.x);
    first = (static_cast<int>(blockIdx.x) + turn * 41) % step;
    count = (pairs - first + step - 1) / step;
  }
};

struct Barriers {
  Barrier full[kMaxSlots], empty[kMaxSlots];
};

struct Ring {
  char* pieces;
  Barriers* barriers;
  int slot = 0;
  uint32_t parity = 0;
  __device__ void advance(int slots) {
    if (++slot == slots) slot = 0, parity ^= 1;
  }
};

// Shared memory: pieces, sums [2][warps][16], cosine and sine, the norm's weight, x (or attention's
// scratch), barriers, offsets of keys.
struct Shared {
  char* pieces;
  float* sums;
  float* cosine;
  float* sine;
  bf16* norm_weight;
  bf16* x;
  Barriers* barriers;
  uint32_t* offsets;

  static size_t fixed_bytes(int hidden, size_t x_bytes) {
    return size_t{2} * kWarps * kSums * 4 + size_t{2} * (kMaxDim / 2) * 4 +
           static_cast<size_t>(hidden) * 2 + x_bytes + sizeof(Barriers);
  }
  __device__ Shared(char* at, const Params& p) {
    pieces = at;
    at += p.slots * p.slot_bytes;
    sums = reinterpret_cast<float*>(at);
    at += 2 * kWarps * kSums * 4;
    cosine = reinterpret_cast<float*>(at);
    sine = cosine + kMaxDim / 2;
    at += 2 * (kMaxDim / 2) * 4;
    norm_weight = reinterpret_cast<bf16*>(at);
    at += p.shape.hidden * 2;
    x = reinterpret_cast<bf16*>(at);
    at += p.x_bytes;
    barriers = reinterpret_cast<Barriers*>(at);
    offsets = reinterpret_cast<uint32_t*>(barriers + 1);
  }
};

// One thread: everything that this block multiplies, in order.
__device__ void fetch_weights(const Params& p, Ring ring) {
  ring.parity = 1;  // a fresh barrier's phase before the first counts as complete
#pragma unroll 1
  for (int layer = 0; layer < p.shape.num_layers; ++layer) {
#pragma unroll 1
    for (int product = 0; product < kNumProducts; ++product) {
      const Matrix m = matrix(p, p.layers[layer], product);
      const Share share(m.pairs, layer * kNumProducts + product);
#pragma unroll 1
      for (int n = 0; n < share.count; ++n) {
        const int pair = share.first + n * share.step;
        const int first = m.second == 1 ? 2 * pair : pair;
        const bf16* from[2] = {m.weights + static_cast<int64_t>(first) * m.in,
                               m.weights + static_cast<int64_t>(first + m.second) * m.in};
#pragma unroll 1
        for (int begin = 0; begin < m.in; begin += m.piece_inputs) {
          const int inputs = min(m.piece_inputs, m.in - begin);
          const auto bytes = static_cast<uint32_t>(inputs) * 2;
          Barrier& full = ring.barriers->full[ring.slot];
          bf16* to = reinterpret_cast<bf16*>(ring.pieces + ring.slot * p.slot_bytes);
          barrier_wait(ring.barriers->empty[ring.slot], ring.parity);
          barrier_expect(full, 2 * bytes);
          if (m.second == 1 && inputs == m.in) {  // adjacent rows in one
            bulk_copy(to, from[0], 2 * bytes, full);
          } else {
            bulk_copy(to, from[0] + begin, bytes, full);
            bulk_copy(to + inputs, from[1] + begin, bytes, full);
          }
          ring.advance(p.slots);
        }
      }
    }
  }
}

// The math threads of one block, through all layers.
template <int G>
class Worker {
 public:
  __device__ Worker(const Params& p, const Shared& shared, const Ring& ring)
      : p_(p), s_(shared), ring_(ring) {
    ring_.parity = 0;
  }

  // One text for all products, so that the instructions of a layer stay in their cache.
  __device__ void run() {
    const int position = p_.entries.prefix_len[0], keys = position + 1;
    const bf16* embedded = find_embedding();
    int window = 0;
    KeyRange range = key_range(p_, window, keys);
    keep_offsets(p_, range, s_.offsets);
#pragma unroll 1
    for (int i = 0; i < p_.shape.num_layers; ++i) {
      const MegakernelLayer& layer = p_.layers[i];
#pragma unroll 1
      for (int product = 0; product < kNumProducts; ++product) {
        const bool norm = product == kQkv || product == kGateUp;
        if (norm) fetch_norm(product == kQkv ? layer.input_norm : layer.mlp_norm);
        if (product == kOutput)
          wait_for(&p_.counters->heads_done, heads_wanted_ += p_.shape.num_kv_heads);
        else if (i > 0 || product != kQkv)
          wait_for_all();
        const bf16* before = i == 0 ? embedded : p_.hidden;  // the layer's x
        const Matrix m = matrix(p_, layer, product);
        stage(product == kQkv      ? before
              : product == kOutput ? p_.attended
              : product == kGateUp ? p_.hidden
                                   : p_.mlp,
              m.in, norm, layer.norm_epsilon);
        multiply(m, i * kNumProducts + product, product, layer, before);
        if (product != kQkv) continue;
        if (layer.sliding_window != window) {
          window = layer.sliding_window;
          range = key_range(p_, window, keys);
          part_sync(1, kMathThreads);  // all are done with the offsets before
          keep_offsets(p_, range, s_.offsets);
          part_sync(1, kMathThreads);
        }
        Attention<G> attention(p_, layer, range, s_.offsets);  // begins to fetch keys and values
        turn_angles(i, position);
        wait_for_all();
        attention.run(reinterpret_cast<float*>(s_.x), keys, s_.cosine, s_.sine);
      }
    }
    leave();
  }

 private:
  __device__ const bf16* find_embedding() const {
    int id = p_.ids[0];
    if (id == -1 && p_.token_slots != nullptr && p_.slot_tokens != nullptr) {
      const int slot = p_.token_slots[0];
      if (slot >= 0) id = p_.slot_tokens[slot];
    }
    if (id < 0 || id >= p_.vocab_size) return nullptr;
    return p_.embedding + static_cast<int64_t>(id) * p_.shape.hidden;
  }

  // Begins to fetch a norm's weight; stage() waits for it. Each thread takes what it will read.
  __device__ void fetch_norm(const void* weight) const {
    if (weight == nullptr) return;
#pragma unroll 1
    for (int c = threadIdx.x; c < p_.shape.hidden / 8; c += kMathThreads) {
      const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(s_.norm_weight + c * 8));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to),
                   "l"(static_cast<const bf16*>(weight) + c * 8)
                   : "memory");
    }
  }

  __device__ void turn_angles(int i, int position) {
    const MegakernelLayer& layer = p_.layers[i];
    if (layer.frequencies == nullptr || layer.frequencies == turned_) return;
    turned_ = layer.frequencies;  // those of one table share the other numbers
    if (static_cast<int>(threadIdx.x) < layer.rotary_dim / 2) {
      // The angle is rounded to float32 first, as on the CPU.
      const float angle = static_cast<float>(position) * layer.frequencies[threadIdx.x];
      float s, c;
      sincosf(angle, &s, &c);
      s_.cosine[threadIdx.x] = c * layer.attention_factor;
      s_.sine[threadIdx.x] = s * layer.attention_factor;
    }
  }

  __device__ void wait_for(int* counter, int target) const {
    if (threadIdx.x == 0) wait_count(counter, target);
    part_sync(1, kMathThreads);
  }
  // Until all blocks have come here and what they wrote is seen.
  __device__ void wait_for_all() {
    part_sync(1, kMathThreads);
    arrivals_wanted_ += static_cast<int>(gridDim.x);
    if (threadIdx.x == 0) count_release(&p_.counters->arrivals);
    wait_for(&p_.counters->arrivals, arrivals_wanted_);
  }

  // The last block to leave makes the counters ready for the next launch: all have read them by
  // then.
  __device__ void leave() const {
    part_sync(1, kMathThreads);
    if (threadIdx.x != 0) return;
    if (atomicAdd(&p_.counters->exits, 1) != static_cast<int>(gridDim.x) - 1) return;
    p_.counters->arrivals = 0;
    p_.counters->heads_done = 0;
    p_.counters->exits = 0;
  }

  // x into shared memory as it is, or normed as rms_norm() does it. Null: zeros.
  __device__ void stage(const bf16* x, int count, bool norm, float epsilon) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kAtOnce = 4;  // loads under way
    const int eights = count / 8;
    float sum = 0;
#pragma unroll 1
    for (int first = threadIdx.x; first < eights; first += kAtOnce * kMathThreads) {
      uint4 raw[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int c = first + u * kMathThreads;
        raw[u] = x != nullptr && c < eights ? __ldcg(reinterpret_cast<const uint4*>(x + c * 8))
                                            : uint4{};
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int c = first + u * kMathThreads;
        if (c < eights) *reinterpret_cast<uint4*>(s_.x + c * 8) = raw[u];
        if (!norm) continue;
        float value[8];
        unpack8(raw[u], value);
#pragma unroll
        for (float v : value) sum += v * v;
      }
    }
    if (norm) {
      sum = warp_sum(sum);
      if (lane == 0) s_.sums[warp] = sum;
      part_sync(1, kMathThreads);
      sum = warp_sum(lane < kWarps ? s_.sums[lane] : 0.0f);
      const float scale = 1.0f / sqrtf(sum / static_cast<float>(count) + epsilon);
      asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll 1
      for (int c = threadIdx.x; c < count / 8; c += kMathThreads) {
        float value[8], weight[8];
        load8(s_.x + c * 8, value);
        load8(s_.norm_weight + c * 8, weight);
#pragma unroll
        for (int i = 0; i < 8; ++i) value[i] = value[i] * scale * weight[i];
        store8(s_.x + c * 8, value);
      }
    }
    part_sync(1, kMathThreads);
  }

  __device__ void multiply(const Matrix& m, int order, int product, const MegakernelLayer& layer,
                           const bf16* before) {
    const Share share(m.pairs, order);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const bool gated = product == kGateUp, adds = product == kOutput || product == kDown;
    const int each = gated ? 1 : 2;  // outputs of a pair
    const bf16* residual = product == kOutput ? before : p_.hidden;
    int turn = 0;
#pragma unroll 1
    for (int done = 0; done < share.count; done += kPairs, ++turn) {
      const int pairs = min(kPairs, share.count - done);
      // Which output this thread finishes: other warps at each turn.
      const int mine = (static_cast<int>(threadIdx.x) + turn * 32) % kMathThreads;
      const int out = (share.first + (done + mine / each) * share.step) * each + mine % each;
      float rest = 0;
      if (adds && mine < pairs * each && residual != nullptr)
        rest = __bfloat162float(load_fresh(residual + out));
      float acc[kSums] = {};
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (i >= pairs) break;
#pragma unroll 1
        for (int begin = 0; begin < m.in; begin += m.piece_inputs) {
          barrier_wait(ring_.barriers->full[ring_.slot], ring_.parity);
          multiply_piece(reinterpret_cast<const bf16*>(ring_.pieces + ring_.slot * p_.slot_bytes),
                         s_.x + begin, min(m.piece_inputs, m.in - begin), acc[2 * i],
                         acc[2 * i + 1]);
          __syncwarp();
          if (lane == 0) barrier_arrive(ring_.barriers->empty[ring_.slot]);
          ring_.advance(p_.slots);
        }
      }
      add_by_halves(acc);
      float* sums = s_.sums + turn % 2 * kWarps * kSums;
      if (lane % 2 == 0) sums[warp * kSums + lane / 2] = acc[0];
      part_sync(1, kMathThreads);
      if (mine < pairs * each) finish(sums, gated ? 2 * mine : mine, out, product, layer, rest);
    }
  }

  __device__ static void multiply_piece(const bf16* piece, const bf16* x, int inputs, float& first,
                                        float& second) {
#pragma unroll 1
    for (int k = static_cast<int>(threadIdx.x) * 8; k < inputs; k += kMathThreads * 8) {
      float a[8], b[8], value[8];
      load8(piece + k, a);
      load8(piece + inputs + k, b);
      load8(x + k, value);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        first += a[i] * value[i];
        second += b[i] * value[i];
      }
    }
  }

  // The sums of the warps, [warp][16], become one output.
  __device__ void finish(const float* sums, int at, int out, int product,
                         const MegakernelLayer& layer, float rest) const {
    const bool gated = product == kGateUp;
    float value = 0, up = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      value += sums[w * kSums + at];
      if (gated) up += sums[w * kSums + at + 1];
    }
    const auto* bias = static_cast<const bf16*>(product == kQkv      ? layer.qkv_bias
                                                : product == kOutput ? layer.output_bias
                                                : product == kGateUp ? layer.gate_up_bias
                                                                     : layer.down_bias);
    if (bias != nullptr) {
      value += __bfloat162float(bias[out]);
      if (gated) up += __bfloat162float(bias[p_.shape.ffn + out]);
    }
    bf16* y = product == kQkv ? p_.qkv : product == kGateUp ? p_.mlp : p_.hidden;
    y[out] = __float2bfloat16_rn((gated ? silu(value) * up : value) + rest);
  }

  const Params& p_;
  const Shared& s_;
  Ring ring_;
  int arrivals_wanted_ = 0, heads_wanted_ = 0;
  const float* turned_ = nullptr;
};

template <int G>
__global__ void __launch_bounds__(kThreads, 1) megakernel_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char raw[];
  if (p.entries.query_begin[1] == p.entries.query_begin[0]) return;
  const Shared shared(raw, p);
  if (threadIdx.x == kMathThreads) {
    for (int i = 0; i < p.slots; ++i) {
      barrier_init(shared.barriers->full[i], 1);
      barrier_init(shared.barriers->empty[i], kWarps);
    }
    barrier_init_done();
  }
  __syncthreads();
  Ring ring;
  ring.pieces = shared.pieces;
  ring.barriers = shared.barriers;
  if (threadIdx.x >= kMathThreads) {
    if (threadIdx.x == kMathThreads) fetch_weights(p, ring);
  } else {
    Worker<G>(p, shared, ring).run();
  }
}

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

int group_of(const MegakernelShape& s) {
  int group = 1;
  while (group * s.num_kv_heads < s.num_heads) group *= 2;
  return group;
}

struct Plan {
  int x_bytes = 0, slot_bytes = 0, slots = 0, offsets = 0;
  size_t bytes = 0;
};

Plan plan_for(const MegakernelShape& s, const DeviceTraits& traits) {
  const int group = group_of(s);
  const int widest = std::max({s.hidden, s.num_heads * s.head_dim, s.ffn});
  const size_t attention = ((static_cast<size_t>(group) + 2) * static_cast<size_t>(s.head_dim) +
                            static_cast<size_t>(kWarps * group * (s.head_dim + 2))) *
                           4;
  Plan plan;
  plan.x_bytes =
      static_cast<int>(round_up(std::max(static_cast<size_t>(widest) * 2, attention), 16));
  for (const int in : {s.hidden, s.num_heads * s.head_dim, s.ffn}) {
    const int pieces = (in + kMostInputs - 1) / kMostInputs;
    plan.slot_bytes = std::max(plan.slot_bytes, ((in + pieces - 1) / pieces + 7) / 8 * 8 * 4);
  }
  const size_t fixed = Shared::fixed_bytes(s.hidden, static_cast<size_t>(plan.x_bytes));
  const auto most = static_cast<size_t>(traits.shared_bytes_per_block);
  if (fixed >= most) return plan;
  plan.slots = std::min(static_cast<int>(std::min(most - fixed, kMostRingBytes) /
                                         static_cast<size_t>(plan.slot_bytes)),
                        kMaxSlots);
  plan.bytes = fixed + static_cast<size_t>(plan.slots) * static_cast<size_t>(plan.slot_bytes);
  plan.offsets = std::min(static_cast<int>((most - plan.bytes) / 4), kMostOffsets);
  plan.bytes += static_cast<size_t>(plan.offsets) * 4;
  return plan;
}

// The workspace: vectors between products, partial sums of attention, counters.
struct Workspace {
  size_t qkv, attended, mlp, partial, counters, bytes;
  Workspace(const MegakernelShape& s, int blocks) {
    const auto dim = static_cast<size_t>(s.head_dim), heads = static_cast<size_t>(s.num_heads);
    qkv = 0;
    attended = qkv + round_up((heads + 2 * static_cast<size_t>(s.num_kv_heads)) * dim * 2, 256);
    mlp = attended + round_up(heads * dim * 2, 256);
    partial = mlp + round_up(static_cast<size_t>(s.ffn) * 2, 256);
    counters = partial + round_up(static_cast<size_t>(blocks) * heads * (dim + 2) * 4, 256);
    bytes = counters + sizeof(Counters);
  }
};

template <int G>
Status start(const Params& params, const DeviceTraits& traits, size_t bytes, Stream stream) {
  ESP_RETURN_IF_ERROR(allow_shared("megakernel", megakernel_kernel<G>, bytes));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(traits.num_multiprocessors));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cuda_status(cudaLaunchKernelEx(&config, megakernel_kernel<G>, params), "megakernel");
}

}  // namespace stack

bool megakernel_supports(const MegakernelShape& s) {
  const auto traits = device_traits();
  if (!traits || traits->compute_capability < 90) return false;
  if (s.num_layers < 1 || s.num_layers > kMaxMegakernelLayers || s.hidden % 8 != 0 ||
      s.ffn % 8 != 0 || s.num_kv_heads < 1 || s.num_heads % s.num_kv_heads != 0)
    return false;
  if (s.head_dim < 16 || s.head_dim > stack::kMaxDim || (s.head_dim & (s.head_dim - 1)) != 0)
    return false;
  if (s.num_heads / s.num_kv_heads > 8 ||
      s.num_kv_heads > std::min(stack::kMaxKvHeads, traits->num_multiprocessors))
    return false;
  return stack::plan_for(s, *traits).slots >= stack::kFewSlots;
}

bool megakernel_supports_page_size(int32_t page_size) {
  return page_size > 0 && std::has_single_bit(static_cast<uint32_t>(page_size));
}

Result<size_t> megakernel_workspace_bytes(const MegakernelShape& shape) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  return stack::Workspace(shape, traits.num_multiprocessors).bytes;
}

Status megakernel(const MegakernelArgs& args, const LaunchOptions& launch) {
  const MegakernelShape& s = args.shape;
  if (!megakernel_supports(s) || static_cast<int32_t>(args.layers.size()) != s.num_layers)
    return error(StatusCode::kUnimplemented, "megakernel: {} layers of {} with heads of {}",
                 args.layers.size(), s.hidden, s.head_dim);
  if (!megakernel_supports_page_size(args.kv.page_size))
    return error(StatusCode::kUnimplemented, "megakernel: pages of {} tokens", args.kv.page_size);
  if (args.entries.num_entries != 1 || args.entries.num_tokens != 1 ||
      args.kv.type != DType::kBFloat16)
    return invalid_argument("megakernel: {} tokens in {} entries, but it takes one",
                            args.entries.num_tokens, args.entries.num_entries);
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  const stack::Workspace at(s, traits.num_multiprocessors);
  if (args.workspace_bytes < at.bytes || !aligned(args.workspace, 256))
    return invalid_argument("megakernel: the workspace has {} bytes, but {} are needed",
                            args.workspace_bytes, at.bytes);
  const stack::Plan plan = stack::plan_for(s, traits);
  auto* base = static_cast<char*>(args.workspace);
  // 17 KB, most of it the layers' pointers: too much for the stack of a small thread.
  const auto params = std::make_unique<stack::Params>();
  params->shape = s;
  params->ids = args.ids;
  params->token_slots = args.token_slots;
  params->slot_tokens = args.slot_tokens;
  params->embedding = static_cast<const bf16*>(args.embedding);
  params->vocab_size = args.vocab_size;
  params->entries = args.entries;
  params->kv = args.kv;
  params->hidden = static_cast<bf16*>(args.out);
  params->qkv = reinterpret_cast<bf16*>(base + at.qkv);
  params->attended = reinterpret_cast<bf16*>(base + at.attended);
  params->mlp = reinterpret_cast<bf16*>(base + at.mlp);
  params->partial = reinterpret_cast<float*>(base + at.partial);
  params->counters = reinterpret_cast<stack::Counters*>(base + at.counters);
  params->page_shift = std::countr_zero(static_cast<uint32_t>(args.kv.page_size));
  params->x_bytes = plan.x_bytes;
  params->slot_bytes = plan.slot_bytes;
  params->slots = plan.slots;
  params->offsets = plan.offsets;
  std::copy(args.layers.begin(), args.layers.end(), params->layers);
  switch (stack::group_of(s)) {
    case 1:
      return stack::start<1>(*params, traits, plan.bytes, launch.stream);
    case 2:
      return stack::start<2>(*params, traits, plan.bytes, launch.stream);
    case 4:
      return stack::start<4>(*params, traits, plan.bytes, launch.stream);
    default:
      return stack::start<8>(*params, traits, plan.bytes, launch.stream);
  }
}

}  // namespace espalier::kernels::cuda
