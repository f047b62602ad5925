#include "checkpoint/gguf_model.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <numbers>

#include "checkpoint/gguf_families.h"
#include "checkpoint/quantized_tensor.h"

namespace espalier {
namespace {

namespace json = boost::json;

// The factors of rotated pairs, which the configuration holds instead.
constexpr std::string_view kRopeFactors[] = {"rope_freqs.weight", "rope_factors_long.weight",
                                             "rope_factors_short.weight"};

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
  const GgufTensor* tensor = find_gguf_tensor(file, kRopeFactors[0]);
  if (tensor == nullptr || tensor->num_elements() == 0) return {};
  ESP_ASSIGN_OR_RETURN(const std::vector<float> factors, gguf_floats(file, *tensor));
  const std::optional<Llama3Scaling> found = find_scaling(factors, theta);
  if (!found) {
    return error(StatusCode::kUnimplemented,
                 "{}: '{}' scales rotations in a way that is not known: not as Llama 3's scaling "
                 "does for any original context",
                 file.path().string(), kRopeFactors[0]);
  }
  const Llama3Scaling& scaling = *found;
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", scaling.factor},
                            {"low_freq_factor", scaling.low},
                            {"high_freq_factor", scaling.high},
                            {"original_max_position_embeddings", scaling.original_context}};
  return {};
}

