// Prompts that a server computes before it takes requests, so that their prefixes are cached.
#pragma once

#include <filesystem>
#include <vector>

#include "engine/engine.h"

namespace espalier::apps {

// A file with a line of JSON for each prompt: a text, or an object with text or input_ids and
// perhaps extra_key. Empty lines are skipped. Failures name the line.
Result<std::vector<GenerateRequest>> read_warm_prompts(const std::filesystem::path& path);

// Computes them one behind the other. A prompt that fails is logged, and the others follow.
void compute_warm_prompts(Engine& engine, std::vector<GenerateRequest> prompts);

}  // namespace espalier::apps
