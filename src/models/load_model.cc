#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/json_object.h"
#include "models/draft_model.h"
#include "models/drafted_model.h"
#include "models/expert_locations.h"
#include "models/families/family.h"
#include "models/forwarding_model.h"
#include "models/load_draft_head.h"
#include "models/load_part.h"
#include "models/model.h"
#include "models/model_plan.h"
#include "models/pipeline.h"
#include "models/pooling_config.h"
#include "models/program/cpu_model.h"
#include "models/program/gpu_passes.h"
#include "models/program/lower.h"
#include "models/storage_format.h"
#include "models/tensor_parallel.h"
#include "models/weight_layout.h"
#include "models/weight_source.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

// The configuration with what the user changes in it.
Result<JsonObject> read_config(const ModelLoadOptions& options,
                               std::optional<JsonObject>& changes) {
  ESP_ASSIGN_OR_RETURN(JsonObject config, read_model_config(options.path));
  if (options.config_overrides.empty()) return config;
  auto parsed = JsonObject::parse(options.config_overrides, "json_model_override_args",
                                  DuplicateKeys::kError);
  if (!parsed) return fail(parsed.error());
  changes = *std::move(parsed);
  return config.merged(*changes);
}

// A change that nothing reads would be a misspelt one that goes unnoticed.
Status check_changes(const JsonObject& config, const std::optional<JsonObject>& changes) {
  if (!changes) return Status();
  const std::vector<std::string> unread = config.never_read(*changes);
  if (unread.empty()) return Status();
  return invalid_argument(
      "json_model_override_args: '{}' is not a field of {} that this model reads", unread[0],
      config.name());
}

// The spec of a folder's config.json (or of a GGUF's metadata), with generation_config.json's
// end-of-sequence ids where that has some: they are the ones that its makers correct.
Result<DecoderSpec> read_spec(const ModelLoadOptions& options) {
  const std::filesystem::path& folder = options.path;
  std::optional<JsonObject> changes;
  ESP_ASSIGN_OR_RETURN(const JsonObject config, read_config(options, changes));
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_decoder_spec(config));
  ESP_RETURN_IF_ERROR(set_pooling_modules(folder, config, options.is_embedding, spec));
  ESP_RETURN_IF_ERROR(check_changes(config, changes));
  ESP_ASSIGN_OR_RETURN(GenerationConfig generation, read_generation_config(folder));
  if (!generation.eos_token_ids.empty()) {
    spec.eos_ids = std::move(generation.eos_token_ids);
    if (Status status = validate(spec); !status.ok()) {
      return fail(status.with_context((folder / "generation_config.json").string()));
    }
  }
  return spec;
}

// What matrices are held in. float16 checkpoints become bfloat16, which the processors multiply.
Result<DType> choose_dtype(const std::string& name, DType of_checkpoint) {
  if (name == "float32" || name == "float") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "auto" || name == "q8_0" || name == "q4_k" || name == "fp8" || name == "int4" ||
      name == "nvfp4" || name == "mxfp4") {
    return of_checkpoint == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
  }
  return fail(invalid_argument(
      "dtype '{}' is not known; use auto, bfloat16, float32, q8_0, q4_k, fp8, int4, nvfp4 or "
      "mxfp4",
      name));
}

Status set_context_length(int32_t wanted, DecoderSpec& spec) {
  if (wanted == 0) return Status();
  int64_t longest = spec.context_length;
  for (const RopeSpec& rope : spec.ropes) {
    if (rope.scaling == RopeSpec::Scaling::kDynamic) {
      const double stretched = std::min(rope.factor * rope.original_max_positions, 0x1p30);
      longest = std::max(longest, static_cast<int64_t>(stretched));
    }
  }
  if (wanted < 0 || wanted > longest) {
    return invalid_argument("context length {} is not between 1 and the model's own {}", wanted,
                            longest);
  }
  spec.context_length = wanted;
  return Status();
}

// A model that owns its threads, for callers that have no pool.
class ModelWithPool final : public ForwardingModel {
 public:
  ModelWithPool(std::unique_ptr<WorkPool> pool, std::unique_ptr<Model> model)
      : ForwardingModel(*model), pool_(std::move(pool)), model_(std::move(model)) {}

 private:
  const std::unique_ptr<WorkPool> pool_;  // outlives model_
  const std::unique_ptr<Model> model_;
};

