#include "checkpoint/model_transcode.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "checkpoint/convert.h"
#include "checkpoint/gguf_families.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/quantized_tensor.h"

namespace espalier {
namespace {

constexpr std::string_view kWritten[] = {"llama", "qwen2", "qwen3"};  // model types, as a GGUF's
constexpr uint32_t kQuantizationVersion = 2;  // general.quantization_version of these formats

const BlockEncoder& float32() { return block_encoders().front(); }

// general.quantization_version is there with quantised tensors alone.
void add_types(GgufMetadata& metadata, const GgufTypes& types) {
  metadata.integer("general.file_type", types.matrices->file_type);
  if (block_type_of(*types.matrices).elements > 1)
    metadata.integer("general.quantization_version", kQuantizationVersion);
  else
    metadata.remove("general.quantization_version");
}

const BlockEncoder& encoder_of(std::string_view name, std::span<const int64_t> shape,
                               const GgufTypes& types) {
  const bool is_vocabulary = name == "token_embd.weight" || name == "output.weight";
  const bool is_matrix = shape.size() >= 2 && name.ends_with(".weight") &&
                         name.find("norm") == std::string_view::npos &&
                         name.find("ffn_gate_inp") == std::string_view::npos &&
                         name != "position_embd.weight";
  if (!is_matrix) return float32();
  const BlockEncoder& wanted = is_vocabulary ? *types.vocabulary : *types.matrices;
  if (shape.back() % block_type_of(wanted).elements != 0) return *find_block_encoder("F16");
  return wanted;
}

std::function<void(int64_t, std::span<float>)> reader_of(const CheckpointTensor& tensor) {
  return [&tensor](int64_t first, std::span<float> out) { copy_as_float(tensor, first, out); };
}

// Where row r of a head of the GGUF lies in the head that transformers has: conversion puts the two
// halves in turns.
int64_t halves_row(int64_t row, int64_t dim) { return row % 2 == 0 ? row / 2 : dim / 2 + row / 2; }

// Elements of a matrix (or a vector) whose heads of `dim` rows are in turns.
std::function<void(int64_t, std::span<float>)> turned_reader(const CheckpointTensor& tensor,
                                                             int64_t dim) {
  const int64_t columns = tensor.shape.size() < 2 ? 1 : tensor.shape[1];
  return [&tensor, dim, columns](int64_t first, std::span<float> out) {
    while (!out.empty()) {
      const int64_t row = first / columns, column = first % columns;
      const auto count =
          static_cast<size_t>(std::min(static_cast<int64_t>(out.size()), columns - column));
      const int64_t from = row / dim * dim + halves_row(row % dim, dim);
      copy_as_float(tensor, from * columns + column, out.first(count));
      out = out.subspan(count);
      first += static_cast<int64_t>(count);
    }
  };
}

// One model's folder on its way into a GGUF.
class FolderPlan {
 public:
  FolderPlan(const Checkpoint& checkpoint, const JsonObject& config, const GgufFamily& family,
             const GgufTypes& types)
      : checkpoint_(checkpoint), config_(config), family_(family), types_(types) {}

  Status add_fields(std::string_view name) {
    plan_.metadata.text("general.architecture", family_.gguf);
    plan_.metadata.text("general.type", "model");
    plan_.metadata.text("general.name", name);
    add_types(plan_.metadata, types_);
    ESP_RETURN_IF_ERROR(check_fields());
    ESP_RETURN_IF_ERROR(add_sizes());
    return add_rope();
  }

  Status add_tensors() {
    ESP_ASSIGN_OR_RETURN(const bool tied, config_.boolean_or("tie_word_embeddings", false));
    for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
      if (tied && tensor.name == "lm_head.weight") continue;
      // Buffers of old checkpoints, which the configuration says.
      if (tensor.name.ends_with("rotary_emb.inv_freq")) continue;
      const std::optional<std::string> name = family_.gguf_name_of(tensor.name);
      if (!name)
        return error(StatusCode::kUnimplemented,
                     "a GGUF has no place for the tensor '{}' of this model", tensor.name);
      if (!tensor.readable())
        return error(StatusCode::kUnimplemented,
                     "the tensor '{}' is of the type {}, which is not "
                     "read",
                     tensor.name, tensor.dtype_name);
      add_tensor(*name, tensor);
    }
    return {};
  }

  GgufPlan take() { return std::move(plan_); }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", family_.gguf, name); }
  Status refuse(std::string_view field, std::string_view why) const {
    return error(StatusCode::kUnimplemented, "{}: a GGUF cannot say '{}': {}", config_.name(),
                 field, why);
  }

  // What a GGUF of these families has no key for.
  Status check_fields() {
    ESP_ASSIGN_OR_RETURN(const std::string activation, config_.string_or("hidden_act", "silu"));
    if (activation != "silu" && activation != "swish") return refuse("hidden_act", activation);
    const bool windows = config_.has("sliding_window");
    ESP_ASSIGN_OR_RETURN(
        const bool used,
        config_.boolean_or("use_sliding_window", windows && !family_.gguf.starts_with("qwen")));
    if (windows && used) return refuse("sliding_window", "layers of this family see everything");
    return {};
  }

