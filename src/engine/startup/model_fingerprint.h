// What makes the names of cached pages equal in all processes that serve the same model.
#pragma once

#include <string>

#include "base/status.h"
#include "cache/page_name.h"
#include "engine/config.h"

namespace espalier {

// A text of 64 hexadecimal digits that is equal for equal models: SHA-256 over the settings that
// change what is loaded (dtype, overrides of config.json, format, the seed of dummy weights), and
// over name, size and contents of config.json and of the weights' files. Of a file above 1 MiB it
// hashes 256 samples of 4 KiB at even distances, so that the start of an engine does not read all
// weights; models that differ in no sample and no size get the same text. kAll hashes whole files
// and gives other texts. Fails with the status of
// a file that cannot be read. An empty model_path stands for no files.
enum class HashedBytes { kSamples, kAll };
Result<std::string> model_fingerprint(const EngineConfig& config,
                                      HashedBytes bytes = HashedBytes::kSamples);

// The scope of the names of an engine's pages: the fingerprint and the layout of its KV pool.
// REQUIRES a resolved configuration.
Result<PageNameScope> page_name_scope(const EngineConfig& config, const ModelInfo& info);

}  // namespace espalier
