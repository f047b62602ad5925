#include "models/cuda/weights.h"

#include <algorithm>

#include "checkpoint/convert.h"
#include "kernels/linear/cuda.h"
#include "kernels/relayout/cuda.h"
#include "models/program/gpu_passes.h"
#include "models/weight_layout.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

constexpr size_t kNumKinds = kNumWeightKinds;

// What an encoder of pictures has besides layers; a decoder's layout has none of it.
Status place_encoder(const WeightLayout& layout, WeightPlacer& placer, CudaWeights& out) {
  ESP_RETURN_IF_ERROR(placer.matrix(layout.patch_embedding, out.at({WeightKind::kPatchEmbedding}),
                                    program::kGemmColumns));
  ESP_RETURN_IF_ERROR(
      placer.vector(layout.patch_embedding_bias, out.at({WeightKind::kPatchEmbeddingBias})));
  ESP_RETURN_IF_ERROR(placer.matrix(layout.type_embedding, out.at({WeightKind::kTypeEmbedding})));
  ESP_RETURN_IF_ERROR(placer.vector(layout.class_embedding, out.at({WeightKind::kClassEmbedding})));
  ESP_RETURN_IF_ERROR(placer.vector(layout.embedding_norm, out.at({WeightKind::kEmbeddingNorm})));
  ESP_RETURN_IF_ERROR(placer.vector(layout.line_end, out.at({WeightKind::kLineEnd})));
  for (size_t i = 0; i < layout.projector.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    const PoolingLayout& projector = layout.projector[i];
    ESP_RETURN_IF_ERROR(placer.matrix(projector.matrix, out.at({WeightKind::kProjector, index})));
    ESP_RETURN_IF_ERROR(placer.vector(projector.bias, out.at({WeightKind::kProjectorBias, index})));
  }
  ESP_RETURN_IF_ERROR(placer.vector(layout.projector_norm, out.at({WeightKind::kProjectorNorm})));
  for (size_t i = 0; i < layout.deepstack_norms.size(); ++i) {
    ESP_RETURN_IF_ERROR(placer.vector(
        layout.deepstack_norms[i], out.at({WeightKind::kDeepstackNorm, static_cast<int32_t>(i)})));
  }
  return Status();
}

// As widen_mlp() of an encoder's program: zeros behind the rows of each half and behind the
// columns of the matrix that reads them.
Status place_widened_mlp(const DecoderSpec& spec, int32_t layer, const MlpLayout& layout,
                         WeightPlacer& placer, CudaWeights& out) {
  const MlpSpec& of = spec.layers[static_cast<size_t>(layer)].mlp;
  const auto at = [&](WeightKind kind) -> CudaWeight& { return out.at({kind, layer}); };
  const int64_t unit = program::kGemmColumns;
  const int64_t half = (of.intermediate_size + unit - 1) / unit * unit;
  const auto halves = std::ssize(layout.gate_up.blocks);
  std::byte* rows = placer.stack(1, halves * half, spec.hidden_size, at(WeightKind::kGateUp));
  std::byte* biases =
      of.bias ? placer.stack(1, halves * half, 1, at(WeightKind::kGateUpBias)) : nullptr;
  const auto behind = [&](std::byte* data, int64_t elements) {
    return data == nullptr ? nullptr : data + elements * placer.element_bytes();
  };
  for (size_t i = 0; i < layout.gate_up.blocks.size(); ++i) {
    MatrixLayout block = layout.gate_up;
    block.blocks = {layout.gate_up.blocks[i]};
    std::byte* to = behind(rows, static_cast<int64_t>(i) * half * spec.hidden_size);
    ESP_RETURN_IF_ERROR(placer.blocks(block, to));
    if (!of.bias) continue;
    std::byte* bias_to = behind(biases, static_cast<int64_t>(i) * half);
    ESP_RETURN_IF_ERROR(placer.blocks(VectorLayout{{layout.gate_up_bias.blocks[i]}, {}}, bias_to));
  }
  MatrixLayout down = layout.down;
  down.stored_shape = {down.out_features(), down.in_features};
  ESP_RETURN_IF_ERROR(placer.matrix(down, at(WeightKind::kDown), unit));
  return placer.vector(layout.down_bias, at(WeightKind::kDownBias));
}

