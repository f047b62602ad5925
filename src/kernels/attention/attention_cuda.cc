// Checks the arguments of attention on the GPU and chooses its kernels.
#include "kernels/attention/cuda.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/attention/attention_mla.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

// Codes need kernels of their own, which not every shape has.
Status check_e4m3(const AttentionShape& shape) {
  if (shape.type != DType::kBFloat16)
    return error(StatusCode::kUnimplemented,
                 "attention: keys and values of e4m3 need queries of bfloat16");
  if (shape.fixed_split > 0)
    return error(StatusCode::kUnimplemented,
                 "attention: results that do not depend on the step are not computed from keys and "
                 "values of e4m3; leave out one of the two");
  if (shape.head_dim % 16 != 0)
    return error(
        StatusCode::kUnimplemented,
        "attention: keys and values of e4m3 need heads of a multiple of 16 elements, these "
        "have {}; use bfloat16",
        shape.head_dim);
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  AttentionShape of_bfloat16 = shape;
  of_bfloat16.kv_e4m3 = false;
  if (tensor_core_shape(of_bfloat16, traits) && !sm90_shape(of_bfloat16, traits))
    return error(StatusCode::kUnimplemented,
                 "attention: keys and values of e4m3 need heads of 64 or 128 elements on a Hopper "
                 "GPU, these have {}; use bfloat16",
                 shape.head_dim);
  return {};
}

Status check(const AttentionShape& shape) {
  if (shape.num_heads < 1 || shape.num_kv_heads < 1 || shape.num_heads % shape.num_kv_heads != 0)
    return invalid_argument("attention: {} heads do not share {} kv heads evenly", shape.num_heads,
                            shape.num_kv_heads);
  if (shape.head_dim < 8 || shape.head_dim % 8 != 0 || shape.head_dim > kMaxHeadDim)
    return error(StatusCode::kUnimplemented,
                 "attention: head_dim is {}, but must be a multiple of 8 up to {}", shape.head_dim,
                 kMaxHeadDim);
  if (shape.widened_positions < 0 || (shape.widened_positions > 0 && !shape.kv_e4m3))
    return invalid_argument("attention: {} positions are to be widened, of keys and values of {}",
                            shape.widened_positions, shape.kv_e4m3 ? "e4m3" : "bfloat16");
  if (shape.page_size < 1 || shape.sliding_window < 0)
    return invalid_argument("attention: pages of {} tokens, a window of {}", shape.page_size,
                            shape.sliding_window);
  if (shape.fixed_split < 0 || shape.fixed_split % kKeyBlock != 0)
    return invalid_argument("attention: fixed_split is {}, but must be a multiple of {}",
                            shape.fixed_split, kKeyBlock);
  if (shape.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "attention: F16 is not supported");
  return shape.kv_e4m3 ? check_e4m3(shape) : Status();
}

KvType kv_type_of(const AttentionShape& shape) {
  if (shape.kv_e4m3) return KvType::kFloat8E4M3;
  return shape.type == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16;
}

Status check(const AttentionArgs& args) {
  ESP_RETURN_IF_ERROR(check(args.shape));
  const KvPlanes& kv = args.kv;
  if (kv.type != kv_type_of(args.shape) || kv.page_size != args.shape.page_size ||
      kv.num_kv_heads != args.shape.num_kv_heads || kv.head_dim != args.shape.head_dim)
    return invalid_argument(
        "attention: the pages ({}, {} tokens, {} kv heads of {}) are not of the shape that was "
        "planned ({}, {}, {} of {})",
        kv_type_name(kv.type), kv.page_size, kv.num_kv_heads, kv.head_dim,
        kv_type_name(kv_type_of(args.shape)), args.shape.page_size, args.shape.num_kv_heads,
        args.shape.head_dim);
  const int64_t vector = kv.type == KvType::kFloat8E4M3 ? 16 : 8;
  const bool vectors = kv.page_stride % vector == 0 && kv.token_stride % vector == 0 &&
                       kv.head_stride % vector == 0 && args.q_stride % 8 == 0 &&
                       args.out_stride % 8 == 0 && aligned(args.q, 16) && aligned(args.out, 16) &&
                       aligned(kv.k, 16) && aligned(kv.v, 16) && args.new_kv_stride % 8 == 0 &&
                       aligned(args.new_keys, 16) && aligned(args.new_values, 16);
  if (!vectors)
    return invalid_argument(
        "attention: q, out, the planes and new keys and values must start at 16 bytes with strides "
        "of multiples of 8 elements, of 16 for e4m3");
  if ((args.new_keys == nullptr) != (args.new_values == nullptr))
    return invalid_argument("attention: new keys and values come both or not at all");
  if (args.shape.kv_e4m3 && (args.new_keys != nullptr || args.kv.k == args.kv.v))
    return error(StatusCode::kUnimplemented,
                 "attention: of e4m3 there are keys and values in two planes of pages, no latents "
                 "and no rows beside the pages");
  return {};
}

}  // namespace

