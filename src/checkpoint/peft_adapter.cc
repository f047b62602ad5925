#include "checkpoint/peft_adapter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <regex>
#include <string_view>
#include <utility>

#include "checkpoint/json_object.h"

namespace espalier {
namespace {

constexpr int64_t kRankMax = 4096;
constexpr size_t kPatternMax = 256;  // characters

// Alpha of the modules that a pattern matches.
struct AlphaPattern {
  std::regex pattern;
  double alpha = 0;
};

struct PeftConfig {
  int64_t rank = 0;
  double alpha = 0;
  bool rslora = false;
  bool has_rank_pattern = false;
  std::vector<AlphaPattern> alphas;
};

Status refuse(const JsonObject& config, std::string_view field, std::string_view why) {
  return error(StatusCode::kUnimplemented,
               "{}: '{}' {}; merge the adapter into the weights and serve those", config.name(),
               field, why);
}

// What would change the mathematics and is not computed.
Status check_supported(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const std::string type, config.string_or("peft_type", "LORA"));
  if (type != "LORA") return refuse(config, "peft_type", "is " + type + ", not LORA");
  ESP_ASSIGN_OR_RETURN(const bool dora, config.boolean_or("use_dora", false));
  if (dora) return refuse(config, "use_dora", "is true, and DoRA's magnitudes are not computed");
  ESP_ASSIGN_OR_RETURN(const bool lora_bias, config.boolean_or("lora_bias", false));
  if (lora_bias) return refuse(config, "lora_bias", "is true, and biases are not adapted");
  ESP_ASSIGN_OR_RETURN(const std::string bias, config.string_or("bias", "none"));
  if (bias != "none") return refuse(config, "bias", "is " + bias + ", and biases are not adapted");
  for (const char* field :
       {"modules_to_save", "trainable_token_indices", "target_parameters", "layer_replication"}) {
    if (!config.has(field)) continue;
    if (const auto strings = config.strings(field); strings && strings->empty()) continue;
    return refuse(config, field, "is not empty, and only factors of matrices are taken");
  }
  return Status();
}

// PEFT matches a key against a module's whole name or its end behind a dot.
Result<std::regex> compile_pattern(const JsonObject& patterns, std::string_view key) {
  if (key.size() > kPatternMax)
    return fail(patterns.field_error(key, "is longer than 256 characters"));
  try {
    return std::regex("(.*\\.)?(" + std::string(key) + ")");
  } catch (const std::regex_error& error) {
    return fail(patterns.field_error(key, fmt::format("is no pattern: {}", error.what())));
  }
}

Result<PeftConfig> read_config(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(path));
  ESP_RETURN_IF_ERROR(check_supported(config));
  PeftConfig out;
  ESP_ASSIGN_OR_RETURN(out.rank, config.integer("r", 1, kRankMax));
  ESP_ASSIGN_OR_RETURN(out.alpha, config.number("lora_alpha"));
  ESP_ASSIGN_OR_RETURN(out.rslora, config.boolean_or("use_rslora", false));
  if (config.has("rank_pattern")) {
    ESP_ASSIGN_OR_RETURN(const JsonObject ranks, config.object("rank_pattern"));
    out.has_rank_pattern = !ranks.keys().empty();
  }
  if (!config.has("alpha_pattern")) return out;
  ESP_ASSIGN_OR_RETURN(const JsonObject alphas, config.object("alpha_pattern"));
  for (const std::string_view key : alphas.keys()) {
    AlphaPattern& to = out.alphas.emplace_back();
    ESP_ASSIGN_OR_RETURN(to.alpha, alphas.number(key));
    ESP_ASSIGN_OR_RETURN(to.pattern, compile_pattern(alphas, key));
  }
  return out;
}

float scale_of(const PeftConfig& config, const std::string& module, int32_t rank) {
  double alpha = config.alpha;
  const auto found = std::ranges::find_if(config.alphas, [&](const AlphaPattern& each) {
    return std::regex_match(module, each.pattern);
  });
  if (found != config.alphas.end()) alpha = found->alpha;
  return static_cast<float>(alpha / (config.rslora ? std::sqrt(double(rank)) : double(rank)));
}

// The module and which of its factors a tensor is.
struct FactorName {
  std::string module;
  bool is_a = false;
};

