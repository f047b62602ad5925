// The format in which each weight matrix is stored in memory: elements of one type, a checkpoint's
// quantised blocks as they are, or blocks that are made at load. The format of a matrix follows
// from its layout (weight_layout.h), from the requested types and from the checkpoint.
// Plain values and pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/linear/int4_weights.h"
#include "kernels/moe/int4_experts.h"
#include "models/decoder_spec.h"
#include "models/weight_id.h"
#include "models/weight_layout.h"
#include "tensor/block_format.h"
#include "tensor/dtype.h"

namespace espalier {

struct WeightTypes {
  DType type = DType::kBFloat16;  // of what is not in blocks: kFloat32 or kBFloat16
  bool keep_blocks = false;       // blocks that kernels read stay as they are stored
  // GPU: matrices of layers are rounded to e4m3 with a scale for each row, or to 4 bits with a
  // scale for each row and group of inputs; nvfp4, beside int4: those 4 bits are NVFP4's.
  bool e4m3 = false, int4 = false, nvfp4 = false;
  bool mxfp4 = false;  // GPU: experts are rounded to MXFP4
  // The formats that other matrices are quantised to, and embedding and head; none: `type`.
  std::optional<BlockFormat> quantize, quantize_vocabulary;

  WeightTypes() = default;
  WeightTypes(DType numbers) : type(numbers) {}  // NOLINT: a dtype is all of it
};

// dtype: as the user stated it: auto, blocks that kernels read stay as the checkpoint has them;
// float32, bfloat16: they become numbers; q8_0, q4_k: what is not in such blocks is rounded to 8,
// or to 4 (the vocabulary's matrices to 6), bits; fp8, int4, nvfp4, mxfp4: on a GPU. type: of
// numbers, as follows from it.
WeightTypes choose_weight_types(const std::string& dtype, DType type);

// The stored format of a tensor; see WeightSource::stored_format.
using StoredFormatOf = std::function<std::optional<BlockFormat>(std::string_view name)>;

// Codes in which a GPU has a matrix instead of numbers.
struct WeightCodes {
  bool e4m3 = false;
  bool block_scales = false;  // of e4m3: for 128 x 128 weights instead of for a row
  // A stack of experts in the records of kernels/moe/mxfp4_weights.h; of a checkpoint's tensor:
  // such blocks.
  bool mxfp4 = false;
  kernels::cuda::Int4Format int4;  // a stack of experts: in the records of int4_experts.h
  // Of int4: which column of the checkpoint each input is, [in]; null: their own order.
  std::shared_ptr<const std::vector<int32_t>> int4_columns;
};
// The codes that a checkpoint's tensor is stored in.
using StoredCodesOf = std::function<WeightCodes(std::string_view name)>;

struct StorageFormat {
  enum class Scales : uint8_t {
    kNone,     // elements
    kInBlock,  // each block begins or ends with the scales of its elements (block_format.h)
    kRow,      // e4m3: float32, one for each row
    kBlock,    // e4m3: float32, one for each 128 x 128
    kGroup,    // int4: float16, one for each row and group of inputs; MXFP4: exponents
  };
  DType type = DType::kBFloat16;    // of elements that are not in blocks
  std::vector<BlockFormat> blocks;  // of each WeightBlock; empty: elements of `type`
  bool stored = false;              // the blocks are the checkpoint's own
  WeightCodes codes;                // of a GPU; `type` is what they are multiplied with

  Scales scales() const {
    return codes.block_scales                    ? Scales::kBlock
           : codes.e4m3                          ? Scales::kRow
           : codes.int4.group > 0 || codes.mxfp4 ? Scales::kGroup
           : blocks.empty()                      ? Scales::kNone
                                                 : Scales::kInBlock;
  }
  // Neighbours in a row that are quantised together; 1: elements.
  int64_t group_size() const { return blocks.empty() ? 1 : block_format_info(blocks[0]).elements; }
  // Of block `index` of the layout, `rows` of it.
  int64_t size_bytes(size_t index, int64_t rows, int64_t in_features) const;
};
// Whether a GPU may have a weight in codes: a matrix of a layer that GEMMs alone read. The kernels
// for small batches of experts read their layers' shared expert too: see experts_are_e4m3().
bool may_be_codes(const DecoderSpec& spec, WeightId id);
// The codes that a GPU has such a matrix in: those of the checkpoint where all its tensors have
// them, or what `types` rounds it to, as far as GEMMs take its sizes. stored: null for none.
WeightCodes device_codes(const MatrixLayout& layout, const WeightTypes& types,
                         const StoredCodesOf& stored);
// Whether a GPU has all experts of a layer in e4m3, and then its shared expert where that can be;
// experts of which some are stored so become elements, as do those that lie in one tensor.
bool experts_are_e4m3(const ExpertsLayout& layout, const WeightTypes& types,
                      const StoredCodesOf& stored);
// The same of 4 bits: a tensor for each matrix, all of it on the device, in the inputs' own order.
// Returns the inputs of a group, 128, or 32 where some of the layer's matrices have such; 0: no.
int32_t experts_int4_group(const ExpertsLayout& layout, const WeightTypes& types,
                           const StoredCodesOf& stored);
// The records of such an expert's matrix: of gate and up, or of down.
kernels::cuda::Int4ExpertShape int4_expert_shape(const MatrixLayout& layout, int32_t group);
// Whether a GPU rounds a layer's experts to MXFP4: a tensor for each matrix, all of it on the
// device.
bool experts_round_to_mxfp4(const ExpertsLayout& layout, const WeightTypes& types);
// The same of experts that are stored so (a GGUF's), whose rounding changes no number.
bool experts_are_mxfp4(const ExpertsLayout& layout, const StoredCodesOf& stored);
// Which of these holds.
enum class ExpertCodes : uint8_t { kNone, kE4m3, kInt4, kMxfp4 };
ExpertCodes expert_codes(const ExpertsLayout& layout, const WeightTypes& types,
                         const StoredCodesOf& stored);
// Whether a GPU rounds weights as `types` states: an error names a matrix that the division among
// ranks keeps from it, an expert that has no tensor of its own, or a matrix of a model of which
// none takes the format. Others of odd sizes stay elements.
Status check_rounding(const DecoderSpec& spec, const WeightLayout& layout,
                      const WeightTypes& types);
// gate_up: packed for linear_silu_mul, which takes one format for both.
StorageFormat storage_format(const MatrixLayout& layout, bool gate_up, const WeightTypes& types,
                             const StoredFormatOf& stored);

// Bytes of weights as they are stored in memory, by the type's name ("BF16", "Q4_K", ...).
// codes: of tensors that stay as they are; null: none.
std::map<std::string, int64_t> weight_memory(const DecoderSpec& spec, const WeightTypes& types,
                                             const StoredFormatOf& stored,
                                             const StoredCodesOf& codes = nullptr);

}  // namespace espalier
