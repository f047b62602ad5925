#include "checkpoint/gguf_model.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <numbers>

#include "checkpoint/quantized_tensor.h"

namespace espalier {
namespace {

namespace json = boost::json;

struct Architecture {
  std::string_view gguf, hugging_face, model_type;
  bool interleaved;  // conversion interleaved the two halves of q's and k's heads
};
constexpr Architecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM", "llama", true},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", false},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", false},
};

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& one : kArchitectures) {
    if (one.gguf == name) return &one;
  }
  return nullptr;
}

// A tensor's name is one of these, or "blk.N." and one of a layer's, then ".weight" or ".bias".
struct NamePair {
  std::string_view gguf, hugging_face;
};
constexpr NamePair kOuterNames[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr NamePair kLayerNames[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

// The factors of rotated pairs, which the configuration holds instead.
constexpr std::string_view kRopeFactors = "rope_freqs.weight";

// The Hugging Face name; the file's own for one that is not known, for the loader to refuse.
std::string renamed(std::string_view name) {
  const size_t dot = name.rfind('.');
  std::string_view stem = name.substr(0, dot);
  const std::string_view kind = dot < name.size() ? name.substr(dot) : std::string_view();
  std::string prefix;
  if (stem.starts_with("blk.")) {
    const size_t end = stem.find('.', 4);
    if (end == std::string_view::npos) return std::string(name);
    prefix = fmt::format("model.layers.{}.", stem.substr(4, end - 4));
    stem = stem.substr(end + 1);
    for (const NamePair& pair : kLayerNames) {
      if (pair.gguf == stem) return fmt::format("{}{}{}", prefix, pair.hugging_face, kind);
    }
    return std::string(name);
  }
  for (const NamePair& pair : kOuterNames) {
    if (pair.gguf == stem) return fmt::format("{}{}", pair.hugging_face, kind);
  }
  return std::string(name);
}

const GgufTensor* find_tensor(const GgufFile& file, std::string_view name) {
  const auto it = std::find_if(file.tensors().begin(), file.tensors().end(),
                               [&](const GgufTensor& tensor) { return tensor.name == name; });
  return it == file.tensors().end() ? nullptr : &*it;
}

// Reads the fields of one architecture: "llama.block_count".
class Fields {
 public:
  Fields(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(architecture) {}

  std::string key(std::string_view name) const { return fmt::format("{}.{}", prefix_, name); }
  std::optional<int64_t> integer(std::string_view name) const { return file_.integer(key(name)); }
  std::optional<double> number(std::string_view name) const { return file_.number(key(name)); }
  std::optional<std::string_view> string(std::string_view name) const {
    return file_.string(key(name));
  }
  Result<int64_t> required(std::string_view name) const {
    if (const std::optional<int64_t> value = integer(name)) return *value;
    return fail(error(StatusCode::kDataLoss, "{}: the metadata key '{}' is missing, or no integer",
                      file_.path().string(), key(name)));
  }

 private:
  const GgufFile& file_;
  const std::string prefix_;
};

struct Llama3Scaling {
  double factor = 8;
  double low = 1, high = 4, original_context = 8192;
};

// The factor of pair i as transformers' llama3 scaling makes it.
double llama3_factor(const Llama3Scaling& scaling, double theta, size_t i, size_t num_pairs) {
  const double frequency =
      std::pow(theta, -static_cast<double>(i) / static_cast<double>(num_pairs));
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < scaling.original_context / scaling.high) return 1;
  if (wavelength > scaling.original_context / scaling.low) return scaling.factor;
  const double smooth =
      (scaling.original_context / wavelength - scaling.low) / (scaling.high - scaling.low);
  return 1 / ((1 - smooth) / scaling.factor + smooth);
}

// Llama 3's own bounds, and the original context (a power of two) that makes these factors.
std::optional<Llama3Scaling> find_scaling(const std::vector<float>& factors, double theta) {
  Llama3Scaling scaling;
  scaling.factor = static_cast<double>(*std::max_element(factors.begin(), factors.end()));
  for (scaling.original_context = 16; scaling.original_context <= 1 << 20;
       scaling.original_context *= 2) {
    bool equal = true;
    for (size_t i = 0; equal && i < factors.size(); ++i) {
      const double expected = llama3_factor(scaling, theta, i, factors.size());
      equal = std::abs(static_cast<double>(factors[i]) - expected) <= 1e-3 * expected;
    }
    if (equal) return scaling;
  }
  return std::nullopt;
}

// rope_freqs.weight holds the factors that llama3's scaling makes; its parameters are found again
// from them, and whatever they do not make is refused.
Status add_rope_factors(const GgufFile& file, double theta, json::object& config) {
  const GgufTensor* tensor = find_tensor(file, kRopeFactors);
  if (tensor == nullptr || tensor->num_elements() == 0) return {};
  if (tensor->type->name != "F32") {
    return error(StatusCode::kUnimplemented, "{}: '{}' is of type {}", file.path().string(),
                 kRopeFactors, tensor->type->name);
  }
  std::vector<float> factors(static_cast<size_t>(tensor->num_elements()));
  for (size_t i = 0; i < factors.size(); ++i) {
    tensor->type->dequantize(tensor->bytes.data() + i * sizeof(float), &factors[i]);
  }
  const std::optional<Llama3Scaling> found = find_scaling(factors, theta);
  if (!found) {
    return error(StatusCode::kUnimplemented,
                 "{}: '{}' scales rotations in a way that is not known: not as Llama 3's scaling "
                 "does for any original context",
                 file.path().string(), kRopeFactors);
  }
  const Llama3Scaling& scaling = *found;
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", scaling.factor},
                            {"low_freq_factor", scaling.low},
                            {"high_freq_factor", scaling.high},
                            {"original_max_position_embeddings", scaling.original_context}};
  return {};
}

Status add_rope(const GgufFile& file, const Fields& fields, json::object& config) {
  const double theta = fields.number("rope.freq_base").value_or(10000.0);
  config["rope_theta"] = theta;
  ESP_RETURN_IF_ERROR(add_rope_factors(file, theta, config));
  const std::string_view type = fields.string("rope.scaling.type").value_or("none");
  const double linear = fields.number("rope.scale_linear").value_or(1.0);
  if (type == "none" && linear == 1.0) return {};
  json::object scaling{{"rope_type", type == "none" ? "linear" : type},
                       {"factor", fields.number("rope.scaling.factor").value_or(linear)}};
  if (const auto original = fields.integer("rope.scaling.original_context_length")) {
    scaling["original_max_position_embeddings"] = *original;
  }
  config["rope_scaling"] = std::move(scaling);
  return {};
}

Status add_sizes(const GgufFile& file, const Fields& fields, json::object& config) {
  static constexpr NamePair kRequired[] = {{"embedding_length", "hidden_size"},
                                           {"feed_forward_length", "intermediate_size"},
                                           {"block_count", "num_hidden_layers"},
                                           {"attention.head_count", "num_attention_heads"},
                                           {"context_length", "max_position_embeddings"}};
  for (const NamePair& pair : kRequired) {
    ESP_ASSIGN_OR_RETURN(config[pair.hugging_face], fields.required(pair.gguf));
  }
  if (const auto kv_heads = fields.integer("attention.head_count_kv")) {
    config["num_key_value_heads"] = *kv_heads;
  }
  if (const auto head_dim = fields.integer("attention.key_length")) config["head_dim"] = *head_dim;
  if (const auto epsilon = fields.number("attention.layer_norm_rms_epsilon")) {
    // The file holds a float; config.json would say 1e-05.
    config["rms_norm_eps"] = *epsilon;
  }
  const GgufTensor* embedding = find_tensor(file, "token_embd.weight");
  if (embedding != nullptr && embedding->shape.size() == 2) {
    config["vocab_size"] = embedding->shape[0];
  } else if (const auto* tokens = file.strings("tokenizer.ggml.tokens")) {
    config["vocab_size"] = static_cast<int64_t>(tokens->size());
  }
  return {};
}

// Row r of a head of `dim` rows lies at this row of the converted head.
int64_t interleaved_row(int64_t row, int64_t dim) {
  return row < dim / 2 ? 2 * row : 2 * (row - dim / 2) + 1;
}

std::vector<int64_t> interleaved_rows(int64_t num_rows, int64_t head_dim) {
  std::vector<int64_t> rows(static_cast<size_t>(num_rows));
  for (int64_t r = 0; r < num_rows; ++r) {
    rows[static_cast<size_t>(r)] =
        r / head_dim * head_dim + interleaved_row(r % head_dim, head_dim);
  }
  return rows;
}

Result<CheckpointTensor> to_checkpoint_tensor(const GgufTensor& tensor, int64_t interleaved_dim) {
  CheckpointTensor out;
  out.name = renamed(tensor.name);
  out.dtype_name = tensor.type->name;
  out.shape = tensor.shape;
  out.bytes = tensor.bytes;
  const bool moves = interleaved_dim > 0 &&
                     (out.name.ends_with("q_proj.weight") || out.name.ends_with("k_proj.weight") ||
                      out.name.ends_with("q_proj.bias") || out.name.ends_with("k_proj.bias"));
  if (!moves) out.dtype = parse_dtype(tensor.type->name);
  if (out.dtype) return out;
  if (tensor.type->dequantize == nullptr) return out;  // refused by name where it is needed
  std::vector<int64_t> rows;
  if (moves) {
    if (out.shape.empty() || out.shape[0] % interleaved_dim != 0) {
      return fail(error(StatusCode::kDataLoss, "tensor '{}' has shape {}, no whole heads of {}",
                        tensor.name, shape_string(out.shape), interleaved_dim));
    }
    rows = interleaved_rows(out.shape[0], interleaved_dim);
  }
  out.reader = make_block_reader(tensor, std::move(rows));
  return out;
}

}  // namespace

