// The sampling parameters that a model's authors recommend: generation_config.json of a folder,
// keys general.sampling.* of a GGUF. Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace espalier {

// A field that is absent (or null) in the file is absent here. The names are Hugging Face's.
struct GenerationConfig {
  std::optional<float> temperature;         // finite, at least 0
  std::optional<float> top_p;               // (0, 1]
  std::optional<float> min_p;               // [0, 1]
  std::optional<float> repetition_penalty;  // above 0
  std::optional<int32_t> top_k;           // -1 (no limit, which the file writes as 0) or at least 1
  std::optional<int32_t> max_new_tokens;  // at least 0
  std::vector<int32_t> eos_token_ids;     // sorted, without duplicates; one or several in the file
};

// The file in the folder `model_path`, else the metadata of the GGUF that the path means; all
// fields are absent where there is neither. A GGUF has no max_new_tokens, and its tokens that end
// an answer are of its vocabulary. kDataLoss names a field of the wrong type or out of its range.
Result<GenerationConfig> read_generation_config(const std::filesystem::path& model_path);

// The text of a generation_config.json. Parameters of sampling say that it is wanted (do_sample).
std::string generation_config_text(const GenerationConfig& config);

// The same parameters as a GGUF's metadata, but for what it cannot have (see above).
class GgufMetadata;
void add_generation_config(const GenerationConfig& config, GgufMetadata& metadata);

// eos_token_id of any config file's object: absent, an integer or a list; sorted, no duplicates.
class JsonObject;
Result<std::vector<int32_t>> read_eos_token_ids(const JsonObject& config);

}  // namespace espalier
