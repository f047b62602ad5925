// In what a decoder's matrices are held on the CPU: numbers of one type, the blocks of a checkpoint
// as they are, or blocks that are made at load. Which matrix is which follows from the layout
// (weight_layout.h) and from what the checkpoint has.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "models/decoder_spec.h"
#include "models/weight_layout.h"
#include "tensor/block_format.h"
#include "tensor/dtype.h"

namespace espalier {

struct WeightTypes {
  DType type = DType::kBFloat16;  // of what is not in blocks: kFloat32 or kBFloat16
  bool keep_blocks = false;       // blocks that kernels read stay as they are stored
  // What other matrices are rounded to, and embedding and head; nothing: `type`.
  std::optional<BlockFormat> quantize, quantize_vocabulary;

  WeightTypes() = default;
  WeightTypes(DType numbers) : type(numbers) {}  // NOLINT: a dtype says it all
};

// dtype: as the user stated it: auto, blocks that kernels read stay as the checkpoint has them;
// float32, bfloat16: they become numbers; q8_0, q4_k: what is not in such blocks is rounded to 8,
// or to 4 (the vocabulary's matrices to 6), bits. type: of numbers, as follows from it.
WeightTypes choose_weight_types(const std::string& dtype, DType type);

// The stored format of a tensor; see WeightSource::stored_format.
using StoredFormat = std::function<std::optional<BlockFormat>(std::string_view name)>;

struct MatrixHolding {
  DType type = DType::kBFloat16;
  std::vector<BlockFormat> formats;  // of each block; empty: numbers of `type`
  bool stored = false;               // they are the checkpoint's own
};
// gate_up: packed for linear_silu_mul, which wants one format.
MatrixHolding holding_of(const MatrixLayout& layout, bool gate_up, const WeightTypes& types,
                         const StoredFormat& stored);

// Bytes of weights as they are held, by the type's name ("BF16", "Q4_K", ...).
std::map<std::string, int64_t> weight_memory(const DecoderSpec& spec, const WeightTypes& types,
                                             const StoredFormat& stored);

}  // namespace espalier
