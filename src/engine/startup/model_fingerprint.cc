#include "engine/startup/model_fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "base/mapped_file.h"
#include "base/sha256.h"
#include "cache/kv_pool.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr size_t kWholeBytesMax = 1 << 20;
constexpr size_t kNumSamples = 256;
constexpr size_t kSampleBytes = 4096;

bool decides_contents(const fs::path& path) {
  const fs::path extension = path.extension();
  return path.filename() == "config.json" || extension == ".safetensors" || extension == ".gguf";
}

// Sorted by name, for a folder's own order differs between systems.
std::vector<fs::path> files_of(const fs::path& model) {
  std::error_code ignored;
  if (!fs::is_directory(model, ignored)) return {model};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(model, ignored))
    if (decides_contents(entry.path())) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// The length before the text keeps neighbouring texts apart.
void update_text(Sha256& hash, std::string_view text) {
  hash.update(fmt::format("{}:", text.size()));
  hash.update(text);
}

Status update_file(Sha256& hash, const fs::path& path, HashedBytes hashed) {
  ESP_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  const std::span<const std::byte> bytes = file.bytes();
  update_text(hash, path.filename().string());
  update_text(hash, std::to_string(bytes.size()));
  if (hashed == HashedBytes::kAll || bytes.size() <= kWholeBytesMax) {
    hash.update(bytes);
    return Status();
  }
  // The first sample begins the file, and the last one ends it.
  const size_t last = bytes.size() - kSampleBytes;
  for (size_t i = 0; i < kNumSamples; ++i)
    hash.update(bytes.subspan(last * i / (kNumSamples - 1), kSampleBytes));
  return Status();
}

}  // namespace

Result<std::string> model_fingerprint(const EngineConfig& config, HashedBytes bytes) {
  Sha256 hash;
  update_text(hash, config.model.dtype);
  update_text(hash, config.model.json_model_override_args);
  const bool dummy = config.model.load_format == LoadFormat::kDummy;
  if (bytes == HashedBytes::kAll) update_text(hash, "all bytes");
  update_text(hash, dummy ? fmt::format("dummy {}", config.sampling.random_seed) : "files");
  if (!config.model.model_path.empty())
    for (const fs::path& path : files_of(config.model.model_path))
      ESP_RETURN_IF_ERROR(update_file(hash, path, bytes));
  std::string text;
  for (const uint8_t byte : hash.finish()) text += fmt::format("{:02x}", byte);
  return text;
}

Result<PageNameScope> page_name_scope(const EngineConfig& config, const ModelInfo& info) {
  ESP_ASSIGN_OR_RETURN(const KvType type, resolve_kv_type(config, info));
  ESP_ASSIGN_OR_RETURN(std::string fingerprint, model_fingerprint(config));
  return PageNameScope{.model_fingerprint = std::move(fingerprint),
                       .kv_layout = kv_layout_name(kv_pool_config(config, info, type))};
}

}  // namespace espalier
