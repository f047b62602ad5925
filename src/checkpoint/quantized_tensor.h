// Readers of tensors whose elements are computed: GGUF's blocks, and matrices that safetensors
// folders spread over several tensors (FP8 and integers with scales, GPTQ, AWQ,
// compressed-tensors). Readers are immutable and thread-safe. They read from the mapped files of
// their tensors, which outlive them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/json_object.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_reader.h"

namespace espalier {

// `rows`: which row of the file each row is; empty for the file's order. The tensor's type can be
// read (dequantize is not null).
std::shared_ptr<const TensorReader> make_block_reader(const GgufTensor& tensor,
                                                      std::vector<int64_t> rows);

// F64 and integers as floats (rounded to the nearest), F8_E4M3 and F8_E5M2; null for a type that
// has no such reading.
std::shared_ptr<const TensorReader> make_plain_reader(const CheckpointTensor& tensor);

// Values of quant_method whose tensors combine_quantized() reads.
std::span<const std::string_view> quantization_methods();

// Replaces what belongs together by the matrix that it stands for:
//   X.weight F8_E4M3, F8_E5M2 or I8 with X.weight_scale_inv or X.weight_scale (a number, a row's, a
//   block's): DeepSeek, compressed-tensors, ModelOpt, fbgemm
//   X.qweight, X.qzeros, X.scales (GPTQ, with X.g_idx; AWQ) -> X.weight [out, in]
//   X.weight_packed, X.weight_scale, X.weight_shape, with X.weight_zero_point or X.weight_g_idx
//   (compressed-tensors) -> X.weight [out, in]
//   X.weight or X.weight_packed U8 with X.weight_scale, and of NVFP4 X.weight_scale_2 (ModelOpt) or
//   X.weight_global_scale (compressed-tensors): NVFP4, MXFP4 -> X.weight [out, in]
// and gives every other tensor of a type that can be read a reader. `config`: config.json's
// quantization_config, if there is one. kDataLoss names the tensor whose parts are missing or do
// not fit together; kUnimplemented a method or number of bits that is not known.
Status combine_quantized(const std::optional<JsonObject>& config,
                         std::vector<CheckpointTensor>& tensors);

}  // namespace espalier
