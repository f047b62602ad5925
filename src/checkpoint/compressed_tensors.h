// A folder's matrices in 4 or 8 bits, as compressed-tensors stores them (vLLM's and transformers'
// format of safetensors): plans, which tensor_writer.h carries out. They borrow the checkpoint that
// they were made of. Thread-safe.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/compressed_rounding.h"
#include "checkpoint/rounded_matrices.h"
#include "checkpoint/tensor_writer.h"

namespace espalier {

std::span<const CompressedFormat> compressed_formats();
const CompressedFormat* find_compressed_format(std::string_view name);  // null: none of these

struct CompressedPlan {
  std::vector<TensorToWrite> tensors;
  std::string quantization_config;  // JSON, of config.json's field
};

// The module whose matrix the tensor is ("model.layers.0.mlp.up_proj"), where the format rounds it:
// one of a layer that is named *_proj and has sizes that the format takes.
std::optional<std::string_view> rounded_module(const CheckpointTensor& tensor,
                                               const CompressedFormat& format);

// Other tensors than those stay as they are and are named in the configuration's "ignore".
// rounded: matrices that were rounded before, borrowed like the checkpoint; the others are rounded
// while they are written, but for FP8_STATIC, whose others stay. Null: there are none.
// kUnimplemented where the checkpoint is no folder of numbers, kInvalidArgument where it has no
// matrix that is rounded.
Result<CompressedPlan> plan_compressed(const Checkpoint& checkpoint, const CompressedFormat& format,
                                       const RoundedMatrices* rounded = nullptr);

}  // namespace espalier