// Walks the layout of a model and places every weight in its table.
class ModelPlacer {
 public:
  ModelPlacer(const DecoderSpec& spec, const WeightLayout& layout, WeightPlacer& placer,
              CudaWeights& out)
      : spec_(spec), layout_(layout), placer_(placer), out_(out) {}

  Status place_all() {
    CudaWeight &head = out_.at({WeightKind::kHead}), &embedding = out_.at({WeightKind::kEmbedding});
    ESP_RETURN_IF_ERROR(placer_.matrix(layout_.head, head));
    embedding = head;
    ESP_RETURN_IF_ERROR(placer_.matrix(layout_.embedding, embedding));
    ESP_RETURN_IF_ERROR(place_encoder(layout_, placer_, out_));
    ESP_RETURN_IF_ERROR(placer_.matrix(layout_.draft_input, out_.at({WeightKind::kDraftInput})));
    ESP_RETURN_IF_ERROR(matrix(layout_.position_embedding, WeightKind::kPositionEmbedding));
    for (size_t i = 0; i < layout_.layers.size(); ++i) {
      layer_ = static_cast<int32_t>(i);
      ESP_RETURN_IF_ERROR(layer(spec_.layers[i], layout_.layers[i]));
    }
    placer_.pass_over(spec_.stage.tensors_elsewhere);
    return placer_.vector(layout_.final_norm, out_.at({WeightKind::kFinalNorm}));
  }

 private:
  CudaWeight& at(WeightKind kind) { return out_.at({kind, layer_}); }
  Status matrix(const MatrixLayout& layout, WeightKind kind) {
    return may_be_codes(spec_, {kind, layer_}) ? placer_.coded_matrix(layout, at(kind))
                                               : placer_.matrix(layout, at(kind));
  }
  // coded: the layer's experts are, so its shared expert is in such codes too.
  Status mlp_matrix(const MatrixLayout& layout, WeightKind kind, bool coded) {
    return coded ? placer_.coded_matrix(layout, at(kind)) : matrix(layout, kind);
  }
  Status vector(const VectorLayout& layout, WeightKind kind) {
    return placer_.vector(layout, at(kind));
  }

  Status layer(const LayerSpec& of, const LayerLayout& layout) {
    ESP_RETURN_IF_ERROR(vector(layout.input_norm, WeightKind::kInputNorm));
    ESP_RETURN_IF_ERROR(vector(layout.hidden_norm, WeightKind::kHiddenNorm));
    ESP_RETURN_IF_ERROR(matrix(layout.qkv, WeightKind::kQkv));
    ESP_RETURN_IF_ERROR(vector(layout.qkv_bias, WeightKind::kQkvBias));
    ESP_RETURN_IF_ERROR(vector(layout.q_norm, WeightKind::kQNorm));
    ESP_RETURN_IF_ERROR(vector(layout.k_norm, WeightKind::kKNorm));
    if (of.attention.latent) ESP_RETURN_IF_ERROR(latent(of.attention, layout.latent));
    ESP_RETURN_IF_ERROR(placer_.floats(layout.sinks, at(WeightKind::kSinks)));
    ESP_RETURN_IF_ERROR(matrix(layout.attention_output, WeightKind::kAttentionOutput));
    ESP_RETURN_IF_ERROR(vector(layout.attention_output_bias, WeightKind::kAttentionOutputBias));
    ESP_RETURN_IF_ERROR(vector(layout.attention_output_norm, WeightKind::kAttentionOutputNorm));
    ESP_RETURN_IF_ERROR(vector(layout.post_attention_norm, WeightKind::kPostAttentionNorm));
    const ExpertCodes codes = placer_.format_of(layout.experts).codes;
    const bool coded = codes == ExpertCodes::kE4m3 || codes == ExpertCodes::kInt4;
    if (is_encoder(spec_) && of.mlp.intermediate_size % program::kGemmColumns != 0)
      return place_widened_mlp(spec_, layer_, layout.mlp, placer_, out_);
    ESP_RETURN_IF_ERROR(mlp_matrix(layout.mlp.gate_up, WeightKind::kGateUp, coded));
    ESP_RETURN_IF_ERROR(vector(layout.mlp.gate_up_bias, WeightKind::kGateUpBias));
    ESP_RETURN_IF_ERROR(mlp_matrix(layout.mlp.down, WeightKind::kDown, coded));
    ESP_RETURN_IF_ERROR(vector(layout.mlp.down_bias, WeightKind::kDownBias));
    if (of.experts) ESP_RETURN_IF_ERROR(experts(*of.experts, layout.experts));
    return vector(layout.mlp_output_norm, WeightKind::kMlpOutputNorm);
  }