// base_model.model.MODULE.lora_A[.ADAPTER].weight
std::optional<FactorName> parse_name(std::string_view name) {
  constexpr std::string_view kPrefix = "base_model.model.", kEnd = ".weight";
  if (!name.starts_with(kPrefix) || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  for (const std::string_view factor : {".lora_A.", ".lora_B."}) {
    const size_t at = name.find(factor);
    if (at == std::string_view::npos || at == 0) continue;
    return FactorName{std::string(name.substr(0, at)), factor == ".lora_A."};
  }
  return std::nullopt;
}

Status refuse_tensor(const std::filesystem::path& path, const CheckpointTensor& tensor) {
  return error(StatusCode::kUnimplemented,
               "{}: the tensor '{}' is no factor of a matrix (lora_A.weight or lora_B.weight); "
               "merge the adapter into the weights and serve those",
               path.string(), tensor.name);
}

struct Factors {
  const CheckpointTensor *a = nullptr, *b = nullptr;
};

Result<std::map<std::string, Factors>> find_factors(const SafetensorsFile& file) {
  std::map<std::string, Factors> out;
  for (const CheckpointTensor& tensor : file.tensors()) {
    const std::optional<FactorName> name = parse_name(tensor.name);
    if (!name) return fail(refuse_tensor(file.path(), tensor));
    if (tensor.shape.size() != 2 || !tensor.readable() || tensor.num_elements() == 0) {
      return fail(invalid_argument("{}: '{}' of {} {} is no matrix of F32, F16 or BF16",
                                   file.path().string(), tensor.name, tensor.dtype_name,
                                   shape_string(tensor.shape)));
    }
    Factors& factors = out[name->module];
    const CheckpointTensor*& to = name->is_a ? factors.a : factors.b;
    if (to != nullptr)
      return fail(invalid_argument("{}: '{}' and '{}' are the same factor", file.path().string(),
                                   to->name, tensor.name));
    to = &tensor;
  }
  if (out.empty())
    return fail(invalid_argument("{} has no tensors, so it adapts nothing", file.path().string()));
  return out;
}

Result<PeftModule> make_module(const std::filesystem::path& path, const PeftConfig& config,
                               const std::string& name, const Factors& factors) {
  if (factors.a == nullptr || factors.b == nullptr)
    return fail(invalid_argument("{}: '{}' has no {}", path.string(), name,
                                 factors.a == nullptr ? "lora_A" : "lora_B"));
  PeftModule out{.module = name, .a = *factors.a, .b = *factors.b};
  if (out.a.shape[0] != out.b.shape[1] || out.a.shape[0] > kRankMax)
    return fail(invalid_argument("{}: lora_A {} and lora_B {} of '{}' have no common rank",
                                 path.string(), shape_string(out.a.shape),
                                 shape_string(out.b.shape), name));
  if (!config.has_rank_pattern && out.rank() != config.rank)
    return fail(invalid_argument("{}: '{}' has the rank {}, and adapter_config.json says r {}",
                                 path.string(), name, out.rank(), config.rank));
  out.scale = scale_of(config, name, out.rank());
  return out;
}

}  // namespace

Result<PeftAdapter> PeftAdapter::open(const std::filesystem::path& folder) {
  ESP_ASSIGN_OR_RETURN(const PeftConfig config, read_config(folder / "adapter_config.json"));
  const std::filesystem::path path = folder / "adapter_model.safetensors";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored) &&
      std::filesystem::exists(folder / "adapter_model.bin", ignored)) {
    return fail(error(StatusCode::kUnimplemented,
                      "{} is a pickle, which is not read: save the adapter as safetensors "
                      "(save_pretrained with safe_serialization)",
                      (folder / "adapter_model.bin").string()));
  }
  ESP_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  PeftAdapter out(folder, std::move(file));
  ESP_ASSIGN_OR_RETURN(const auto factors, find_factors(out.file_));
  for (const auto& [name, pair] : factors) {
    ESP_ASSIGN_OR_RETURN(PeftModule module, make_module(path, config, name, pair));
    out.modules_.push_back(std::move(module));
  }
  return out;
}

int32_t PeftAdapter::rank_max() const {
  int32_t most = 0;
  for (const PeftModule& module : modules_) most = std::max(most, module.rank());
  return most;
}

}  // namespace espalier