  Status add_sizes() {
    static constexpr GgufName kSizes[] = {{"embedding_length", "hidden_size"},
                                          {"feed_forward_length", "intermediate_size"},
                                          {"block_count", "num_hidden_layers"},
                                          {"attention.head_count", "num_attention_heads"},
                                          {"context_length", "max_position_embeddings"},
                                          {"vocab_size", "vocab_size"}};
    constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
    for (const GgufName& each : kSizes) {
      ESP_ASSIGN_OR_RETURN(const int64_t value, config_.integer(each.hugging_face, 1, kMax));
      plan_.metadata.integer(key(each.gguf), static_cast<uint32_t>(value));
    }
    ESP_ASSIGN_OR_RETURN(const int64_t heads, config_.integer("num_attention_heads"));
    ESP_ASSIGN_OR_RETURN(const int64_t width, config_.integer("hidden_size"));
    ESP_ASSIGN_OR_RETURN(const int64_t kv_heads,
                         config_.integer_or("num_key_value_heads", heads, 1, kMax));
    ESP_ASSIGN_OR_RETURN(head_dim_, config_.integer_or("head_dim", width / heads, 2, kMax));
    ESP_ASSIGN_OR_RETURN(const double epsilon, config_.number_or("rms_norm_eps", 1e-6));
    plan_.metadata.integer(key("attention.head_count_kv"), static_cast<uint32_t>(kv_heads));
    for (const char* name :
         {"attention.key_length", "attention.value_length", "rope.dimension_count"})
      plan_.metadata.integer(key(name), static_cast<uint32_t>(head_dim_));
    plan_.metadata.number(key("attention.layer_norm_rms_epsilon"), static_cast<float>(epsilon));
    return {};
  }

  Status add_rope() {
    ESP_ASSIGN_OR_RETURN(double theta, config_.number_or("rope_theta", 10000.0));
    const char* field = config_.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
    if (!config_.has(field)) {
      plan_.metadata.number(key("rope.freq_base"), static_cast<float>(theta));
      return {};
    }
    ESP_ASSIGN_OR_RETURN(const JsonObject rope, config_.object(field));
    ESP_ASSIGN_OR_RETURN(theta, rope.number_or("rope_theta", theta));
    plan_.metadata.number(key("rope.freq_base"), static_cast<float>(theta));
    ESP_ASSIGN_OR_RETURN(const std::string old_type, rope.string_or("type", "default"));
    ESP_ASSIGN_OR_RETURN(const std::string type, rope.string_or("rope_type", old_type));
    if (type == "default") return {};
    ESP_ASSIGN_OR_RETURN(const double factor, rope.number("factor"));
    ESP_ASSIGN_OR_RETURN(const int64_t context, config_.integer("max_position_embeddings"));
    ESP_ASSIGN_OR_RETURN(const int64_t original,
                         rope.integer_or("original_max_position_embeddings", context, 1));
    if (type == "llama3") return add_llama3(rope, factor, original, theta);
    if (type != "linear" && type != "yarn") return refuse(field, type);
    static constexpr std::string_view kSaid[] = {"type", "rope_type", "rope_theta", "factor",
                                                 "original_max_position_embeddings"};
    for (const std::string_view name : rope.keys())
      if (rope.has(name) && std::ranges::find(kSaid, name) == std::end(kSaid))
        return refuse(name, "of this scaling it has its factor and its original context");
    plan_.metadata.text(key("rope.scaling.type"), type);
    plan_.metadata.number(key("rope.scaling.factor"), static_cast<float>(factor));
    plan_.metadata.integer(key("rope.scaling.original_context_length"),
                           static_cast<uint32_t>(original));
    return {};
  }

  Status add_llama3(const JsonObject& rope, double factor, int64_t original, double theta) {
    ESP_ASSIGN_OR_RETURN(const double low, rope.number_or("low_freq_factor", 1));
    ESP_ASSIGN_OR_RETURN(const double high, rope.number_or("high_freq_factor", 4));
    if (low != 1 || high != 4) return refuse("low_freq_factor", "it is not Llama 3's own");
    const auto factors = std::make_shared<const std::vector<float>>(llama3_rope_factors(
        factor, static_cast<double>(original), theta, static_cast<size_t>(head_dim_ / 2)));
    // Shared: a plan is copied, and its closures with it.
    plan_.tensors.push_back({.name = "rope_freqs.weight",
                             .shape = {head_dim_ / 2},
                             .encoder = &float32(),
                             .read = [factors](int64_t first, std::span<float> out) {
                               std::ranges::copy_n(factors->begin() + first,
                                                   static_cast<std::ptrdiff_t>(out.size()),
                                                   out.begin());
                             }});
    return {};
  }

  void add_tensor(const std::string& name, const CheckpointTensor& tensor) {
    const bool turns = family_.interleaved && (tensor.name.find(".q_proj.") != std::string::npos ||
                                               tensor.name.find(".k_proj.") != std::string::npos);
    plan_.tensors.push_back(
        {.name = name,
         .shape = tensor.shape,
         .encoder = &encoder_of(name, tensor.shape, types_),
         .read = turns ? turned_reader(tensor, head_dim_) : reader_of(tensor),
         .done = [this_checkpoint = &checkpoint_, &tensor] { this_checkpoint->release(tensor); }});
  }