std::optional<std::filesystem::path> find_gguf(const std::filesystem::path& model_path) {
  std::error_code ignored;
  if (model_path.extension() == ".gguf") return model_path;
  if (!std::filesystem::is_directory(model_path, ignored) ||
      std::filesystem::exists(model_path / "config.json", ignored)) {
    return std::nullopt;
  }
  std::optional<std::filesystem::path> first;
  for (const auto& entry : std::filesystem::directory_iterator(model_path, ignored)) {
    if (entry.path().extension() != ".gguf") continue;
    if (!first || entry.path() < *first) first = entry.path();
  }
  return first;
}

Result<JsonObject> gguf_config(const GgufFile& file) {
  const std::optional<std::string_view> name = file.string("general.architecture");
  if (!name) {
    return fail(error(StatusCode::kDataLoss,
                      "{}: the metadata key 'general.architecture' is missing",
                      file.path().string()));
  }
  const Architecture* architecture = find_architecture(*name);
  const Fields fields(file, *name);
  json::object config;
  config["architectures"] =
      json::array{architecture != nullptr ? architecture->hugging_face : *name};
  config["model_type"] = architecture != nullptr ? architecture->model_type : *name;
  if (architecture != nullptr) {
    ESP_RETURN_IF_ERROR(add_sizes(file, fields, config));
    ESP_RETURN_IF_ERROR(add_rope(file, fields, config));
  }
  config["attention_bias"] = find_tensor(file, "blk.0.attn_output.bias") != nullptr;
  config["mlp_bias"] = find_tensor(file, "blk.0.ffn_up.bias") != nullptr;
  config["tie_word_embeddings"] = find_tensor(file, "output.weight") == nullptr;
  const bool is_float32 = std::all_of(file.tensors().begin(), file.tensors().end(),
                                      [](const GgufTensor& t) { return t.type->name == "F32"; });
  config["torch_dtype"] = is_float32 ? "float32" : "bfloat16";
  json::array eos;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (const auto id = file.integer(key)) eos.push_back(*id);
  }
  if (!eos.empty()) config["eos_token_id"] = std::move(eos);
  return JsonObject::parse(json::serialize(config), file.path().string());
}

