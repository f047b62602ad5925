// Persistent megakernel: all layers of a decoder for one token of one entry, in one cooperative
// launch. Vectors [hidden], [ffn], [heads x head_dim] bfloat16; sums in float32.
// Parallel: one block of nine warps on each multiprocessor, from the first layer to the last. Eight
// consumer warps multiply as linear/gemv.cu does; rows of a matrix are interleaved over the blocks.
// Between GEMVs all blocks wait at a grid barrier (an atomic counter in L2) and load the new x.
// Attention: megakernel_attention.cuh.
// Pipeline: the ninth warp issues TMA bulk copies of this block's rows of all matrices of all
// layers in order, into a ring buffer in shared memory (8 stages of 16 KiB for the Llama-3.1-8B
// shape: 17 MB over the GPU, 3.7 us of reading); it waits only for free stages, so the ring buffer
// fills while consumers wait. One loop body serves all GEMVs, rolled up, so that a layer's
// instructions stay in the instruction cache. Roof: memory, every weight once: 13.96 GB for 32
// layers, 3.00 ms at 4.65 TB/s. A whole step at 1,024 positions 4.24 ms on an H200. History:
// docs/notes/megakernel.md.
#include <algorithm>
#include <bit>
#include <memory>

#include "kernels/cuda/launch.h"
#include "kernels/linear/warp_sums.cuh"
#include "kernels/megakernel/megakernel_attention.cuh"