Status check_cpu_types(const DecoderSpec& spec, const WeightTypes& types) {
  if (types.mxfp4 && spec.names.experts != WeightNames::Experts::kFusedMxfp4) {
    return invalid_argument(
        "experts are rounded to mxfp4 on a GPU; on the CPU take q4_k, which has about the same "
        "size, and leave mxfp4 out for weights that are stored so");
  }
  if (types.int4) {
    return invalid_argument(
        "weights of 4 bits as {} need a GPU; on the CPU take q4_k, which has about the same size",
        types.nvfp4 ? "nvfp4" : "int4");
  }
  if (!types.e4m3) return Status();
  return invalid_argument(
      "weights of 8 bits as fp8 need a GPU; on the CPU take q8_0, which has the same size");
}

Result<std::unique_ptr<Model>> create_pipeline(const DecoderSpec& spec, const WeightTypes& types,
                                               const ModelLoadOptions& options, WorkPool& pool,
                                               const OpenWeights& open) {
  if (options.enable_lora)
    return fail(
        error(StatusCode::kUnimplemented,
              "adapters are not divided into stages: leave --enable-lora or --pp-size out"));
  if (options.expert_counts != nullptr)
    return fail(error(StatusCode::kUnimplemented,
                      "experts' tokens are not counted in stages: leave "
                      "--expert-distribution-recorder-mode or --pp-size out"));
  return PipelineModel::create(
      spec, types,
      {.num_stages = options.pp_size,
       .num_ranks = options.tp_size,
       .micro_batch_tokens = options.pp_micro_batch_tokens,
       .threads = {.count = pool.num_threads(), .first_cpu = options.first_cpu}},
      open);
}

Status check_hidden_states(const DecoderSpec& spec, const ModelLoadOptions& options) {
  if (!options.return_hidden_states) return {};
  if (spec.pooling)
    return error(StatusCode::kUnimplemented,
                 "{} makes vectors of texts and returns no hidden states: leave "
                 "--enable-return-hidden-states out",
                 spec.architecture);
  if (options.tp_size != 1 || options.pp_size != 1)
    return error(StatusCode::kUnimplemented,
                 "hidden states are not returned by ranks or stages that divide a model: leave "
                 "--enable-return-hidden-states, or --tp-size and --pp-size out");
  return {};
}

// The model, with its draft head where it keeps states for one.
template <typename Target>
Result<std::unique_ptr<Model>> with_draft_head(std::unique_ptr<Target> model,
                                               const std::optional<DecoderSpec>& head_spec,
                                               const WeightTypes& types,
                                               const ModelLoadOptions& options, WorkPool& pool) {
  if (!head_spec) return std::unique_ptr<Model>(std::move(model));
  ESP_ASSIGN_OR_RETURN(auto head,
                       load_draft_head(options.draft_path, *head_spec, types, pool, *model));
  return join_draft(std::move(model), std::move(head));
}

Result<std::unique_ptr<Model>> create_ranks(const DecoderSpec& spec,
                                            const std::optional<DecoderSpec>& head_spec,
                                            const WeightTypes& types,
                                            const ModelLoadOptions& options, WorkPool& pool,
                                            const OpenWeights& open) {
  if (options.enable_lora)
    return fail(error(StatusCode::kUnimplemented,
                      "adapters are not divided among ranks: leave --enable-lora or --tp-size "
                      "out"));
  ESP_ASSIGN_OR_RETURN(
      auto model, TensorParallelModel::create(
                      spec, types, options.tp_size,
                      {.count = pool.num_threads(), .first_cpu = options.first_cpu}, open,
                      {.counts = options.expert_counts, .rebalance = options.experts.rebalance}));
  return with_draft_head(std::move(model), head_spec, types, options, pool);
}

Result<std::unique_ptr<Model>> create_model(DecoderSpec spec, const WeightTypes& types,
                                            const ModelLoadOptions& options, WorkPool& pool,
                                            RankGroup* group, const OpenWeights& open) {
  ESP_RETURN_IF_ERROR(check_hidden_states(spec, options));
  if (group != nullptr) {
    return TensorParallelModel::create_part(
        spec, types, *group, {.count = pool.num_threads(), .first_cpu = options.first_cpu}, open,
        {.counts = options.expert_counts});
  }
  ESP_ASSIGN_OR_RETURN(const auto head_spec, plan_draft_head(options, spec));
  if (options.pp_size != 1) return create_pipeline(spec, types, options, pool, open);
  if (options.tp_size != 1) return create_ranks(spec, head_spec, types, options, pool, open);
  const auto source = open({}, pool);
  ESP_ASSIGN_OR_RETURN(auto model,
                       program::CpuModel::create(spec, types, *source, pool,
                                                 {.adapters = options.enable_lora,
                                                  .expert_counts = options.expert_counts,
                                                  .hidden_states = options.return_hidden_states}));
  return with_draft_head(std::move(model), head_spec, types, options, pool);
}