Result<std::vector<CheckpointTensor>> gguf_tensors(const std::vector<GgufFile>& files) {
  const GgufFile& first = files.front();
  const std::string_view name = first.string("general.architecture").value_or("");
  const Architecture* architecture = find_architecture(name);
  int64_t interleaved_dim = 0;
  if (architecture != nullptr && architecture->interleaved) {
    const Fields fields(first, name);
    ESP_ASSIGN_OR_RETURN(const int64_t heads, fields.required("attention.head_count"));
    ESP_ASSIGN_OR_RETURN(const int64_t width, fields.required("embedding_length"));
    if (heads <= 0 || width <= 0) {
      return fail(error(StatusCode::kDataLoss, "{}: {} heads in a width of {}",
                        first.path().string(), heads, width));
    }
    interleaved_dim = fields.integer("attention.key_length").value_or(width / heads);
    if (interleaved_dim <= 0 || interleaved_dim % 2 != 0) {
      return fail(
          error(StatusCode::kDataLoss, "{}: heads of {}", first.path().string(), interleaved_dim));
    }
  }
  std::vector<CheckpointTensor> tensors;
  for (const GgufFile& file : files) {
    for (const GgufTensor& tensor : file.tensors()) {
      if (tensor.name == kRopeFactors) continue;
      Result<CheckpointTensor> made = to_checkpoint_tensor(tensor, interleaved_dim);
      if (!made) return fail(made.error().with_context(file.path().string()));
      tensors.push_back(std::move(*made));
    }
  }
  return tensors;
}