  Status latent(const AttentionSpec& a, const LatentLayout& layout) {
    ESP_RETURN_IF_ERROR(matrix(layout.q_a, WeightKind::kLatentQA));
    ESP_RETURN_IF_ERROR(vector(layout.q_a_norm, WeightKind::kLatentQANorm));
    ESP_RETURN_IF_ERROR(matrix(layout.q, WeightKind::kLatentQ));
    ESP_RETURN_IF_ERROR(matrix(layout.kv_a, WeightKind::kLatentKvA));
    ESP_RETURN_IF_ERROR(vector(layout.kv_a_norm, WeightKind::kLatentKvANorm));
    return absorbed(a.num_heads, *a.latent, layout.kv_b);
  }

  // kv_b, [heads, nope + value, rank], stays as it is for the values of the heads; its keys' part
  // is transposed once, to [heads, rank, nope].
  Status absorbed(int32_t heads, const LatentSpec& spec, const MatrixLayout& layout) {
    const int64_t rows = int64_t{spec.nope_dim} + spec.value_dim;
    CudaWeight& values = at(WeightKind::kLatentToValue);
    std::byte* kv_b = placer_.stack(heads, rows, spec.rank, values);
    std::byte* transposed =
        placer_.stack(heads, spec.rank, spec.nope_dim, at(WeightKind::kQueryToLatent));
    const int64_t keys_bytes = int64_t{spec.nope_dim} * spec.rank * placer_.element_bytes();
    values.data = kv_b == nullptr ? nullptr : kv_b + keys_bytes;
    values.out_features = spec.value_dim;
    placer_.add_relayout({.type = placer_.type(),
                          .from = kv_b,
                          .from_group_stride = rows * spec.rank,
                          .to = transposed,
                          .groups = heads,
                          .rows = spec.rank,
                          .columns = spec.nope_dim});
    return placer_.blocks(layout, kv_b);
  }

  Status experts(const ExpertsSpec& of, const ExpertsLayout& layout) {
    ESP_RETURN_IF_ERROR(placer_.float_matrix(layout.router, at(WeightKind::kRouter)));
    ESP_RETURN_IF_ERROR(placer_.floats(layout.router_bias, at(WeightKind::kRouterBias)));
    ESP_RETURN_IF_ERROR(
        placer_.floats(layout.router_correction, at(WeightKind::kRouterCorrection)));
    ESP_RETURN_IF_ERROR(placer_.float_matrix(layout.shared_gate, at(WeightKind::kSharedGate)));
    for (const MlpLayout& expert : layout.elsewhere) placer_.pass_over(tensor_names(expert));
    if (layout.experts.empty()) return fused_experts(of, layout);
    return each_expert(of, layout);
  }

  // A tensor for each expert; all experts are cut alike.
  Status each_expert(const ExpertsSpec& of, const ExpertsLayout& layout) {
    const std::vector<MlpLayout>& experts = layout.experts;
    const auto count = static_cast<int64_t>(experts.size());
    const auto [codes, group] = placer_.format_of(layout);
    std::vector<const MatrixLayout*> gate_ups, downs;
    for (const MlpLayout& expert : experts) {
      gate_ups.push_back(&expert.gate_up), downs.push_back(&expert.down);
    }
    ESP_RETURN_IF_ERROR(expert_matrices(gate_ups, WeightKind::kExpertGateUp, codes, group));
    ESP_RETURN_IF_ERROR(expert_matrices(downs, WeightKind::kExpertDown, codes, group));
    std::byte *gate_up_bias = nullptr, *down_bias = nullptr;
    if (of.expert.bias) {
      gate_up_bias = placer_.stack(count, experts[0].gate_up_bias.local_size(), 1,
                                   at(WeightKind::kExpertGateUpBias));
      down_bias = placer_.stack(count, experts[0].down_bias.local_size(), 1,
                                at(WeightKind::kExpertDownBias));
    }
    for (const MlpLayout& expert : experts) {
      ESP_RETURN_IF_ERROR(placer_.blocks(expert.gate_up_bias, gate_up_bias));
      ESP_RETURN_IF_ERROR(placer_.blocks(expert.down_bias, down_bias));
    }
    return Status();
  }