// group: of which the model is the part; null: the model is whole.
Result<std::unique_ptr<Model>> load_with_pool(const ModelLoadOptions& options, WorkPool& pool,
                                              RankGroup* group) {
  ESP_ASSIGN_OR_RETURN(auto plan, plan_model(options));
  auto& [spec, type, weights] = plan;
  if (spec.texts) {
    return fail(error(StatusCode::kUnimplemented,
                      "{} is an encoder of texts, whose rows see each other: it does not generate, "
                      "and is no part of another model",
                      spec.architecture));
  }
  ESP_RETURN_IF_ERROR(check_cpu_types(spec, weights));
  if (options.format == LoadFormat::kDummy) {
    const auto open = [&](Ranks, WorkPool& threads) -> std::unique_ptr<WeightSource> {
      return std::make_unique<DummySource>(options.seed, type, threads);
    };
    return create_model(spec, weights, options, pool, group, open);
  }
  ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.path));
  const auto open = [&](Ranks ranks, WorkPool& threads) -> std::unique_ptr<WeightSource> {
    auto source = std::make_unique<CheckpointSource>(checkpoint, spec, type, &threads);
    if (ranks.rank == 0) source->report_to(options.progress);
    return source;
  };
  return create_model(spec, weights, options, pool, group, open);
}

Result<std::unique_ptr<Model>> load(const ModelLoadOptions& options, RankGroup* group) {
  const auto start = std::chrono::steady_clock::now();
  std::unique_ptr<WorkPool> own_pool;
  if (options.pool == nullptr) own_pool = std::make_unique<WorkPool>();
  ESP_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                       load_with_pool(options, own_pool ? *own_pool : *options.pool, group));
  if (own_pool) {
    model = std::make_unique<ModelWithPool>(std::move(own_pool), std::move(model));
  }
  const ModelInfo& info = model->info();
  log_info("model loaded path={} architecture={} parameters={} weight_bytes={} seconds={:.2f}",
           options.path.string(), info.architecture, info.num_parameters, info.weight_bytes,
           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return model;
}

// The block formats of the checkpoint's tensors that kernels read as they are.
Result<std::map<std::string, BlockFormat>> read_stored_formats(const ModelLoadOptions& options,
                                                               const ModelPlan& plan) {
  std::map<std::string, BlockFormat> out;
  ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.path));
  const CheckpointSource source(checkpoint, plan.spec, plan.type);
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const auto format = source.stored_format(tensor.name);
    if (format) out.emplace(tensor.name, *format);
  }
  return out;
}

// Bytes of some elements of a weight. Vectors are float32 on the CPU, and too small to matter.
int64_t stored_bytes(const DecoderSpec& spec, const WeightLayout& layout, const WeightTypes& types,
                     const std::map<std::string, BlockFormat>& stored, WeightId id,
                     int64_t elements) {
  const auto whole = elements * static_cast<int64_t>(dtype_size(types.type));
  const bool expert = id.kind == WeightKind::kExpertGateUp || id.kind == WeightKind::kExpertDown;
  const bool stays = spec.names.experts == WeightNames::Experts::kFusedMxfp4 && types.keep_blocks;
  const ExpertsLayout* experts =
      expert ? &layout.layers[static_cast<size_t>(id.index)].experts : nullptr;
  if (expert && (stays || experts_round_to_mxfp4(*experts, types))) {
    const BlockFormatInfo& mxfp4 = block_format_info(BlockFormat::kMxfp4);
    return elements * static_cast<int64_t>(mxfp4.bytes) / mxfp4.elements;
  }
  const int32_t group = expert ? experts_int4_group(*experts, types, nullptr) : 0;
  if (group > 0) {
    const kernels::cuda::Int4ExpertShape shape{.group = group};
    return elements * shape.record_bytes() /
           (kernels::cuda::kInt4ExpertRows * shape.record_inputs());
  }
  const MatrixLayout* matrix = find_matrix(layout, id);
  if (matrix == nullptr || matrix->empty()) return whole;
  const auto stored_format = [&](std::string_view name) -> std::optional<BlockFormat> {
    const auto found = stored.find(std::string(name));
    return found == stored.end() ? std::nullopt : std::optional(found->second);
  };
  StorageFormat format = storage_format(*matrix, false, types, stored_format);
  if (may_be_codes(spec, id)) format.codes = device_codes(*matrix, types, nullptr);
  int64_t bytes = 0;
  for (size_t i = 0; i < matrix->blocks.size(); ++i) {
    bytes += format.size_bytes(i, matrix->blocks[i].rows, matrix->in_features);
  }
  const double count = static_cast<double>(matrix->out_features() * matrix->in_features);
  return static_cast<int64_t>(static_cast<double>(bytes) / count * static_cast<double>(elements));
}