Result<StoredVocabulary> gguf_vocabulary(const GgufFile& file) {
  const auto key = [](std::string_view name) { return fmt::format("tokenizer.ggml.{}", name); };
  const GgufValue::Strings* tokens = file.strings(key("tokens"));
  const std::optional<std::string_view> model = file.string(key("model"));
  if (tokens == nullptr || !model) {
    return fail(error(StatusCode::kNotFound,
                      "{} holds no vocabulary; give one with --tokenizer-path",
                      file.path().string()));
  }
  StoredVocabulary out;
  out.model = *model;
  out.pre_tokenizer = file.string(key("pre")).value_or("");
  out.tokens.assign(tokens->begin(), tokens->end());
  for (const double score : file.numbers(key("scores"))) {
    out.scores.push_back(static_cast<float>(score));
  }
  for (const double type : file.numbers(key("token_type"))) {
    out.types.push_back(static_cast<int32_t>(type));
  }
  if (const auto* merges = file.strings(key("merges"))) {
    out.merges.assign(merges->begin(), merges->end());
  }
  for (const double byte : file.numbers(key("precompiled_charsmap"))) {
    out.charsmap += static_cast<char>(static_cast<int>(byte));
  }
  const auto id = [&](std::string_view name) -> std::optional<int32_t> {
    const std::optional<int64_t> value = file.integer(key(name));
    return value ? std::optional(static_cast<int32_t>(*value)) : std::nullopt;
  };
  out.bos_id = id("bos_token_id");
  out.eos_id = id("eos_token_id");
  out.eot_id = id("eot_token_id");
  out.unk_id = id("unknown_token_id");
  out.add_bos = file.boolean(key("add_bos_token"));
  out.add_eos = file.boolean(key("add_eos_token"));
  out.add_space_prefix = file.boolean(key("add_space_prefix"));
  out.remove_extra_whitespaces = file.boolean(key("remove_extra_whitespaces"));
  out.chat_template = file.string("tokenizer.chat_template").value_or("");
  return out;
}

}  // namespace espalier