  // group: of int4, inputs.
  Status expert_matrices(const std::vector<const MatrixLayout*>& matrices, WeightKind kind,
                         ExpertCodes codes, int32_t group) {
    const MatrixLayout& first = *matrices.front();
    if (codes == ExpertCodes::kMxfp4) return placer_.rounded_mxfp4_stack(matrices, at(kind));
    if (codes == ExpertCodes::kInt4) return placer_.int4_stack(matrices, group, at(kind));
    if (codes == ExpertCodes::kE4m3) {
      ESP_RETURN_IF_ERROR(placer_.e4m3_stack(matrices, at(kind)));
      // A stack of one matrix too, which a rank may have.
      at(kind).group_stride = first.local_rows() * first.local_columns();
      return Status();
    }
    std::byte* data = placer_.stack(static_cast<int64_t>(matrices.size()), first.local_rows(),
                                    first.local_columns(), at(kind));
    at(kind).shard = first.shard;
    for (const MatrixLayout* matrix : matrices) {
      ESP_RETURN_IF_ERROR(placer_.blocks(*matrix, data));
    }
    return Status();
  }

  // One tensor for all experts.
  Status fused_experts(const ExpertsSpec& of, const ExpertsLayout& layout) {
    if (!layout.fused_gate_up_shard.whole() || !of.slots.empty() ||
        of.num_local() < of.router.num_experts) {
      return error(StatusCode::kUnimplemented,
                   "'{}' has all experts in one tensor, which GPUs do not divide among them yet; "
                   "run the model on one GPU, or use --device cpu",
                   layout.fused_gate_up);
    }
    const bool mxfp4 = spec_.names.experts == WeightNames::Experts::kFusedMxfp4;
    const StoredForm form = mxfp4 ? StoredForm::kMxfp4 : StoredForm::kTransposed;
    const int64_t ffn = of.expert.intermediate_size, hidden = spec_.hidden_size;
    const MatrixStack gate_up{.name = layout.fused_gate_up,
                              .count = of.router.num_experts,
                              .rows = 2 * ffn,
                              .columns = hidden,
                              .interleaved = true};
    const MatrixStack down{
        .name = layout.fused_down, .count = of.router.num_experts, .rows = hidden, .columns = ffn};
    const auto memory = [&](const MatrixStack& stack, WeightKind kind) {
      return placer_.stack(stack.count, stack.rows, stack.columns, at(kind));
    };
    const MatrixStack gate_up_bias = bias_of(gate_up), down_bias = bias_of(down);
    if (mxfp4 && placer_.keeps_codes()) {
      ESP_RETURN_IF_ERROR(placer_.mxfp4_stack(gate_up, at(WeightKind::kExpertGateUp)));
      ESP_RETURN_IF_ERROR(placer_.mxfp4_stack(down, at(WeightKind::kExpertDown)));
    } else {
      std::byte* first = memory(gate_up, WeightKind::kExpertGateUp);
      std::byte* last = memory(down, WeightKind::kExpertDown);
      ESP_RETURN_IF_ERROR(placer_.stored(form, gate_up, first));
      ESP_RETURN_IF_ERROR(placer_.stored(form, down, last));
    }
    std::byte* first_bias = memory(gate_up_bias, WeightKind::kExpertGateUpBias);
    std::byte* last_bias = memory(down_bias, WeightKind::kExpertDownBias);
    ESP_RETURN_IF_ERROR(placer_.stored(StoredForm::kTransposed, gate_up_bias, first_bias));
    return placer_.stored(StoredForm::kTransposed, down_bias, last_bias);
  }

  // Biases of a stack of matrices: matrices of one column, which have no other order.
  static MatrixStack bias_of(MatrixStack stack) {
    stack.name += "_bias";
    stack.columns = 1;
    return stack;
  }

  const DecoderSpec& spec_;
  const WeightLayout& layout_;
  WeightPlacer& placer_;
  CudaWeights& out_;
  int32_t layer_ = -1;
};