  const Checkpoint& checkpoint_;
  const JsonObject& config_;
  const GgufFamily& family_;
  const GgufTypes& types_;
  int64_t head_dim_ = 0;
  GgufPlan plan_;
};

void add_vocabulary(GgufMetadata& metadata, const StoredVocabulary& vocabulary) {
  const auto key = [](std::string_view name) { return fmt::format("tokenizer.ggml.{}", name); };
  metadata.text(key("model"), vocabulary.model);
  metadata.text(key("pre"), vocabulary.pre_tokenizer);
  metadata.texts(key("tokens"), vocabulary.tokens);
  metadata.integers(key("token_type"), vocabulary.types);
  metadata.texts(key("merges"), vocabulary.merges);
  for (const auto& [name, id] : {std::pair{"bos_token_id", vocabulary.bos_id},
                                 {"eos_token_id", vocabulary.eos_id},
                                 {"eot_token_id", vocabulary.eot_id},
                                 {"unknown_token_id", vocabulary.unk_id}})
    if (id) metadata.integer(key(name), static_cast<uint32_t>(*id));
  if (vocabulary.add_bos) metadata.boolean(key("add_bos_token"), *vocabulary.add_bos);
  if (vocabulary.add_eos) metadata.boolean(key("add_eos_token"), *vocabulary.add_eos);
  if (!vocabulary.chat_template.empty())
    metadata.text("tokenizer.chat_template", vocabulary.chat_template);
}

}  // namespace

Result<GgufPlan> plan_gguf(const std::vector<GgufFile>& files, const GgufTypes& types) {
  GgufPlan plan;
  for (const GgufEntry& entry : files.front().entries())
    // The parts become one file, with the format's own alignment.
    if (!entry.key.starts_with("split.") && entry.key != "general.alignment")
      plan.metadata.raw(entry.key, entry.bytes);
  add_types(plan.metadata, types);
  for (const GgufFile& file : files) {
    for (const GgufTensor& tensor : file.tensors()) {
      if (tensor.type->dequantize == nullptr)
        return fail(error(StatusCode::kUnimplemented,
                          "{}: the tensor '{}' is of the type {}, which is not read",
                          file.path().string(), tensor.name, tensor.type->name));
      const BlockEncoder& encoder = encoder_of(tensor.name, tensor.shape, types);
      TensorToWrite out{.name = std::string(tensor.name),
                        .shape = tensor.shape,
                        .encoder = &encoder,
                        .done = [&file, &tensor] { file.release(tensor.bytes); }};
      if (encoder.name == tensor.type->name) {
        out.stored = tensor.bytes;
      } else {
        const auto reader = make_block_reader(tensor, {});
        out.read = [reader](int64_t first, std::span<float> to) { reader->read(first, to); };
      }
      plan.tensors.push_back(std::move(out));
    }
  }
  return plan;
}

Result<GgufPlan> plan_gguf(const Checkpoint& checkpoint, const JsonObject& config,
                           const GenerationConfig& generation, const StoredVocabulary& vocabulary,
                           std::string_view name, const GgufTypes& types) {
  ESP_ASSIGN_OR_RETURN(const std::vector<std::string> architectures,
                       config.strings("architectures"));
  std::string architecture = architectures.empty() ? "" : architectures.front();
  if (architecture == "MistralForCausalLM") architecture = "LlamaForCausalLM";
  const GgufFamily* family = find_gguf_family(architecture);
  if (family == nullptr || std::ranges::find(kWritten, family->model_type) == std::end(kWritten))
    return fail(error(StatusCode::kUnimplemented,
                      "{}: {} is not written as a GGUF; LlamaForCausalLM, MistralForCausalLM, "
                      "Qwen2ForCausalLM and Qwen3ForCausalLM are",
                      config.name(), architecture.empty() ? "no architecture" : architecture));
  FolderPlan plan(checkpoint, config, *family, types);
  ESP_RETURN_IF_ERROR(plan.add_fields(name));
  ESP_RETURN_IF_ERROR(plan.add_tensors());
  GgufPlan out = plan.take();
  add_generation_config(generation, out.metadata);
  add_vocabulary(out.metadata, vocabulary);
  return out;
}

Result<std::vector<TensorToWrite>> plan_safetensors(const Checkpoint& checkpoint,
                                                    const BlockEncoder& type) {
  std::vector<TensorToWrite> out;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (!tensor.readable())
      return fail(error(StatusCode::kUnimplemented,
                        "the tensor '{}' is of the type {}, which is not read", tensor.name,
                        tensor.dtype_name));
    out.push_back({.name = tensor.name,
                   .shape = tensor.shape,
                   .encoder = &type,
                   .read = reader_of(tensor),
                   .done = [&checkpoint, &tensor] { checkpoint.release(tensor); }});
  }
  return out;
}

}  // namespace espalier
