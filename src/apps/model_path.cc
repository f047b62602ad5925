// Finds the model that a command runs.
#include "apps/model_path.h"

#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "apps/config.h"
#include "apps/progress.h"
#include "base/log.h"
#include "hub/hub.h"

namespace espalier::apps {
namespace {

namespace fs = std::filesystem;

// A bar on a terminal; nothing elsewhere, where the log reports the end.
std::function<void(int64_t, int64_t)> bar_of_fetching(const std::string& repo) {
  if (isatty(STDERR_FILENO) != 1 || !log_enabled(LogLevel::kError)) return {};
  // Shared: functions are copied.
  return [repo, bar = std::make_shared<std::optional<ProgressBar>>()](int64_t done, int64_t total) {
    if (!*bar && done < total) bar->emplace("fetching " + repo, total, "B");
    if (*bar) (*bar)->set(done);
    if (done >= total) bar->reset();
  };
}

Result<fs::path> fetch(hub::HubReference reference, const HubSettings& settings) {
  if (!settings.revision.empty()) reference.revision = settings.revision;
  hub::HubOptions options = hub::HubOptions::from_environment();
  if (!settings.download_dir.empty()) options.cache = settings.download_dir;
  options.progress = bar_of_fetching(reference.repo);
  auto found = hub::fetch_model(reference, options);
  if (!found) return fail(found.error().with_context("--model-path " + reference.repo));
  log_info("model found in the hub's cache repo={} revision={} path={}", reference.repo,
           reference.revision, found->string());
  return found;
}

Result<fs::path> resolve_given(const fs::path& given, const HubSettings& hub) {
  std::error_code problem;
  if (fs::exists(given, problem)) {
    if (!hub.revision.empty())
      log_warning("--revision {} has no effect: {} is a path here", hub.revision, given.string());
    return given;
  }
  if (const auto reference = hub::HubReference::parse(given.string()); reference)
    return fetch(*reference, hub);
  return fail(
      error(StatusCode::kNotFound,
            "--model-path {}: there is no such folder or file; give a .gguf file, the folder "
            "that holds config.json and *.safetensors, or org/name of a Hugging Face hub",
            given.string()));
}

Result<fs::path> find_shipped_model(const fs::path& given, const std::string& folder) {
  std::error_code problem;
  std::vector<fs::path> places;
  if (const char* share = std::getenv("ESPALIER_SHARE"); share != nullptr && *share != '\0')
    places.push_back(fs::path(share) / folder);
  const fs::path binary = fs::read_symlink("/proc/self/exe", problem);
  if (!problem) {
    const fs::path beside = binary.parent_path();
    places.push_back(beside / "share" / folder);
    places.push_back(beside.parent_path() / "share/espalier" / folder);
    places.push_back(beside.parent_path().parent_path() / "share" / folder);  // build/PRESET
  }
  std::string looked;
  for (const fs::path& place : places) {
    if (fs::exists(place / "config.json", problem)) return place;
    looked += "\n  " + place.string();
  }
  if (!given.empty())
    return fail(error(StatusCode::kNotFound,
                      "--model-path {}: the model that ships by this name is missing; give its "
                      "folder, or set ESPALIER_SHARE. It was looked for in{}",
                      given.string(), looked));
  return fail(
      error(StatusCode::kNotFound,
            "no model: give --model-path, or set ESPALIER_SHARE. The model that ships was looked "
            "for in{}",
            looked));
}

}  // namespace

std::optional<std::string> shipped_model_folder(const fs::path& given) {
  if (given.empty()) return "default_model";
  std::error_code problem;
  if (given == "seeing" && !fs::exists(given, problem)) return "seeing_model";
  return std::nullopt;
}

Result<fs::path> resolve_model_path(const fs::path& given, const HubSettings& hub) {
  const std::optional<std::string> shipped = shipped_model_folder(given);
  return shipped ? find_shipped_model(given, *shipped) : resolve_given(given, hub);
}

}  // namespace espalier::apps
