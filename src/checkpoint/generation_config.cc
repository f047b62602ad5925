#include "checkpoint/generation_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "checkpoint/gguf_file.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/json_object.h"
#include "checkpoint/tensor_writer.h"

namespace espalier {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// A parameter under its name in both formats. `lowest`: allowed too, unless `above` it alone is.
struct Parameter {
  const char* field;
  const char* gguf;
  std::optional<float> GenerationConfig::*member;
  double lowest, highest;
  bool above;
  const char* range;
};
constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr Parameter kParameters[] = {
    {"temperature", "general.sampling.temp", &GenerationConfig::temperature, 0, kNoLimit, false,
     "at least 0"},
    {"top_p", "general.sampling.top_p", &GenerationConfig::top_p, 0, 1, true, "in (0, 1]"},
    {"min_p", "general.sampling.min_p", &GenerationConfig::min_p, 0, 1, false, "in [0, 1]"},
    {"repetition_penalty", "general.sampling.penalty_repeat", &GenerationConfig::repetition_penalty,
     0, kNoLimit, true, "above 0"}};
constexpr const char* kGgufTopK = "general.sampling.top_k";

bool in_range(const Parameter& each, double value) {
  return (each.above ? value > each.lowest : value >= each.lowest) && value <= each.highest;
}

Result<GenerationConfig> read_from_gguf(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(path));
  GenerationConfig result;
  const auto refuse = [&](const char* key, auto value, const char* range) {
    return fail(error(StatusCode::kDataLoss, "{}: '{}' is {}, which is not {}", path.string(), key,
                      value, range));
  };
  for (const Parameter& each : kParameters) {
    const std::optional<double> value = file.number(each.gguf);
    if (!value) continue;
    if (!in_range(each, *value)) return refuse(each.gguf, *value, each.range);
    result.*each.member = static_cast<float>(*value);
  }
  if (const std::optional<int64_t> top_k = file.integer(kGgufTopK)) {
    if (*top_k < -1 || *top_k > kMaxInt32) return refuse(kGgufTopK, *top_k, "at least -1");
    result.top_k = *top_k == 0 ? -1 : static_cast<int32_t>(*top_k);
  }
  return result;
}

}  // namespace

Result<std::vector<int32_t>> read_eos_token_ids(const JsonObject& config) {
  std::vector<int32_t> ids;
  if (!config.has("eos_token_id")) return ids;
  ESP_ASSIGN_OR_RETURN(const std::vector<int64_t> list, config.integers("eos_token_id"));
  for (const int64_t id : list) {
    if (id < 0 || id > kMaxInt32) {
      return fail(config.field_error("eos_token_id", fmt::format("holds {}, no token id", id)));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

Result<GenerationConfig> read_generation_config(const std::filesystem::path& model_path) {
  GenerationConfig result;
  const std::filesystem::path path = model_path / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    const std::optional<std::filesystem::path> gguf = find_gguf(model_path);
    return gguf ? read_from_gguf(*gguf) : result;
  }
  ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(path));
  for (const Parameter& each : kParameters) {
    if (!config.has(each.field)) continue;
    ESP_ASSIGN_OR_RETURN(const double value, config.number(each.field));
    if (!in_range(each, value)) {
      return fail(
          config.field_error(each.field, fmt::format("is {}, which is not {}", value, each.range)));
    }
    result.*each.member = static_cast<float>(value);
  }
  if (config.has("top_k")) {
    ESP_ASSIGN_OR_RETURN(const int64_t top_k, config.integer("top_k", -1, kMaxInt32));
    result.top_k = top_k == 0 ? -1 : static_cast<int32_t>(top_k);
  }
  if (config.has("max_new_tokens")) {
    ESP_ASSIGN_OR_RETURN(const int64_t count, config.integer("max_new_tokens", 0, kMaxInt32));
    result.max_new_tokens = static_cast<int32_t>(count);
  }
  ESP_ASSIGN_OR_RETURN(result.eos_token_ids, read_eos_token_ids(config));
  return result;
}

std::string generation_config_text(const GenerationConfig& config) {
  std::string fields;
  const auto add = [&](std::string_view name, const auto& value) {
    fields += fmt::format("{}\n  \"{}\": {}", fields.empty() ? "" : ",", name, value);
  };
  for (const Parameter& each : kParameters)
    if (config.*each.member) add(each.field, *(config.*each.member));
  if (config.top_k) add("top_k", std::max(*config.top_k, 0));
  // transformers samples only where do_sample is true; a temperature of 0 means greedy answers.
  if (!fields.empty()) add("do_sample", config.temperature.value_or(1) > 0);
  if (config.max_new_tokens) add("max_new_tokens", *config.max_new_tokens);
  if (!config.eos_token_ids.empty())
    add("eos_token_id", fmt::format("[{}]", fmt::join(config.eos_token_ids, ", ")));
  return fmt::format("{{{}\n}}\n", fields);
}

void add_generation_config(const GenerationConfig& config, GgufMetadata& metadata) {
  for (const Parameter& each : kParameters)
    if (config.*each.member) metadata.number(each.gguf, *(config.*each.member));
  if (config.top_k) metadata.integer(kGgufTopK, static_cast<uint32_t>(std::max(*config.top_k, 0)));
}

}  // namespace espalier
