// A folder's matrices in 4 or 8 bits, as compressed-tensors stores them (vLLM's and transformers'
// format of safetensors): plans, which tensor_writer.h carries out. They borrow the checkpoint that
// they were made of. Thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_writer.h"

namespace espalier {

// How matrices are rounded. Each is symmetric around 0 but INT4_ZP.
//   FP8        e4m3, a scale for each row; activations e4m3, a scale for each token
//   FP8_BLOCK  e4m3, a scale for each 128 x 128
//   INT8       a scale for each row; activations of 8 bits, a scale for each token
//   INT4       a scale for 128 inputs of a row; of a few clippings that of the least square error
//   INT4_ZP    the same with a zero point beside each scale
struct CompressedFormat {
  std::string_view name;
  enum class Kind : uint8_t { kFp8, kFp8Block, kInt8, kInt4, kInt4Zero } kind;
};
std::span<const CompressedFormat> compressed_formats();
const CompressedFormat* find_compressed_format(std::string_view name);  // null: none of these

struct CompressedPlan {
  std::vector<TensorToWrite> tensors;
  std::string quantization_config;  // JSON, of config.json's field
};

// Matrices of layers whose modules are named *_proj are rounded where the format takes their sizes;
// all other tensors stay as they are and are named in the configuration's "ignore".
// kUnimplemented where the checkpoint is no folder of numbers, kInvalidArgument where it has no
// matrix that is rounded.
Result<CompressedPlan> plan_compressed(const Checkpoint& checkpoint,
                                       const CompressedFormat& format);

}  // namespace espalier
