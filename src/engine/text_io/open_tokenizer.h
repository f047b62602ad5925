// The tokenizer of a path, whatever holds it.
#pragma once

#include <filesystem>
#include <memory>

#include "text/tokenizer/tokenizer.h"

namespace espalier {

// A model's folder or GGUF, or a vocabulary's file: load_tokenizer, and the vocabularies inside
// models.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::filesystem::path& path);

}  // namespace espalier
