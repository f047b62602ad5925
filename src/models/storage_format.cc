#include "models/storage_format.h"

#include <algorithm>

#include "kernels/linear/op.h"
#include "kernels/linear/quantize_rows.h"
#include "models/program/cpu_model.h"
#include "models/program/lower.h"
#include "models/program/passes.h"

namespace espalier {
namespace {

// Adds up what the layout's tensors take.
class Memory {
 public:
  Memory(const WeightTypes& types, const StoredFormatOf& stored, const StoredCodesOf& codes)
      : types_(types), stored_(stored), codes_(codes) {}

  // coded: by may_be_codes().
  void matrix(const MatrixLayout& layout, bool gate_up = false, bool coded = false) {
    StorageFormat format = storage_format(layout, gate_up, types_, stored_);
    if (coded) format.codes = device_codes(layout, types_, codes_);
    for (size_t i = 0; i < layout.blocks.size(); ++i) {
      const std::string_view name = format.codes.e4m3             ? "F8_E4M3"
                                    : format.codes.int4.nvfp4()   ? "NVFP4"
                                    : format.codes.int4.group > 0 ? "INT4"
                                    : format.blocks.empty()
                                        ? dtype_name(format.type)
                                        : block_format_info(format.blocks[i]).name;
      bytes_[std::string(name)] += format.size_bytes(i, layout.blocks[i].rows, layout.in_features);
    }
  }
  void numbers(DType type, int64_t count) {
    if (count > 0) {
      bytes_[std::string(dtype_name(type))] += count * static_cast<int64_t>(dtype_size(type));
    }
  }
  ExpertCodes codes_of(const ExpertsLayout& experts) const {
    return expert_codes(experts, types_, codes_);
  }
  int32_t int4_group_of(const ExpertsLayout& experts) const {
    return experts_int4_group(experts, types_, codes_);
  }
  void int4(const MlpLayout& expert, int32_t group) {
    for (const MatrixLayout* matrix : {&expert.gate_up, &expert.down})
      bytes_["INT4"] += int4_expert_shape(*matrix, group).size_bytes();
    vector(expert.gate_up_bias);
    vector(expert.down_bias);
  }
  // Of one tensor for all, rows of whole blocks or nearly; mxfp4: which is stored so.
  void experts(int64_t rows, int64_t in_features, bool mxfp4) {
    std::optional<BlockFormat> format = types_.quantize;
    if (mxfp4 && types_.keep_blocks) format = BlockFormat::kMxfp4;
    if (!format) return numbers(types_.type, rows * in_features);
    bytes_[std::string(block_format_info(*format).name)] +=
        kernels::packed_bytes(*format, rows, in_features);
  }
  void mxfp4(const MlpLayout& expert) {
    for (const MatrixLayout* matrix : {&expert.gate_up, &expert.down}) {
      bytes_[std::string(block_format_info(BlockFormat::kMxfp4).name)] +=
          kernels::packed_bytes(BlockFormat::kMxfp4, matrix->out_features(), matrix->in_features);
    }
    vector(expert.gate_up_bias);
    vector(expert.down_bias);
  }
  void vector(const VectorLayout& layout) { numbers(DType::kFloat32, layout.size()); }
  void mlp(const MlpLayout& layout, bool fused, bool coded = false) {
    matrix(layout.gate_up, fused, coded);
    vector(layout.gate_up_bias);
    matrix(layout.down, false, coded);
    vector(layout.down_bias);
  }
  std::map<std::string, int64_t> take() { return std::move(bytes_); }