// What weights are rounded to; null: nothing.
const char* rounded_name(const WeightTypes& types) {
  return types.e4m3    ? "fp8"
         : types.nvfp4 ? "nvfp4"
         : types.int4  ? "int4"
         : types.mxfp4 ? "mxfp4"
                       : nullptr;
}

Status check_format(const DecoderSpec& spec, const WeightLayout& layout, const WeightTypes& types) {
  const DType type = types.type;
  const char* rounded = rounded_name(types);
  if (rounded != nullptr && type != DType::kBFloat16) {
    return error(StatusCode::kUnimplemented,
                 "weights in {} are multiplied with bfloat16, but the checkpoint's type is {}; "
                 "leave --quantization out",
                 rounded, dtype_name(type));
  }
  const auto has_experts = [](const LayerSpec& layer) { return layer.experts.has_value(); };
  if (types.mxfp4 && std::ranges::none_of(spec.layers, has_experts)) {
    return invalid_argument(
        "mxfp4 is a format of experts, of which the model has none; use --quantization int4");
  }
  if (rounded != nullptr) ESP_RETURN_IF_ERROR(check_rounding(spec, layout, types));
  if (type == DType::kBFloat16 || type == DType::kFloat32) return Status();
  return error(StatusCode::kUnimplemented,
               "weights of {} are not read by the GPU's kernels; load them as bfloat16 or float32, "
               "or use --device cpu",
               dtype_name(type));
}

Result<std::unique_ptr<cuda::ReleasableBuffer>> allocate_zeros(int64_t size_bytes,
                                                               const cuda::Stream& stream) {
  ESP_ASSIGN_OR_RETURN(auto block, cuda::ReleasableBuffer::allocate(size_bytes, "the weights"));
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(block->data(), 0, block->size_bytes(), stream));
  ESP_RETURN_IF_ERROR(stream.synchronize());
  return block;
}

}  // namespace

CudaWeights::CudaWeights(DType type, size_t num_layers)
    : type_(type), table_((num_layers + 1) * kNumKinds) {}

size_t CudaWeights::index_of(WeightId id) {
  return static_cast<size_t>(id.index + 1) * kNumKinds + static_cast<size_t>(id.kind);
}

void CudaWeights::note_formats() {
  has_codes_ = std::ranges::any_of(table_, [](const CudaWeight& w) {
    return w.format.codes.e4m3 || w.format.codes.mxfp4 || w.format.codes.int4.group > 0;
  });
}

namespace {

// What both kinds of loading begin with.
struct Loading {
  std::unique_ptr<CudaTensorLoader> loader;
  WeightPlacer::Rounding rounding;
};

Result<std::unique_ptr<CudaTensorLoader>> make_loader(const ModelLoadOptions& options,
                                                      const DecoderSpec& spec) {
  return options.format == LoadFormat::kDummy ? make_dummy_loader(options)
                                              : make_checkpoint_loader(options, spec);
}

Result<Loading> begin_loading(const DecoderSpec& spec, const WeightLayout& layout,
                              const WeightTypes& types,
                              Result<std::unique_ptr<CudaTensorLoader>> loader) {
  ESP_RETURN_IF_ERROR(check_format(spec, layout, types));
  Loading out;
  ESP_ASSIGN_OR_RETURN(out.loader, std::move(loader));
  ESP_ASSIGN_OR_RETURN(const bool multiplies, kc::Linear::multiplies_e4m3());
  const char* rounded = rounded_name(types);
  if (rounded != nullptr && !multiplies) {
    return fail(error(StatusCode::kUnimplemented,
                      "weights in {} need a GPU of compute capability 9.0 (H100, H200); leave "
                      "--quantization out",
                      rounded));
  }
  const bool stored = multiplies && types.keep_blocks && types.type == DType::kBFloat16;
  out.rounding = {.types = types, .stored = stored ? out.loader.get() : nullptr};
  return out;
}

Result<cuda::DeviceBuffer> allocate_staging(int64_t size_bytes) {
  return cuda::DeviceBuffer::allocate(size_bytes, "weights on their way");
}

// In their order.
Status run_relayouts(const std::vector<kc::RelayoutArgs>& relayouts, const cuda::Stream& stream) {
  for (const kc::RelayoutArgs& args : relayouts) {
    ESP_RETURN_IF_ERROR(kc::relayout(args, {.stream = stream.get()}));
  }
  return stream.synchronize();
}

}  // namespace