// A GPU has elements, and codes where they are requested or stored.
Result<std::map<std::string, int64_t>> read_gpu_weight_memory(const ModelLoadOptions& options,
                                                              const ModelPlan& plan) {
  WeightTypes types = plan.type;
  types.e4m3 = plan.weights.e4m3, types.int4 = plan.weights.int4;
  types.nvfp4 = plan.weights.nvfp4;
  types.mxfp4 = plan.weights.mxfp4;
  const auto no_blocks = [](std::string_view) { return std::optional<BlockFormat>(); };
  const bool stays = plan.weights.keep_blocks && plan.type == DType::kBFloat16;
  types.keep_blocks = stays;  // of experts in MXFP4
  if (options.format == LoadFormat::kDummy || !stays) {
    return weight_memory(plan.spec, types, no_blocks);
  }
  ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.path));
  return weight_memory(plan.spec, types, no_blocks, [&](std::string_view name) {
    return stored_codes(checkpoint.find(std::string(name)));
  });
}

// The model and its draft model, each from its own folder, on the same threads.
Result<std::unique_ptr<Model>> load_with_draft_model(const ModelLoadOptions& options) {
  ModelLoadOptions own = options;
  own.draft_model_path.clear();
  const ModelLoadOptions of_draft{.path = options.draft_model_path,
                                  .format = options.format,
                                  .seed = options.seed,
                                  .dtype = options.dtype,
                                  .pool = options.pool};
  ESP_ASSIGN_OR_RETURN(const ModelInfo target_info, read_model_info(own));
  ESP_ASSIGN_OR_RETURN(const ModelInfo draft_info, read_model_info(of_draft));
  ESP_RETURN_IF_ERROR(check_draft_model(target_info, draft_info));
  ESP_ASSIGN_OR_RETURN(auto target, load(own, nullptr));
  auto draft = load(of_draft, nullptr);
  if (!draft) return fail(draft.error().with_context("the draft model"));
  auto head = make_draft_model(*std::move(draft), target->info());
  return join_draft(std::move(target), std::move(head));
}

}  // namespace

std::vector<float> Model::finish_pooled(std::span<const float>) {
  ESP_CHECK(false, "{} makes no vectors", info().architecture);
  return {};
}

Result<AdapterInfo> Model::load_adapter(AdapterId, const std::filesystem::path&, int32_t) {
  return fail(error(StatusCode::kFailedPrecondition,
                    "{} was loaded without room for adapters: set --enable-lora",
                    info().architecture));
}

Status Model::replace_weights(const OpenWeights&) {
  return error(StatusCode::kUnimplemented, "the weights of {} cannot be replaced: start anew",
               info().architecture);
}

Result<JsonObject> read_changed_config(const ModelLoadOptions& options) {
  std::optional<JsonObject> changes;
  return read_config(options, changes);
}

Result<ModelPlan> plan_model(const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_spec(options));
  ESP_RETURN_IF_ERROR(set_context_length(options.context_length, spec));
  spec.expert_groups = options.ep_size;
  spec.whole_attention = options.enable_dp_attention;
  ESP_RETURN_IF_ERROR(place_experts(options.experts, spec));
  if (!options.control_vectors.empty()) {
    ESP_ASSIGN_OR_RETURN(
        spec.control_vectors,
        ControlVectors::load(options.control_vectors, static_cast<int32_t>(spec.layers.size()),
                             spec.hidden_size));
  }
  ESP_ASSIGN_OR_RETURN(const DType type, choose_dtype(options.dtype, spec.checkpoint_dtype));
  return ModelPlan{std::move(spec), type, choose_weight_types(options.dtype, type)};
}