bool sm90_shape(const AttentionShape& shape, const DeviceTraits& traits) {
  return tensor_core_shape(shape, traits) && traits.compute_capability == 90 &&
         (shape.head_dim == 64 || shape.head_dim == 128);
}

// With a sliding window most of a shared segment is not visible, so sharing does not pay.
Result<bool> shares_segments(const AttentionShape& shape) {
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  return shape.fixed_split == 0 && shape.sliding_window == 0 && sm90_shape(shape, traits);
}

int32_t fixed_split(const AttentionShape& shape, int32_t max_entries, int32_t max_context) {
  constexpr int64_t kMostBytes = int64_t{2} << 30;
  int32_t split = 512;
  const auto bytes = [&] {
    return int64_t{max_entries} * shape.num_heads * ((max_context + split - 1) / split) *
           (shape.head_dim + 2) * 4;
  };
  while (split < max_context && bytes() > kMostBytes) split *= 2;
  return split;
}

bool tensor_core_shape(const AttentionShape& shape, const DeviceTraits& traits) {
  const int dim = shape.head_dim, group = shape.num_heads / shape.num_kv_heads;
  return shape.type == DType::kBFloat16 && group <= kDecodeRows &&
         traits.compute_capability >= 80 && traits.shared_bytes_per_block >= 160 * 1024 &&
         (dim == 64 || dim == 80 || dim == 96 || dim == 128 || dim == 256);
}

int32_t decode_blocks(const AttentionShape& shape, const DeviceTraits& traits) {
  if (shape.kv_e4m3) return traits.num_multiprocessors * kCodeBlocks;
  return traits.num_multiprocessors * (shape.head_dim > 128 ? 1 : 2);
}

Result<size_t> attention_workspace_bytes(const AttentionShape& shape, int32_t max_entries,
                                         int32_t /*max_tokens*/) {
  ESP_RETURN_IF_ERROR(check(shape));
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  const size_t bytes = plan_view(shape, max_entries, traits, nullptr).bytes;
  return mla_shape(shape, traits) ? std::max(bytes, mla_workspace_bytes(traits)) : bytes;
}

namespace {

// By tensor cores. REQUIRES: tensor_core_shape().
Status attention_fast(const AttentionArgs& args, const DeviceTraits& traits,
                      const LaunchOptions& launch) {
  const int blocks = decode_blocks(args.shape, traits);
  const PlanView plan = plan_view(args.shape, args.entries.num_entries, traits, args.workspace);
  if (args.workspace_bytes < plan.bytes)
    return invalid_argument("attention: the workspace has {} bytes, but {} entries need {}",
                            args.workspace_bytes, args.entries.num_entries, plan.bytes);
  if (args.shape.fixed_split > 0)
    return attention_deterministic(args, plan, traits.num_multiprocessors, launch);
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  if (args.entries.max_query_tokens * group > kDecodeRows) {
    if (plan.widen_begin != nullptr)
      ESP_RETURN_IF_ERROR(attention_widen(args, plan, traits.num_multiprocessors, launch));
    ESP_RETURN_IF_ERROR(sm90_shape(args.shape, traits)
                            ? attention_prefill_sm90(args, plan, traits.num_multiprocessors, launch)
                            : attention_prefill(args, plan, launch));
  }
  if (plan.entry_segments != nullptr && args.entries.shared.segments != nullptr)
    ESP_RETURN_IF_ERROR(attention_cascade(args, plan, launch));
  return attention_decode(args, plan, blocks, launch);
}

}  // namespace

Status attention(const AttentionArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check(args));
  if (args.entries.num_entries == 0 || args.entries.num_tokens == 0) return {};
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  if (mla_shape(args.shape, traits) && args.kv.k == args.kv.v && args.softcap == 0 &&
      args.sinks == nullptr && args.workspace_bytes >= mla_workspace_bytes(traits))
    return attention_mla(args, traits, launch);
  if (!tensor_core_shape(args.shape, traits)) return attention_generic(args, launch);
  ESP_RETURN_IF_ERROR(attention_fast(args, traits, launch));
  return args.last_seen != nullptr ? attention_ahead(args, launch) : Status();
}

}  // namespace espalier::kernels::cuda
