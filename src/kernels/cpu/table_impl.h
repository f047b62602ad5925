// The table of one instruction set, from the generic sources. Included after one of the simd
// headers by a file that is compiled with the matching flags.
#pragma once

#include "kernels/activation/cpu_impl.h"
#include "kernels/attention/cpu_impl.h"
#include "kernels/cpu/table.h"
#include "kernels/linear/cpu_blocks_impl.h"
#include "kernels/linear/cpu_impl.h"
#include "kernels/logits/cpu_impl.h"
#include "kernels/lora/cpu_impl.h"
#include "kernels/norm/cpu_impl.h"
#include "kernels/rope/cpu_impl.h"

namespace espalier::kernels {
namespace {

constexpr CpuTable kGenericTable = {
    .linear_f32 = linear_units<false>,
    .linear_bf16 = linear_units<true>,
    .prepare_bf16 = prepare_bf16_as_f32,
    .prepared_bytes = sizeof(float),
    .linear_blocks = {linear_blocks<BlockFormat::kQ8_0>, linear_blocks<BlockFormat::kQ4_0>,
                      linear_blocks<BlockFormat::kQ4_1>, linear_blocks<BlockFormat::kQ5_0>,
                      linear_blocks<BlockFormat::kQ5_1>, linear_blocks<BlockFormat::kQ4K>,
                      linear_blocks<BlockFormat::kQ5K>, linear_blocks<BlockFormat::kQ6K>,
                      linear_blocks<BlockFormat::kQ2K>, linear_blocks<BlockFormat::kQ3K>,
                      linear_blocks<BlockFormat::kIq4Nl>, linear_blocks<BlockFormat::kIq4Xs>,
                      linear_blocks<BlockFormat::kMxfp4>},
    .prepare_blocks = prepare_blocks_rows,
    .rms_norm = rms_norm_row,
    .layer_norm = layer_norm_row,
    .silu_mul = silu_mul_run,
    .gelu_mul = gelu_mul_run,
    .clamped_swiglu = clamped_swiglu_run,
    .add_scaled = add_scaled_run,
    .softcap = softcap_run,
    .add = add_run,
    .scale = scale_run,
    .rope_half = rope_half_run,
    .to_bf16 = to_bf16_run,
    .from_bf16 = from_bf16_run,
    .attention = attention_tile,
    .attention_state = attention_state_floats,
    .attention_scratch = attention_scratch_floats,
    .attention_combine = attention_combine_parts,
    .max = max_run,
    .sum_exp = sum_exp_run,
    .find_above = find_above_run,
    .lora_shrink_f32 = lora_shrink_row<float>,
    .lora_shrink_bf16 = lora_shrink_row<uint16_t>,
    .lora_expand_f32 = lora_expand_row<float>,
    .lora_expand_bf16 = lora_expand_row<uint16_t>,
};

}  // namespace
}  // namespace espalier::kernels
