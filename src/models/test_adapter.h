// For tests of this room and of those above it: a random LoRA adapter for a golden model.
#pragma once

#include <cstdint>
#include <filesystem>

namespace espalier {

// Writes factors for q, v, o, gate, up and down of all layers (of experts the shared one alone), so
// large that logits change much. model: a folder with safetensors, which has the shapes.
void write_test_adapter(const std::filesystem::path& model, uint64_t seed,
                        const std::filesystem::path& folder, int32_t rank = 4);

}  // namespace espalier