Status add_rope(const GgufFile& file, const GgufFields& fields, json::object& config) {
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

Status add_sizes(const GgufFile& file, const GgufFields& fields, json::object& config) {
  static constexpr GgufName kRequired[] = {{"embedding_length", "hidden_size"},
                                           {"feed_forward_length", "intermediate_size"},
                                           {"block_count", "num_hidden_layers"},
                                           {"attention.head_count", "num_attention_heads"},
                                           {"context_length", "max_position_embeddings"}};
  for (const GgufName& pair : kRequired) {
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
  const GgufTensor* embedding = find_gguf_tensor(file, "token_embd.weight");
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

// Elements of another reader and a number.
class OffsetReader final : public TensorReader {
 public:
  OffsetReader(std::shared_ptr<const TensorReader> of, float offset)
      : of_(std::move(of)), offset_(offset) {}
  void read(int64_t first, std::span<float> out) const override {
    of_->read(first, out);
    for (float& value : out) value += offset_;
  }

 private:
  const std::shared_ptr<const TensorReader> of_;
  const float offset_;
};

// DeepSeek's kv_b out of the two tensors that conversion makes of it for the absorbed form: of each
// head the rows of its keys, which lie transposed in k_b [heads, rank, nope], then those of its
// values, v_b [heads, value, rank].
class LatentReader final : public TensorReader {
 public:
  LatentReader(const GgufTensor& k, const GgufTensor& v)
      : k_(make_block_reader(k, {})),
        v_(make_block_reader(v, {})),
        rank_(k.shape[1]),
        nope_(k.shape[2]),
        value_(v.shape[1]) {}

  void read(int64_t first, std::span<float> out) const override {
    std::vector<float> keys(static_cast<size_t>(rank_ * nope_)), row(static_cast<size_t>(rank_));
    int64_t head_of_keys = -1, row_read = -1;
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t at = first + static_cast<int64_t>(i), r = at / rank_, column = at % rank_;
      const int64_t head = r / (nope_ + value_), in_head = r % (nope_ + value_);
      if (in_head < nope_) {
        if (head != head_of_keys) k_->read(head * rank_ * nope_, keys);
        head_of_keys = head;
        out[i] = keys[static_cast<size_t>(column * nope_ + in_head)];
      } else {
        if (r != row_read) v_->read((head * value_ + in_head - nope_) * rank_, row);
        row_read = r;
        out[i] = row[static_cast<size_t>(column)];
      }
    }
  }

 private:
  const std::shared_ptr<const TensorReader> k_, v_;
  const int64_t rank_, nope_, value_;
};

// What the tensors of one model become.
class Mapper {
 public:
  Mapper(const GgufFamily* family, int64_t interleaved_dim)
      : family_(family), interleaved_dim_(interleaved_dim) {}

  Status add(const GgufTensor& tensor) {
    if (std::ranges::find(kRopeFactors, tensor.name) != std::end(kRopeFactors)) return {};
    const std::string name =
        family_ != nullptr ? family_->name_of(tensor.name) : std::string(tensor.name);
    if (name.find("{}") != std::string::npos) return add_experts(tensor, name);
    if (family_ != nullptr &&
        (tensor.name.ends_with(".attn_k_b.weight") || tensor.name.ends_with(".attn_v_b.weight"))) {
      latents_.push_back(&tensor);
      return {};
    }
    return add_one(tensor, name);
  }

  Result<std::vector<CheckpointTensor>> finish() {
    for (const GgufTensor* keys : latents_) {
      if (keys->name.ends_with(".attn_k_b.weight")) ESP_RETURN_IF_ERROR(join_latents(*keys));
    }
    return std::move(tensors_);
  }

 private:
  Status add_one(const GgufTensor& tensor, std::string name) {
    CheckpointTensor out;
    out.name = std::move(name);
    out.dtype_name = tensor.type->name;
    out.shape = tensor.shape;
    out.bytes = tensor.bytes;
    if (out.name.ends_with("shared_expert_gate.weight") && out.shape.size() == 1) {
      out.shape.insert(out.shape.begin(), 1);  // conversion drops the row
    }
    const bool moves =
        interleaved_dim_ > 0 &&
        (out.name.ends_with("q_proj.weight") || out.name.ends_with("k_proj.weight") ||
         out.name.ends_with("q_proj.bias") || out.name.ends_with("k_proj.bias"));
    const bool shifts =
        family_ != nullptr && family_->norms_plus_one && out.name.ends_with("norm.weight");
    if (!moves && !shifts) out.dtype = parse_dtype(tensor.type->name);
    // A type that is not read is refused by name where it is needed.
    if (!out.dtype && tensor.type->dequantize != nullptr) {
      std::vector<int64_t> rows;
      if (moves) {
        if (out.shape.empty() || out.shape[0] % interleaved_dim_ != 0) {
          return error(StatusCode::kDataLoss, "tensor '{}' has shape {}, no whole heads of {}",
                       tensor.name, shape_string(out.shape), interleaved_dim_);
        }
        rows = interleaved_rows(out.shape[0], interleaved_dim_);
      }
      out.reader = make_block_reader(tensor, std::move(rows));
      if (shifts) out.reader = std::make_shared<OffsetReader>(std::move(out.reader), -1.0f);
    }
    tensors_.push_back(std::move(out));
    return {};
  }

  // Blocks lie along the last dimension, so an expert's bytes are one piece.
  Status add_experts(const GgufTensor& tensor, const std::string& name) {
    constexpr int64_t kMaxExperts = 1 << 12;
    const int64_t count = tensor.shape.empty() ? 0 : tensor.shape[0];
    if (tensor.shape.size() < 2 || count < 1 || count > kMaxExperts ||
        tensor.bytes.size() % static_cast<size_t>(count) != 0) {
      return error(StatusCode::kDataLoss, "tensor '{}' has shape {}, which is no list of experts",
                   tensor.name, shape_string(tensor.shape));
    }
    const size_t size = tensor.bytes.size() / static_cast<size_t>(count);
    const size_t place = name.find("{}");
    for (int64_t i = 0; i < count; ++i) {
      GgufTensor expert = tensor;
      expert.shape.erase(expert.shape.begin());
      expert.bytes = tensor.bytes.subspan(static_cast<size_t>(i) * size, size);
      ESP_RETURN_IF_ERROR(add_one(expert, std::string(name).replace(place, 2, std::to_string(i))));
    }
    return {};
  }

  Status join_latents(const GgufTensor& keys) {
    const size_t stem = keys.name.size() - std::string_view("k_b.weight").size();
    const std::string_view prefix = keys.name.substr(0, stem);  // "blk.0.attn_"
    const std::string name = family_->name_of(std::string(prefix) + "kv_b.weight");
    const auto has_name = [&](const CheckpointTensor& t) { return t.name == name; };
    if (std::ranges::any_of(tensors_, has_name)) return {};  // older files hold it, too
    const auto is_values = [&](const GgufTensor* t) {
      return t->name == std::string(prefix) + "v_b.weight";
    };
    const auto found = std::ranges::find_if(latents_, is_values);
    const GgufTensor* values = found == latents_.end() ? nullptr : *found;
    const bool fits = values != nullptr && keys.shape.size() == 3 && values->shape.size() == 3 &&
                      keys.shape[0] == values->shape[0] && keys.shape[1] == values->shape[2] &&
                      keys.type->dequantize != nullptr && values->type->dequantize != nullptr;
    if (!fits) {
      return error(StatusCode::kDataLoss, "tensor '{}' {} does not fit to '{}v_b.weight'",
                   keys.name, shape_string(keys.shape), prefix);
    }
    CheckpointTensor out;
    out.name = name;
    out.dtype_name = keys.type->name;
    out.shape = {keys.shape[0] * (keys.shape[2] + values->shape[1]), keys.shape[1]};
    out.bytes = keys.bytes;
    out.reader = std::make_shared<LatentReader>(keys, *values);
    tensors_.push_back(std::move(out));
    return {};
  }

  const GgufFamily* const family_;
  const int64_t interleaved_dim_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<const GgufTensor*> latents_;
};

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

Result<std::string> gguf_config_text(const GgufFile& file, std::string_view torch_dtype) {
  const std::optional<std::string_view> name = file.string("general.architecture");
  if (!name) {
    return fail(error(StatusCode::kDataLoss,
                      "{}: the metadata key 'general.architecture' is missing",
                      file.path().string()));
  }
  const GgufFamily* family = find_gguf_family(file);
  const GgufFields fields(file, *name);
  json::object config;
  config["architectures"] = json::array{family != nullptr ? family->hugging_face : *name};
  config["model_type"] = family != nullptr ? family->model_type : *name;
  if (family != nullptr) {
    ESP_RETURN_IF_ERROR(add_sizes(file, fields, config));
    ESP_RETURN_IF_ERROR(add_rope(file, fields, config));
    if (family->add_fields != nullptr) ESP_RETURN_IF_ERROR(family->add_fields(fields, config));
  }
  config.emplace("attention_bias", find_gguf_tensor(file, "blk.0.attn_output.bias") != nullptr);
  config["mlp_bias"] = find_gguf_tensor(file, "blk.0.ffn_up.bias") != nullptr;
  config["tie_word_embeddings"] = find_gguf_tensor(file, "output.weight") == nullptr;
  const bool is_float32 = std::all_of(file.tensors().begin(), file.tensors().end(),
                                      [](const GgufTensor& t) { return t.type->name == "F32"; });
  config["torch_dtype"] = !torch_dtype.empty() ? torch_dtype : is_float32 ? "float32" : "bfloat16";
  json::array eos;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (const auto id = file.integer(key)) eos.push_back(*id);
  }
  if (!eos.empty()) config["eos_token_id"] = std::move(eos);
  return json::serialize(config);
}

Result<JsonObject> gguf_config(const GgufFile& file) {
  ESP_ASSIGN_OR_RETURN(const std::string text, gguf_config_text(file));
  return JsonObject::parse(text, file.path().string());
}

std::vector<float> llama3_rope_factors(double factor, double original_context, double theta,
                                       size_t num_pairs) {
  const Llama3Scaling scaling{.factor = factor, .original_context = original_context};
  std::vector<float> factors(num_pairs);
  for (size_t i = 0; i < num_pairs; ++i)
    factors[i] = static_cast<float>(llama3_factor(scaling, theta, i, num_pairs));
  return factors;
}

Result<std::vector<CheckpointTensor>> gguf_tensors(const std::vector<GgufFile>& files) {
  const GgufFile& first = files.front();
  const GgufFamily* family = find_gguf_family(first);
  int64_t interleaved_dim = 0;
  if (family != nullptr && family->interleaved) {
    const GgufFields fields(first, family->gguf);
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
  Mapper mapper(family, interleaved_dim);
  for (const GgufFile& file : files) {
    for (const GgufTensor& tensor : file.tensors()) {
      if (const Status status = mapper.add(tensor); !status.ok()) {
        return fail(status.with_context(file.path().string()));
      }
    }
  }
  auto tensors = mapper.finish();
  if (!tensors) return fail(tensors.error().with_context(first.path().string()));
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
  // Older files have the names of the second column.
  const auto either = [&](std::string_view name, std::string_view older) {
    const std::optional<int32_t> value = id(name);
    return value ? value : id(older);
  };
  out.fim_prefix_id = either("fim_pre_token_id", "prefix_token_id");
  out.fim_suffix_id = either("fim_suf_token_id", "suffix_token_id");
  out.fim_middle_id = either("fim_mid_token_id", "middle_token_id");
  out.add_bos = file.boolean(key("add_bos_token"));
  out.add_eos = file.boolean(key("add_eos_token"));
  out.add_space_prefix = file.boolean(key("add_space_prefix"));
  out.remove_extra_whitespaces = file.boolean(key("remove_extra_whitespaces"));
  out.chat_template = file.string("tokenizer.chat_template").value_or("");
  return out;
}

}  // namespace espalier