Result<PendingCudaWeights> load_cuda_weights(const DecoderSpec& spec, const WeightLayout& layout,
                                             const WeightTypes& types,
                                             const ModelLoadOptions& options) {
  const DType type = types.type;
  ESP_ASSIGN_OR_RETURN(Loading loading,
                       begin_loading(spec, layout, types, make_loader(options, spec)));
  PendingCudaWeights out{
      .weights = CudaWeights(type, std::max(spec.layers.size(), layout.projector.size())),
      .loader = std::move(loading.loader)};
  cuda::Arena measured, measured_staging;
  WeightPlacer measuring(type, loading.rounding, measured, measured_staging, nullptr);
  ESP_RETURN_IF_ERROR(ModelPlacer(spec, layout, measuring, out.weights).place_all());
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  ESP_ASSIGN_OR_RETURN(auto block, allocate_zeros(measured.used_bytes(), stream));
  cuda::Arena arena(block->data());
  out.weights.set_block(std::move(block));
  // Given back when this returns.
  ESP_ASSIGN_OR_RETURN(const cuda::DeviceBuffer staged,
                       allocate_staging(measured_staging.used_bytes()));
  cuda::Arena staging(staged.data());
  WeightPlacer placer(type, loading.rounding, arena, staging, out.loader.get());
  ESP_RETURN_IF_ERROR(ModelPlacer(spec, layout, placer, out.weights).place_all());
  out.weights.note_formats();
  ESP_RETURN_IF_ERROR(out.loader->start());
  if (placer.relayouts().empty()) return out;
  ESP_RETURN_IF_ERROR(out.loader->finish());
  ESP_RETURN_IF_ERROR(run_relayouts(placer.relayouts(), stream));
  return out;
}

bool CudaWeights::places_as(const CudaWeights& other) const {
  return type_ == other.type_ &&
         std::ranges::equal(table_, other.table_, [](const CudaWeight& a, const CudaWeight& b) {
           return a.data == b.data && a.scales == b.scales && a.columns == b.columns &&
                  a.in_features == b.in_features && a.out_features == b.out_features &&
                  a.group_stride == b.group_stride && a.format.codes.e4m3 == b.format.codes.e4m3 &&
                  a.format.codes.block_scales == b.format.codes.block_scales &&
                  a.format.codes.mxfp4 == b.format.codes.mxfp4 &&
                  a.format.codes.int4 == b.format.codes.int4;
         });
}

Result<CudaWeightUpdate> CudaWeightUpdate::prepare(const PlacedWeights& old,
                                                   const ModelLoadOptions& options,
                                                   const MakeTensorLoader& some) {
  const auto& [spec, layout, types, current] = old;
  ESP_ASSIGN_OR_RETURN(
      Loading loading,
      begin_loading(spec, layout, types, some ? some(spec) : make_loader(options, spec)));
  // What is stored in codes is not replaced in part, so the formats are those that are there.
  if (some && current.has_codes()) loading.rounding.stored = nullptr;
  CudaWeightUpdate out;
  out.loader_ = std::move(loading.loader);
  out.block_ = current.block();
  CudaWeights placed(types.type, spec.layers.size());
  cuda::Arena measured, measured_staging;
  WeightPlacer measuring(types.type, loading.rounding, measured, measured_staging, nullptr);
  ESP_RETURN_IF_ERROR(ModelPlacer(spec, layout, measuring, placed).place_all());
  ESP_ASSIGN_OR_RETURN(out.staging_, allocate_staging(measured_staging.used_bytes()));
  cuda::Arena arena(out.block_), staging(out.staging_.data());
  WeightPlacer placer(types.type, loading.rounding, arena, staging, out.loader_.get());
  ESP_RETURN_IF_ERROR(ModelPlacer(spec, layout, placer, placed).place_all());
  ESP_RETURN_IF_ERROR(out.loader_->check());
  if (measured.used_bytes() != current.size_bytes() || !placed.places_as(current)) {
    return fail(error(StatusCode::kFailedPrecondition,
                      "{} stores weights in other formats than the checkpoint that runs; convert "
                      "it to the same formats, or start a server with it (some tensors alone are "
                      "not replaced where the checkpoint stores codes)",
                      options.path.string()));
  }
  out.relayouts_ = placer.relayouts();
  if (current.has_codes() && !some) out.zeroed_bytes_ = current.size_bytes();
  return out;
}