namespace espalier::kernels::cuda {
namespace megakernel_impl {

constexpr int kPairs = 8;  // pairs whose sums are added up together
constexpr int kSums = 2 * kPairs;
constexpr int kMaxTileInputs = 4096;  // of a tile, of each of its two rows
constexpr int kMaxSlots = 16, kMinSlots = 4;
constexpr size_t kMaxRingBufferBytes = 128 * 1024;
constexpr int kMaxOffsets = 8192;  // of keys, cached in shared memory

enum Gemv { kQkv, kOutput, kGateUp, kDown, kNumGemvs };

// One matrix, by pairs of rows: adjacent ones, or one of gate and the same of up.
struct Matrix {
  const bf16* weights;
  int in, pairs, second;  // second: rows from a pair's first to its second
  int tile_inputs;
};

__device__ __forceinline__ Matrix matrix(const Params& p, const MegakernelLayer& layer, int gemv) {
  const MegakernelShape& s = p.shape;
  Matrix m;
  m.second = 1;
  switch (gemv) {
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
  const int stages = (m.in + kMaxTileInputs - 1) / kMaxTileInputs;
  m.tile_inputs = ((m.in + stages - 1) / stages + 7) / 8 * 8;
  return m;
}

// This block's pairs: first, first + step ... Blocks take turns at having one pair more than
// others, and what all blocks read at one time is adjacent in memory.
struct Share {
  int first, step, count;
  __device__ Share(int pairs, int round) {
    step = static_cast<int>(gridDim.x);
    first = (static_cast<int>(blockIdx.x) + round * 41) % step;
    count = (pairs - first + step - 1) / step;
  }
};

struct Barriers {
  Barrier full[kMaxSlots], empty[kMaxSlots];
};

struct RingBuffer {
  char* stages;
  Barriers* barriers;
  int slot = 0;
  uint32_t parity = 0;
  __device__ void advance(int slots) {
    if (++slot == slots) slot = 0, parity ^= 1;
  }
};

// Shared memory: stages, sums [2][warps][16], cosine and sine, the norm's weight, x (or attention's
// scratch), barriers, offsets of keys.
struct Shared {
  char* stages;
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
    stages = at;
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

// The producer thread: copies everything that this block multiplies, in order.
__device__ void fetch_weights(const Params& p, RingBuffer ring_buffer) {
  ring_buffer.parity = 1;  // a fresh barrier's phase before the first counts as complete
#pragma unroll 1
  for (int layer = 0; layer < p.shape.num_layers; ++layer) {
#pragma unroll 1
    for (int gemv = 0; gemv < kNumGemvs; ++gemv) {
      const Matrix m = matrix(p, p.layers[layer], gemv);
      const Share share(m.pairs, layer * kNumGemvs + gemv);
#pragma unroll 1
      for (int n = 0; n < share.count; ++n) {
        const int pair = share.first + n * share.step;
        const int first = m.second == 1 ? 2 * pair : pair;
        const bf16* from[2] = {m.weights + static_cast<int64_t>(first) * m.in,
                               m.weights + static_cast<int64_t>(first + m.second) * m.in};
#pragma unroll 1
        for (int begin = 0; begin < m.in; begin += m.tile_inputs) {
          const int inputs = min(m.tile_inputs, m.in - begin);
          const auto bytes = static_cast<uint32_t>(inputs) * 2;
          Barrier& full = ring_buffer.barriers->full[ring_buffer.slot];
          bf16* to = reinterpret_cast<bf16*>(ring_buffer.stages + ring_buffer.slot * p.slot_bytes);
          barrier_wait(ring_buffer.barriers->empty[ring_buffer.slot], ring_buffer.parity);
          barrier_expect(full, 2 * bytes);
          if (m.second == 1 && inputs == m.in) {  // adjacent rows in one copy
            bulk_copy(to, from[0], 2 * bytes, full);
          } else {
            bulk_copy(to, from[0] + begin, bytes, full);
            bulk_copy(to + inputs, from[1] + begin, bytes, full);
          }
          ring_buffer.advance(p.slots);
        }
      }
    }
  }
}

// The consumer threads of one block, through all layers.
template <int G>
class Worker {
 public:
  __device__ Worker(const Params& p, const Shared& shared, const RingBuffer& ring_buffer)
      : p_(p), s_(shared), ring_buffer_(ring_buffer) {
    ring_buffer_.parity = 0;
  }

  // One loop body for all GEMVs, so that the instructions of a layer stay in their cache.
  __device__ void run() {
    const int position = p_.entries.prefix_len[0], keys = position + 1;
    const bf16* embedded = find_embedding();
    int window = 0;
    KeyRange range = key_range(p_, window, keys);
    cache_offsets(p_, range, s_.offsets);
#pragma unroll 1
    for (int i = 0; i < p_.shape.num_layers; ++i) {
      const MegakernelLayer& layer = p_.layers[i];
#pragma unroll 1
      for (int gemv = 0; gemv < kNumGemvs; ++gemv) {
        const bool norm = gemv == kQkv || gemv == kGateUp;
        if (norm) fetch_norm(gemv == kQkv ? layer.input_norm : layer.mlp_norm);
        if (gemv == kOutput)
          wait_for(&p_.counters->heads_done, heads_wanted_ += p_.shape.num_kv_heads);
        else if (i > 0 || gemv != kQkv)
          grid_barrier();
        const bf16* before = i == 0 ? embedded : p_.hidden;  // the layer's x
        const Matrix m = matrix(p_, layer, gemv);
        stage(gemv == kQkv      ? before
              : gemv == kOutput ? p_.attended
              : gemv == kGateUp ? p_.hidden
                                : p_.mlp,
              m.in, norm, layer.norm_epsilon);
        multiply(m, i * kNumGemvs + gemv, gemv, layer, before);
        if (gemv != kQkv) continue;
        if (layer.sliding_window != window) {
          window = layer.sliding_window;
          range = key_range(p_, window, keys);
          named_barrier_sync(1, kMathThreads);  // all threads have read the offsets before
          cache_offsets(p_, range, s_.offsets);
          named_barrier_sync(1, kMathThreads);
        }
        Attention<G> attention(p_, layer, range,
                               s_.offsets);  // issues the first loads of keys and values
        compute_angles(i, position);
        grid_barrier();
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

  // Starts copying a norm's weight to shared memory; stage() waits for it. Each thread copies what
  // it will read.
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

  __device__ void compute_angles(int i, int position) {
    const MegakernelLayer& layer = p_.layers[i];
    if (layer.frequencies == nullptr || layer.frequencies == angles_of_) return;
    angles_of_ = layer.frequencies;  // layers with one table share dimension and factor
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
    named_barrier_sync(1, kMathThreads);
  }
  // Grid barrier: returns when all blocks have arrived and their writes are visible.
  __device__ void grid_barrier() {
    named_barrier_sync(1, kMathThreads);
    arrivals_wanted_ += static_cast<int>(gridDim.x);
    if (threadIdx.x == 0) count_release(&p_.counters->arrivals);
    wait_for(&p_.counters->arrivals, arrivals_wanted_);
  }

  // The last block to leave resets the counters for the next launch: all blocks have read them by
  // then.
  __device__ void leave() const {
    named_barrier_sync(1, kMathThreads);
    if (threadIdx.x != 0) return;
    if (atomicAdd(&p_.counters->exits, 1) != static_cast<int>(gridDim.x) - 1) return;
    p_.counters->arrivals = 0;
    p_.counters->heads_done = 0;
    p_.counters->exits = 0;
  }

  // Loads x into shared memory, as it is or normalised as rms_norm() does it. Null: zeros.
  __device__ void stage(const bf16* x, int count, bool norm, float epsilon) const {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kAtOnce = 4;  // loads in flight
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
      named_barrier_sync(1, kMathThreads);
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
    named_barrier_sync(1, kMathThreads);
  }

  __device__ void multiply(const Matrix& m, int order, int gemv, const MegakernelLayer& layer,
                           const bf16* before) {
    const Share share(m.pairs, order);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const bool gated = gemv == kGateUp, adds = gemv == kOutput || gemv == kDown;
    const int each = gated ? 1 : 2;  // outputs of a pair
    const bf16* residual = gemv == kOutput ? before : p_.hidden;
    int round = 0;
#pragma unroll 1
    for (int done = 0; done < share.count; done += kPairs, ++round) {
      const int pairs = min(kPairs, share.count - done);
      // The output that this thread finishes: other warps at each round.
      const int mine = (static_cast<int>(threadIdx.x) + round * 32) % kMathThreads;
      const int out = (share.first + (done + mine / each) * share.step) * each + mine % each;
      float rest = 0;
      if (adds && mine < pairs * each && residual != nullptr)
        rest = __bfloat162float(load_fresh(residual + out));
      float acc[kSums] = {};
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (i >= pairs) break;
#pragma unroll 1
        for (int begin = 0; begin < m.in; begin += m.tile_inputs) {
          barrier_wait(ring_buffer_.barriers->full[ring_buffer_.slot], ring_buffer_.parity);
          multiply_tile(reinterpret_cast<const bf16*>(ring_buffer_.stages +
                                                      ring_buffer_.slot * p_.slot_bytes),
                        s_.x + begin, min(m.tile_inputs, m.in - begin), acc[2 * i], acc[2 * i + 1]);
          __syncwarp();
          if (lane == 0) barrier_arrive(ring_buffer_.barriers->empty[ring_buffer_.slot]);
          ring_buffer_.advance(p_.slots);
        }
      }
      add_by_halves(acc);
      float* sums = s_.sums + round % 2 * kWarps * kSums;
      if (lane % 2 == 0) sums[warp * kSums + lane / 2] = acc[0];
      named_barrier_sync(1, kMathThreads);
      if (mine < pairs * each) finish(sums, gated ? 2 * mine : mine, out, gemv, layer, rest);
    }
  }

  __device__ static void multiply_tile(const bf16* tile, const bf16* x, int inputs, float& first,
                                       float& second) {
#pragma unroll 1
    for (int k = static_cast<int>(threadIdx.x) * 8; k < inputs; k += kMathThreads * 8) {
      float a[8], b[8], value[8];
      load8(tile + k, a);
      load8(tile + inputs + k, b);
      load8(x + k, value);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        first += a[i] * value[i];
        second += b[i] * value[i];
      }
    }
  }

  // Turns the sums of the warps, [warp][16], into one output.
  __device__ void finish(const float* sums, int at, int out, int gemv, const MegakernelLayer& layer,
                         float rest) const {
    const bool gated = gemv == kGateUp;
    float value = 0, up = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      value += sums[w * kSums + at];
      if (gated) up += sums[w * kSums + at + 1];
    }
    const auto* bias = static_cast<const bf16*>(gemv == kQkv      ? layer.qkv_bias
                                                : gemv == kOutput ? layer.output_bias
                                                : gemv == kGateUp ? layer.gate_up_bias
                                                                  : layer.down_bias);
    if (bias != nullptr) {
      value += __bfloat162float(bias[out]);
      if (gated) up += __bfloat162float(bias[p_.shape.ffn + out]);
    }
    bf16* y = gemv == kQkv ? p_.qkv : gemv == kGateUp ? p_.mlp : p_.hidden;
    y[out] = __float2bfloat16_rn((gated ? silu(value) * up : value) + rest);
  }

  const Params& p_;
  const Shared& s_;
  RingBuffer ring_buffer_;
  int arrivals_wanted_ = 0, heads_wanted_ = 0;
  const float* angles_of_ = nullptr;
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
  RingBuffer ring_buffer;
  ring_buffer.stages = shared.stages;
  ring_buffer.barriers = shared.barriers;
  if (threadIdx.x >= kMathThreads) {
    if (threadIdx.x == kMathThreads) fetch_weights(p, ring_buffer);
  } else {
    Worker<G>(p, shared, ring_buffer).run();
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
    const int stages = (in + kMaxTileInputs - 1) / kMaxTileInputs;
    plan.slot_bytes = std::max(plan.slot_bytes, ((in + stages - 1) / stages + 7) / 8 * 8 * 4);
  }
  const size_t fixed = Shared::fixed_bytes(s.hidden, static_cast<size_t>(plan.x_bytes));
  const auto most = static_cast<size_t>(traits.shared_bytes_per_block);
  if (fixed >= most) return plan;
  plan.slots = std::min(static_cast<int>(std::min(most - fixed, kMaxRingBufferBytes) /
                                         static_cast<size_t>(plan.slot_bytes)),
                        kMaxSlots);
  plan.bytes = fixed + static_cast<size_t>(plan.slots) * static_cast<size_t>(plan.slot_bytes);
  plan.offsets = std::min(static_cast<int>((most - plan.bytes) / 4), kMaxOffsets);
  plan.bytes += static_cast<size_t>(plan.offsets) * 4;
  return plan;
}

// The workspace: vectors between GEMVs, partial results of attention, counters.
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

}  // namespace megakernel_impl

bool megakernel_supports(const MegakernelShape& s) {
  const auto traits = device_traits();
  if (!traits || traits->compute_capability < 90) return false;
  if (s.num_layers < 1 || s.num_layers > kMaxMegakernelLayers || s.hidden % 8 != 0 ||
      s.ffn % 8 != 0 || s.num_kv_heads < 1 || s.num_heads % s.num_kv_heads != 0)
    return false;
  if (s.head_dim < 16 || s.head_dim > megakernel_impl::kMaxDim ||
      (s.head_dim & (s.head_dim - 1)) != 0)
    return false;
  if (s.num_heads / s.num_kv_heads > 8 ||
      s.num_kv_heads > std::min(megakernel_impl::kMaxKvHeads, traits->num_multiprocessors))
    return false;
  return megakernel_impl::plan_for(s, *traits).slots >= megakernel_impl::kMinSlots;
}

bool megakernel_supports_page_size(int32_t page_size) {
  return page_size > 0 && std::has_single_bit(static_cast<uint32_t>(page_size));
}

Result<size_t> megakernel_workspace_bytes(const MegakernelShape& shape) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  return megakernel_impl::Workspace(shape, traits.num_multiprocessors).bytes;
}

Status megakernel(const MegakernelArgs& args, const LaunchOptions& launch) {
  const MegakernelShape& s = args.shape;
  if (!megakernel_supports(s) || static_cast<int32_t>(args.layers.size()) != s.num_layers)
    return error(StatusCode::kUnimplemented, "megakernel: {} layers of {} with heads of {}",
                 args.layers.size(), s.hidden, s.head_dim);
  if (!megakernel_supports_page_size(args.kv.page_size))
    return error(StatusCode::kUnimplemented, "megakernel: pages of {} tokens", args.kv.page_size);
  if (args.entries.num_entries != 1 || args.entries.num_tokens != 1 ||
      args.kv.type != KvType::kBFloat16)
    return invalid_argument("megakernel: {} tokens in {} entries, but it takes one",
                            args.entries.num_tokens, args.entries.num_entries);
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  const megakernel_impl::Workspace at(s, traits.num_multiprocessors);
  if (args.workspace_bytes < at.bytes || !aligned(args.workspace, 256))
    return invalid_argument("megakernel: the workspace has {} bytes, but {} are needed",
                            args.workspace_bytes, at.bytes);
  const megakernel_impl::Plan plan = megakernel_impl::plan_for(s, traits);
  auto* base = static_cast<char*>(args.workspace);
  // 17 KB, most of it the layers' pointers: too much for the stack of a small thread.
  const auto params = std::make_unique<megakernel_impl::Params>();
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
  params->counters = reinterpret_cast<megakernel_impl::Counters*>(base + at.counters);
  params->page_shift = std::countr_zero(static_cast<uint32_t>(args.kv.page_size));
  params->x_bytes = plan.x_bytes;
  params->slot_bytes = plan.slot_bytes;
  params->slots = plan.slots;
  params->offsets = plan.offsets;
  std::copy(args.layers.begin(), args.layers.end(), params->layers);
  switch (megakernel_impl::group_of(s)) {
    case 1:
      return megakernel_impl::start<1>(*params, traits, plan.bytes, launch.stream);
    case 2:
      return megakernel_impl::start<2>(*params, traits, plan.bytes, launch.stream);
    case 4:
      return megakernel_impl::start<4>(*params, traits, plan.bytes, launch.stream);
    default:
      return megakernel_impl::start<8>(*params, traits, plan.bytes, launch.stream);
  }
}

}  // namespace espalier::kernels::cuda