Result<std::unique_ptr<Model>> load_model(const ModelLoadOptions& options) {
  if (!options.draft_model_path.empty()) return load_with_draft_model(options);
  return load(options, nullptr);
}

Result<std::unique_ptr<Model>> load_model_part(const ModelLoadOptions& options, RankGroup& group) {
  const auto refuse = [](std::string_view what, std::string_view flag) {
    return fail(error(StatusCode::kUnimplemented,
                      "{} not divided among nodes: leave {} or --nnodes out", what, flag));
  };
  if (options.pp_size != 1) return refuse("stages are", "--pp-size");
  if (options.enable_lora) return refuse("adapters are", "--enable-lora");
  if (!options.control_vectors.empty()) return refuse("control vectors are", "--control-vector");
  if (!options.draft_path.empty()) return refuse("draft heads are", "--speculative-algorithm");
  if (options.experts.rebalance.num_iterations > 0)
    return refuse("experts that move are", "--enable-eplb");
  return load(options, &group);
}

Result<ModelInfo> read_model_info(const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(const DecoderSpec spec, read_spec(options));
  return describe_model(spec);
}

Result<std::map<std::string, int64_t>> read_weight_memory(const ModelLoadOptions& options,
                                                          ProgramKind kind) {
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(options));
  if (kind == ProgramKind::kGpu) return read_gpu_weight_memory(options, plan);
  ESP_RETURN_IF_ERROR(check_cpu_types(plan.spec, plan.weights));
  if (options.format == LoadFormat::kDummy) {
    return weight_memory(plan.spec, plan.weights,
                         [](std::string_view) { return std::optional<BlockFormat>(); });
  }
  ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.path));
  const CheckpointSource source(checkpoint, plan.spec, plan.type);
  return weight_memory(plan.spec, plan.weights,
                       [&](std::string_view name) { return source.stored_format(name); });
}

Result<ProgramPlan> plan_program(const ModelLoadOptions& options, ProgramKind kind) {
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(options));
  const bool cpu = kind == ProgramKind::kCpu;
  const program::Program lowered = program::lower(plan.spec);
  const auto layout = std::make_shared<const WeightLayout>(weight_layout(plan.spec));
  std::map<std::string, BlockFormat> stored;
  if (cpu && options.format != LoadFormat::kDummy) {
    ESP_ASSIGN_OR_RETURN(stored, read_stored_formats(options, plan));
  }
  program::Program program = cpu ? program::cpu_passes(lowered) : program::gpu_passes(lowered);
  std::vector<program::Variant> variants;
  if (!cpu && plan.type == DType::kBFloat16) variants = program::gpu_variants(program, lowered);
  WeightTypes types = cpu ? plan.weights : WeightTypes(plan.type);
  types.e4m3 = plan.weights.e4m3, types.int4 = plan.weights.int4;
  types.nvfp4 = plan.weights.nvfp4;
  types.mxfp4 = plan.weights.mxfp4;
  types.keep_blocks = plan.weights.keep_blocks && (cpu || plan.type == DType::kBFloat16);
  return ProgramPlan{.program = std::move(program),
                     .weight_bytes =
                         [spec = plan.spec, layout, stored, types](WeightId id, int64_t elements) {
                           return stored_bytes(spec, *layout, types, stored, id, elements);
                         },
                     .type = cpu ? DType::kFloat32 : plan.type,
                     .variants = std::move(variants)};
}

Result<std::optional<StoredVocabulary>> read_model_vocabulary(const std::filesystem::path& path) {
  return read_stored_vocabulary(path);
}

Result<GenerationDefaults> read_generation_defaults(const std::filesystem::path& folder) {
  ESP_ASSIGN_OR_RETURN(const GenerationConfig config, read_generation_config(folder));
  return GenerationDefaults{.temperature = config.temperature,
                            .top_p = config.top_p,
                            .min_p = config.min_p,
                            .repetition_penalty = config.repetition_penalty,
                            .top_k = config.top_k,
                            .max_new_tokens = config.max_new_tokens};
}

}  // namespace espalier