 private:
  const WeightTypes& types_;
  const StoredFormatOf& stored_;
  const StoredCodesOf& codes_;
  std::map<std::string, int64_t> bytes_;
};

// with_activation: see program::weights_with_activation().
void add_layer(const DecoderSpec& spec, size_t index, const LayerLayout& layout,
               const std::vector<WeightId>& with_activation, const WeightTypes& types,
               Memory& memory) {
  const LayerSpec& layer = spec.layers[index];
  const auto fuses = [&](WeightKind kind) {
    const WeightId id{kind, static_cast<int32_t>(index)};
    return std::ranges::find(with_activation, id) != with_activation.end();
  };
  for (const VectorLayout* vector :
       {&layout.input_norm, &layout.qkv_bias, &layout.q_norm, &layout.k_norm, &layout.sinks,
        &layout.latent.q_a_norm, &layout.latent.kv_a_norm, &layout.attention_output_bias,
        &layout.attention_output_norm, &layout.post_attention_norm, &layout.experts.router_bias,
        &layout.experts.router_correction, &layout.mlp_output_norm}) {
    memory.vector(*vector);
  }
  for (const MatrixLayout* matrix : {&layout.qkv, &layout.latent.q_a, &layout.latent.q,
                                     &layout.latent.kv_a, &layout.attention_output}) {
    memory.matrix(*matrix, false, true);
  }
  memory.matrix(layout.experts.router);
  memory.matrix(layout.experts.shared_gate);
  memory.numbers(types.type,  // cut up by heads, never in blocks
                 layout.latent.kv_b.out_features() * layout.latent.kv_b.in_features);
  const ExpertCodes codes = memory.codes_of(layout.experts);
  const bool e4m3 = codes == ExpertCodes::kE4m3, int4 = codes == ExpertCodes::kInt4;
  memory.mlp(layout.mlp, fuses(WeightKind::kGateUp), !layer.experts || e4m3 || int4);
  if (!layer.experts) return;
  const ExpertsSpec& experts = *layer.experts;
  if (codes == ExpertCodes::kMxfp4) {
    for (const MlpLayout& expert : layout.experts.experts) memory.mxfp4(expert);
    return;
  }
  if (int4) {
    const int32_t group = memory.int4_group_of(layout.experts);
    for (const MlpLayout& expert : layout.experts.experts) memory.int4(expert, group);
    return;
  }
  for (const MlpLayout& expert : layout.experts.experts) {
    memory.mlp(expert, fuses(WeightKind::kExpertGateUp), e4m3);
  }
  if (layout.experts.experts.empty()) {
    memory.experts(int64_t{3} * experts.router.num_experts * experts.expert.intermediate_size,
                   spec.hidden_size, spec.names.experts == WeightNames::Experts::kFusedMxfp4);
  }
}

// Q8_0 instead of blocks of 256 that would be filled up by more than an eighth.
BlockFormat fitting(BlockFormat wanted, int64_t in_features) {
  const int64_t elements = block_format_info(wanted).elements;
  const int64_t padded = (in_features + elements - 1) / elements * elements;
  return 8 * in_features < 7 * padded ? BlockFormat::kQ8_0 : wanted;
}

}  // namespace

WeightTypes choose_weight_types(const std::string& dtype, DType type) {
  WeightTypes types(type);
  types.keep_blocks = dtype != "float32" && dtype != "float" && dtype != "bfloat16";
  types.e4m3 = dtype == "fp8";
  types.nvfp4 = dtype == "nvfp4";
  types.int4 = dtype == "int4" || types.nvfp4;
  types.mxfp4 = dtype == "mxfp4";
  if (dtype == "q8_0") types.quantize = types.quantize_vocabulary = BlockFormat::kQ8_0;
  if (dtype == "q4_k") {
    types.quantize = BlockFormat::kQ4K;
    types.quantize_vocabulary = BlockFormat::kQ6K;
  }
  return types;
}

int64_t StorageFormat::size_bytes(size_t index, int64_t rows, int64_t in_features) const {
  if (codes.block_scales) {
    return rows * in_features + kernels::cuda::scale_blocks(rows) *
                                    kernels::cuda::block_scale_stride(in_features) *
                                    static_cast<int64_t>(sizeof(float));
  }
  if (codes.e4m3) return rows * (in_features + static_cast<int64_t>(sizeof(float)));
  if (codes.int4.group > 0) return kernels::cuda::int4_bytes(codes.int4, rows, in_features);
  if (blocks.empty()) return rows * in_features * static_cast<int64_t>(dtype_size(type));
  return kernels::packed_bytes(blocks[index], rows, in_features);
}

bool may_be_codes(const DecoderSpec& spec, WeightId id) {
  switch (id.kind) {
    case WeightKind::kQkv:
    case WeightKind::kLatentQA:
    case WeightKind::kLatentQ:
    case WeightKind::kLatentKvA:
    case WeightKind::kAttentionOutput:
      return true;
    case WeightKind::kGateUp:
    case WeightKind::kDown:
      return !spec.layers[static_cast<size_t>(id.index)].experts;
    default:
      return false;
  }
}

namespace {

// kernels/linear/cuda.h
bool takes_e4m3(const MatrixLayout& layout) {
  return layout.local_rows() % 16 == 0 && layout.local_columns() % 16 == 0;
}
// Each block of rows, and each rank's part of it, begins with a block of scales, and ends with one
// but for the last rows and inputs of a whole matrix.
bool takes_block_scales(const MatrixLayout& layout) {
  constexpr int64_t kBlock = kernels::cuda::kScaleBlock;
  const bool whole = layout.shard.whole();
  if (!takes_e4m3(layout) || (!whole && layout.local_columns() % kBlock != 0)) return false;
  return (whole && layout.blocks.size() == 1) ||
         std::ranges::all_of(layout.blocks, [&](const WeightBlock& block) {
           const TensorSlice slice = layout.slice_of(block);
           return slice.first_row % kBlock == 0 && slice.rows % kBlock == 0;
         });
}
using Columns = std::shared_ptr<const std::vector<int32_t>>;
bool same_columns(const Columns& a, const Columns& b) {
  return a == b || (a != nullptr && b != nullptr && *a == *b);
}
bool takes_int4(const MatrixLayout& layout) {
  return layout.shard.whole() && layout.out_features() % 16 == 0 && layout.in_features % 64 == 0 &&
         std::ranges::all_of(layout.blocks, [](const WeightBlock& block) {
           return block.rows % kernels::cuda::kInt4Rows == 0;
         });
}

}  // namespace

WeightCodes device_codes(const MatrixLayout& layout, const WeightTypes& types,
                         const StoredCodesOf& stored) {
  if (layout.empty() || layout.precision != Precision::kWeights || layout.transposed) return {};
  bool all_e4m3 = stored != nullptr && takes_e4m3(layout);
  bool all_blocks = stored != nullptr && takes_block_scales(layout);
  bool all_int4 = stored != nullptr && takes_int4(layout);
  kernels::cuda::Int4Format int4{.group = 128};
  Columns columns;  // one order for all blocks
  for (size_t i = 0; i < layout.blocks.size() && (all_e4m3 || all_blocks || all_int4); ++i) {
    const WeightCodes codes = stored(layout.blocks[i].name);
    all_e4m3 = all_e4m3 && codes.e4m3 && !codes.block_scales;
    all_blocks = all_blocks && codes.block_scales;
    if (i == 0) columns = codes.int4_columns;
    all_int4 = all_int4 && codes.int4.group > 0 && same_columns(columns, codes.int4_columns) &&
               (i == 0 || codes.int4.nvfp4() == int4.nvfp4());
    int4.group = std::min(int4.group, codes.int4.group);
    int4.zeros = int4.zeros || codes.int4.zeros;
  }
  if (all_e4m3) return {.e4m3 = true};
  if (all_blocks) return {.e4m3 = true, .block_scales = true};
  if (all_int4) return {.int4 = int4, .int4_columns = std::move(columns)};
  if (types.e4m3 && takes_e4m3(layout)) return {.e4m3 = true};
  if (types.int4 && takes_int4(layout)) {
    return {.int4 = {.group = types.nvfp4                     ? kernels::cuda::kNvfp4Group
                              : layout.in_features % 128 == 0 ? 128
                                                              : 32}};
  }
  return {};
}

bool experts_are_e4m3(const ExpertsLayout& layout, const WeightTypes& types,
                      const StoredCodesOf& stored) {
  if (layout.experts.empty()) return false;
  const bool blocks = device_codes(layout.experts[0].gate_up, types, stored).block_scales;
  return std::ranges::all_of(layout.experts, [&](const MlpLayout& expert) {
    const WeightCodes first = device_codes(expert.gate_up, types, stored);
    const WeightCodes last = device_codes(expert.down, types, stored);
    return first.e4m3 && last.e4m3 && first.block_scales == blocks && last.block_scales == blocks;
  });
}

namespace {

// A tensor of its own for down, or for gate and for up, all of it on the device.
bool is_expert(const MatrixLayout& matrix, size_t blocks) {
  return matrix.precision == Precision::kWeights && !matrix.fused && !matrix.transposed &&
         matrix.shard.whole() && matrix.blocks.size() == blocks &&
         matrix.blocks[0].rows == matrix.blocks[blocks - 1].rows;
}

}  // namespace

int32_t experts_int4_group(const ExpertsLayout& layout, const WeightTypes& types,
                           const StoredCodesOf& stored) {
  using kernels::cuda::kInt4SmallGroup, kernels::cuda::kInt4SmallInputs;
  if (layout.experts.empty() || experts_round_to_mxfp4(layout, types)) return 0;
  int32_t group = kernels::cuda::kInt4ExpertInputs;
  const auto takes = [&](const MatrixLayout& matrix, size_t blocks) {
    if (!is_expert(matrix, blocks) || matrix.in_features % kInt4SmallInputs != 0) return false;
    const WeightCodes codes = device_codes(matrix, types, stored);
    if (codes.int4.group == 0 || codes.int4.nvfp4() || codes.int4_columns != nullptr) return false;
    // Groups of 128 are four of 32 where another matrix has those.
    const bool whole = codes.int4.group == group && matrix.in_features % group == 0;
    if (!whole) group = kInt4SmallGroup;
    return true;
  };
  const bool all = std::ranges::all_of(layout.experts, [&](const MlpLayout& expert) {
    return takes(expert.gate_up, 2) && takes(expert.down, 1);
  });
  return all ? group : 0;
}

kernels::cuda::Int4ExpertShape int4_expert_shape(const MatrixLayout& layout, int32_t group) {
  return {.out_features = static_cast<int32_t>(layout.out_features()),
          .in_features = static_cast<int32_t>(layout.in_features),
          .gated = layout.blocks.size() == 2,
          .group = group};
}

namespace {

// moe/mxfp4_weights.h
bool takes_mxfp4(const MlpLayout& expert) {
  return is_expert(expert.gate_up, 2) && is_expert(expert.down, 1) &&
         expert.gate_up.in_features % 8 == 0 && expert.down.in_features % 8 == 0;
}

}  // namespace

bool experts_round_to_mxfp4(const ExpertsLayout& layout, const WeightTypes& types) {
  return types.mxfp4 && !layout.experts.empty() && std::ranges::all_of(layout.experts, takes_mxfp4);
}

bool experts_are_mxfp4(const ExpertsLayout& layout, const StoredCodesOf& stored) {
  const auto is_stored = [&](const MatrixLayout& matrix) {
    return std::ranges::all_of(matrix.blocks,
                               [&](const WeightBlock& block) { return stored(block.name).mxfp4; });
  };
  return stored != nullptr && !layout.experts.empty() &&
         std::ranges::all_of(layout.experts, [&](const MlpLayout& expert) {
           return takes_mxfp4(expert) && is_stored(expert.gate_up) && is_stored(expert.down);
         });
}

ExpertCodes expert_codes(const ExpertsLayout& layout, const WeightTypes& types,
                         const StoredCodesOf& stored) {
  if (experts_round_to_mxfp4(layout, types) || experts_are_mxfp4(layout, stored))
    return ExpertCodes::kMxfp4;
  if (experts_are_e4m3(layout, types, stored)) return ExpertCodes::kE4m3;
  return experts_int4_group(layout, types, stored) > 0 ? ExpertCodes::kInt4 : ExpertCodes::kNone;
}

namespace {

// The matrices that a GPU rounds to e4m3 or to 4 bits, of e4m3 experts too.
std::vector<const MatrixLayout*> rounded_matrices(const WeightLayout& layout, bool of_experts) {
  std::vector<const MatrixLayout*> out;
  for (const LayerLayout& layer : layout.layers) {
    for (const MatrixLayout* matrix : {&layer.qkv, &layer.latent.q_a, &layer.latent.q,
                                       &layer.latent.kv_a, &layer.attention_output}) {
      out.push_back(matrix);
    }
    const bool has_experts = !layer.experts.router.empty();
    if (!has_experts || of_experts) out.insert(out.end(), {&layer.mlp.gate_up, &layer.mlp.down});
    if (!of_experts) continue;
    for (const MlpLayout& expert : layer.experts.experts) {
      out.insert(out.end(), {&expert.gate_up, &expert.down});
    }
  }
  std::erase_if(out, [](const MatrixLayout* matrix) { return matrix->empty(); });
  return out;
}

Status check_mxfp4(const DecoderSpec& spec, const WeightLayout& layout, const WeightTypes& types) {
  const bool stored = spec.names.experts == WeightNames::Experts::kFusedMxfp4;
  for (const LayerLayout& layer : layout.layers) {
    const ExpertsLayout& of = layer.experts;
    if (of.router.empty() || stored || experts_round_to_mxfp4(of, types)) continue;
    if (of.experts.empty()) {
      return error(StatusCode::kUnimplemented,
                   "'{}' has all experts in one tensor, which is not rounded to MXFP4; leave "
                   "--quantization out",
                   of.fused_gate_up);
    }
    const MatrixLayout& first = of.experts.front().gate_up;
    if (!first.shard.whole()) {
      return error(StatusCode::kUnimplemented,
                   "'{}' is divided among {} ranks, but MXFP4 needs whole experts; give --ep-size "
                   "as many ranks as --tp-size, or use --quantization fp8",
                   first.blocks.front().name, first.shard.num_ranks);
    }
    return error(StatusCode::kUnimplemented,
                 "'{}' cannot be rounded to MXFP4: each matrix has to be a tensor [out, in] of its "
                 "own, its inputs a multiple of 8; leave --quantization out",
                 first.blocks.front().name);
  }
  return Status();
}

}  // namespace

Status check_rounding(const DecoderSpec& spec, const WeightLayout& layout,
                      const WeightTypes& types) {
  if (types.mxfp4) return check_mxfp4(spec, layout, types);
  if (!types.e4m3 && !types.int4) return Status();
  const char* name = types.e4m3 ? "fp8" : types.nvfp4 ? "nvfp4" : "int4";
  const auto rounds = [&](const MatrixLayout& matrix) {
    const WeightCodes codes = device_codes(matrix, types, nullptr);
    return codes.e4m3 || codes.int4.group > 0;
  };
  const std::vector<const MatrixLayout*> all = rounded_matrices(layout, types.e4m3);
  bool any = false;
  for (const MatrixLayout* matrix : all) {
    any = any || rounds(*matrix);
    MatrixLayout whole = *matrix;
    whole.shard = {};
    if (rounds(*matrix) || !rounds(whole)) continue;
    return error(StatusCode::kUnimplemented,
                 "'{}' is divided among {} ranks, whose parts of {} x {} --quantization {} does "
                 "not take; {}",
                 matrix->blocks.front().name, matrix->shard.num_ranks, matrix->local_rows(),
                 matrix->local_columns(), name,
                 types.int4 ? "use --quantization fp8" : "use fewer ranks");
  }
  if (any || all.empty()) return Status();
  return error(StatusCode::kUnimplemented,
               "--quantization {} takes no matrix of the model, of which '{}' has {} x {}; leave "
               "it out",
               name, all.front()->blocks.front().name, all.front()->out_features(),
               all.front()->in_features);
}

StorageFormat storage_format(const MatrixLayout& layout, bool gate_up, const WeightTypes& types,
                             const StoredFormatOf& stored) {
  StorageFormat out;
  out.type = layout.precision == Precision::kFloat32 ? DType::kFloat32 : types.type;
  const bool exact =
      layout.precision == Precision::kFloat32 || layout.precision == Precision::kUnrounded;
  if (exact || layout.empty()) return out;
  // A shard of rows is whole blocks; one of columns may cut them.
  const bool whole_blocks = layout.shard.whole() || layout.shard.axis == Shard::Axis::kRows;
  if (types.keep_blocks && !layout.fused && !layout.transposed && whole_blocks) {
    for (const WeightBlock& block : layout.blocks) {
      const std::optional<BlockFormat> format = stored(block.name);
      if (!format || (gate_up && !out.blocks.empty() && *format != out.blocks[0])) break;
      out.blocks.push_back(*format);
    }
    out.stored = out.blocks.size() == layout.blocks.size();
    if (out.stored) return out;
    out.blocks.clear();
  }
  const auto& wanted =
      layout.precision == Precision::kVocabulary ? types.quantize_vocabulary : types.quantize;
  if (wanted) out.blocks.assign(layout.blocks.size(), fitting(*wanted, layout.in_features));
  return out;
}

std::map<std::string, int64_t> weight_memory(const DecoderSpec& spec, const WeightTypes& types,
                                             const StoredFormatOf& stored,
                                             const StoredCodesOf& codes) {
  const WeightLayout layout = weight_layout(spec);
  const std::vector<WeightId> with_activation =
      program::weights_with_activation(program::cpu_passes(program::lower(spec)));
  Memory memory(types, stored, codes);
  memory.matrix(layout.embedding);
  memory.matrix(layout.position_embedding);
  memory.matrix(layout.head);
  for (const PoolingLayout& layer : layout.pooling_head) {
    memory.matrix(layer.matrix);
    memory.vector(layer.bias);
  }
  memory.vector(layout.final_norm);
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    add_layer(spec, i, layout.layers[i], with_activation, types, memory);
  }
  return memory.take();
}

}  // namespace espalier