namespace {

// Finds out where a tensor lies, and in which type.
class TensorFinder final : public CudaTensorLoader {
 public:
  explicit TensorFinder(std::string name) : name_(std::move(name)) {}

  Status put(const TensorPart& part, DType type, std::byte* device) override {
    if (part.name != name_ || found_) return Status();
    found_ = true;
    device_ = device;
    type_ = type;
    count_ = part.slice.value_or(TensorSlice::whole(part.shape)).num_elements();
    return Status();
  }
  WeightCodes stored_codes(const std::string&) const override { return {}; }
  Status put_e4m3(const TensorPart& part, std::byte*, float*) override { return note(part.name); }
  Status put_block_e4m3(const TensorPart& part, std::byte*, float*) override {
    return note(part.name);
  }
  Status put_int4(const TensorPart& part, const kc::Int4Destination&) override {
    return note(part.name);
  }
  Status put_mxfp4(const std::string& name, int64_t, const kc::Mxfp4Destination&) override {
    return note(name);
  }
  Status put_rounded_mxfp4(const TensorPart& part, const kc::Mxfp4Destination&) override {
    return note(part.name);
  }
  Status put_bytes(const std::string& name, std::span<const int64_t>, std::byte*) override {
    return note(name);
  }
  Status start() override { return Status(); }
  Status finish() override { return Status(); }

  Result<std::vector<float>> read(int64_t num_max, const std::byte* block, int64_t size) const {
    if (!found_) return fail(error(StatusCode::kNotFound, "the model has no tensor '{}'", name_));
    // What the GPU converts has a place beside the block, of an arena without memory.
    if (device_ < block || device_ >= block + size)
      return fail(error(StatusCode::kUnimplemented,
                        "the tensor '{}' is held in codes, or in another order than its own",
                        name_));
    const int64_t count = std::min(num_max, count_);
    const auto bytes = count * static_cast<int64_t>(dtype_size(type_));
    ESP_ASSIGN_OR_RETURN(const auto host, cuda::PinnedBuffer::allocate(bytes, "a weight"));
    ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
    ESP_RETURN_IF_ERROR(cuda::copy_to_host(host.data(), device_, bytes, stream));
    ESP_RETURN_IF_ERROR(stream.synchronize());
    std::vector<float> out(static_cast<size_t>(count));
    copy_as_float({.name = {},
                   .dtype_name = {},
                   .dtype = type_,
                   .shape = {count},
                   .bytes = {host.data(), static_cast<size_t>(bytes)},
                   .reader = nullptr},
                  0, out);
    return out;
  }

 private:
  Status note(const std::string& name) {
    found_ = found_ || name == name_;
    return Status();
  }

  const std::string name_;
  const std::byte* device_ = nullptr;
  DType type_ = DType::kBFloat16;
  int64_t count_ = 0;
  bool found_ = false;
};

}  // namespace

Status visit_tensors(const PlacedWeights& placed, CudaTensorLoader& visitor) {
  const auto& [spec, layout, types, current] = placed;
  if (current.has_codes() && types.keep_blocks && !types.e4m3 && !types.int4 && !types.mxfp4)
    return error(StatusCode::kUnimplemented,
                 "the checkpoint stores codes, whose tensors are not read back");
  cuda::Arena arena(current.block()), staging;
  CudaWeights again(types.type, spec.layers.size());
  WeightPlacer placer(types.type, {.types = types}, arena, staging, &visitor);
  return ModelPlacer(spec, layout, placer, again).place_all();
}

Result<std::vector<float>> read_cuda_weight(const PlacedWeights& placed, const std::string& name,
                                            int64_t num_max) {
  TensorFinder finder(name);
  ESP_RETURN_IF_ERROR(visit_tensors(placed, finder));
  return finder.read(num_max, placed.weights.block(), placed.weights.size_bytes());
}

Status CudaWeightUpdate::start() {
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(block_, 0, zeroed_bytes_, stream));
  ESP_RETURN_IF_ERROR(stream.synchronize());
  return loader_->start();
}

Status CudaWeightUpdate::finish() {
  ESP_RETURN_IF_ERROR(loader_->finish());
  loader_.reset();
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  return run_relayouts(relayouts_, stream);
}

}  // namespace espalier
