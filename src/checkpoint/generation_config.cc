#include "checkpoint/generation_config.h"

#include <algorithm>
#include <limits>

#include "checkpoint/json_object.h"

namespace espalier {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

using InRange = bool (*)(double);

Status read_float(const JsonObject& config, const char* field, InRange in_range, const char* range,
                  std::optional<float>& out) {
  if (!config.has(field)) return Status();
  ESP_ASSIGN_OR_RETURN(const double value, config.number(field));
  if (!in_range(value)) {
    return config.field_error(field, fmt::format("is {}, which is not {}", value, range));
  }
  out = static_cast<float>(value);
  return Status();
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

Result<GenerationConfig> read_generation_config(const std::filesystem::path& folder) {
  GenerationConfig result;
  const std::filesystem::path path = folder / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return result;
  ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(path));

  const auto not_negative = [](double v) { return v >= 0; };
  const auto positive = [](double v) { return v > 0; };
  const auto unit = [](double v) { return v >= 0 && v <= 1; };
  const auto positive_unit = [](double v) { return v > 0 && v <= 1; };
  ESP_RETURN_IF_ERROR(
      read_float(config, "temperature", not_negative, "at least 0", result.temperature));
  ESP_RETURN_IF_ERROR(read_float(config, "top_p", positive_unit, "in (0, 1]", result.top_p));
  ESP_RETURN_IF_ERROR(read_float(config, "min_p", unit, "in [0, 1]", result.min_p));
  ESP_RETURN_IF_ERROR(
      read_float(config, "repetition_penalty", positive, "above 0", result.repetition_penalty));
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

}  // namespace espalier
