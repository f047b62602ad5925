#include "checkpoint/peft_adapter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "checkpoint/json_object.h"

namespace espalier {
namespace {

constexpr int64_t kRankMax = 4096;
constexpr size_t kPatternMax = 256;  // characters
constexpr size_t kModuleMax = 1024;  // bytes of a module's name
constexpr uint32_t kMatchStepsMax = 100'000, kMatchHeapKib = 1024;

// An expression of an adapter's file. The work of a match is bounded, for the file may come from
// anybody.
class NamePattern {
 public:
  // PEFT matches a key against a module's whole name or its end behind a dot.
  static std::optional<NamePattern> compile(std::string_view key) {
    const std::string whole = "(?:.*\\.)?(?:" + std::string(key) + ")";
    int problem = 0;
    size_t offset = 0;
    NamePattern made;
    made.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                                   PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NEVER_BACKSLASH_C,
                                   &problem, &offset, nullptr));
    made.context_.reset(pcre2_match_context_create(nullptr));
    if (made.code_ == nullptr || made.context_ == nullptr) return std::nullopt;
    pcre2_set_match_limit(made.context_.get(), kMatchStepsMax);
    pcre2_set_heap_limit(made.context_.get(), kMatchHeapKib);
    return made;
  }

  // Nothing where the match takes too long.
  std::optional<bool> matches(std::string_view name) const {
    const std::unique_ptr<pcre2_match_data, Free> found(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    if (found == nullptr) return std::nullopt;
    const int result = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(name.data()),
                                   name.size(), 0, 0, found.get(), context_.get());
    if (result < 0 && result != PCRE2_ERROR_NOMATCH) return std::nullopt;
    return result >= 0;
  }

 private:
  struct Free {
    void operator()(pcre2_code* p) const { pcre2_code_free(p); }
    void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_context, Free> context_;
};

// Alpha of the modules that a pattern matches.
struct AlphaPattern {
  std::string key;
  NamePattern pattern;
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

Result<NamePattern> compile_pattern(const JsonObject& patterns, std::string_view key) {
  if (key.size() > kPatternMax)
    return fail(patterns.field_error(key, "is longer than 256 characters"));
  auto made = NamePattern::compile(key);
  if (!made) return fail(patterns.field_error(key, "is no pattern"));
  return std::move(*made);
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
    ESP_ASSIGN_OR_RETURN(const double alpha, alphas.number(key));
    ESP_ASSIGN_OR_RETURN(NamePattern pattern, compile_pattern(alphas, key));
    out.alphas.push_back({std::string(key), std::move(pattern), alpha});
  }
  return out;
}

Result<float> scale_of(const PeftConfig& config, const std::string& module, int32_t rank) {
  double alpha = config.alpha;
  for (const AlphaPattern& each : config.alphas) {
    const std::optional<bool> found = each.pattern.matches(module);
    if (!found)
      return fail(invalid_argument("the pattern '{}' of alpha_pattern takes too long to match '{}'",
                                   each.key, module));
    if (!*found) continue;
    alpha = each.alpha;
    break;
  }
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
  if (name.size() > kModuleMax)
    return fail(invalid_argument("{}: the name of a module has {} bytes; at most {} are taken",
                                 path.string(), name.size(), kModuleMax));
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
  auto scale = scale_of(config, name, out.rank());
  if (!scale) return fail(scale.error().with_context(path.string()));
  out.scale = *scale;
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
