// espalier models list: the models on this computer, and whether their files are whole.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/config.h"
#include "apps/progress.h"
#include "hub/inventory.h"
#include "server/json_writer.h"

namespace espalier::apps {
namespace {

namespace fs = std::filesystem;
using hub::CachedSnapshot;
using server::JsonWriter;

struct LocalModel {
  std::string name;  // what --model-path takes
  fs::path path;
  int64_t size_bytes = 0;
};

struct ModelOptions {
  fs::path cache, folder;
  bool verify = false, json = false;
};

bool is_weights(const fs::path& path) {
  return path.extension() == ".gguf" || path.extension() == ".safetensors";
}

int64_t weight_bytes(const fs::path& path) {
  std::error_code problem;
  if (!fs::is_directory(path, problem)) {
    const auto size = fs::file_size(path, problem);
    return problem ? 0 : static_cast<int64_t>(size);
  }
  int64_t sum = 0;
  for (fs::directory_iterator at(path, problem), end; !problem && at != end; at.increment(problem))
    if (is_weights(at->path())) sum += static_cast<int64_t>(at->file_size(problem));
  return sum;
}

// GGUF files, and folders with a config.json and weights, in `folder` and in the folders below it.
std::vector<LocalModel> find_models(const fs::path& folder) {
  std::vector<LocalModel> out;
  std::error_code problem;
  const auto add = [&](const fs::path& path) {
    out.push_back({path.string(), path, weight_bytes(path)});
  };
  const auto options = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator at(folder, options, problem), end; !problem && at != end;
       at.increment(problem)) {
    std::error_code ignored;
    if (at->is_regular_file(ignored) && at->path().extension() == ".gguf") add(at->path());
    if (at->path().filename() == "config.json" && weight_bytes(at->path().parent_path()) > 0)
      add(at->path().parent_path());
  }
  std::ranges::sort(out, {}, &LocalModel::name);
  return out;
}

std::string size_text(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return value >= 1e9 ? fmt::format("{:.2f} GB", value / 1e9)
                      : fmt::format("{:.1f} MB", value / 1e6);
}

std::vector<std::string> verify(const CachedSnapshot& snapshot) {
  ProgressBar bar("verifying " + snapshot.repo, snapshot.size_bytes, "B");
  return hub::verify(snapshot, [&bar](int64_t done) { bar.set(done); });
}

void print_table(const std::vector<CachedSnapshot>& cached, const std::vector<LocalModel>& local,
                 const fs::path& cache) {
  fmt::print("Cache of the hub ({}):\n", cache.string());
  for (const CachedSnapshot& each : cached)
    fmt::print("  {:<44} {:>10}  {} {}\n", each.repo, size_text(each.size_bytes),
               each.commit.substr(0, 8), fmt::join(each.revisions, ", "));
  if (cached.empty()) fmt::print("  nothing: --model-path org/name fetches a model\n");
  if (local.empty()) return;
  fmt::print("Folders and files:\n");
  for (const LocalModel& each : local)
    fmt::print("  {:<44} {:>10}\n", each.name, size_text(each.size_bytes));
}

void print_json(const std::vector<CachedSnapshot>& cached, const std::vector<LocalModel>& local,
                const fs::path& cache, const std::vector<std::vector<std::string>>& problems) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("cache", cache.string()).key("cached").begin_array();
  for (size_t i = 0; i < cached.size(); ++i) {
    const CachedSnapshot& each = cached[i];
    w.begin_object().member("repo", each.repo).member("commit", each.commit);
    w.key("revisions").begin_array();
    for (const std::string& revision : each.revisions) w.value(revision);
    w.end_array().member("path", each.folder.string()).member("size_bytes", each.size_bytes);
    w.member("num_files", each.files.size());
    if (!problems.empty()) {
      w.key("problems").begin_array();
      for (const std::string& problem : problems[i]) w.value(problem);
      w.end_array();
    }
    w.end_object();
  }
  w.end_array().key("local").begin_array();
  for (const LocalModel& each : local) {
    w.begin_object().member("path", each.path.string());
    w.member("size_bytes", each.size_bytes).end_object();
  }
  w.end_array().end_object();
  fmt::print("{}\n", out);
}

// Those that ship come first.
void add_shipped_models(std::vector<LocalModel>& local) {
  if (const auto seeing = resolve_model_path("seeing"))
    local.insert(local.begin(), LocalModel{"seeing", *seeing, weight_bytes(*seeing)});
  if (const auto ships = resolve_model_path({}))
    local.insert(local.begin(), LocalModel{"(the model that ships)", *ships, weight_bytes(*ships)});
}

}  // namespace

int run_models_list(const std::vector<std::string>& args) {
  ModelOptions options;
  SettingTable table;
  table.group("Places");
  table.path("download-dir", options.cache, "the hub's cache").default_text =
      "as huggingface_hub has it";
  table.path("folder", options.folder, "also list the models in this folder and below it");
  table.group("Output");
  table.toggle("verify", options.verify,
               "compare each file of the cache with its checksum; exit status 1 if one differs");
  table.toggle("json", options.json, "print the list as JSON");
  CommandLine command{"espalier models list",
                      "Lists the models that are on this computer, and verifies their files.",
                      "Examples:\n"
                      "  espalier models list\n"
                      "  espalier models list --verify Qwen/Qwen3-0.6B\n"
                      "  espalier models list --folder ~/models",
                      "REPOSITORY",
                      {}};
  if (const auto exit_code = parse_command_line(command, table, SettingTable(), args))
    return *exit_code;
  if (options.cache.empty()) options.cache = hub::HubOptions::from_environment().cache;
  std::error_code problem;
  if (!options.folder.empty() && !fs::is_directory(options.folder, problem))
    return report(invalid_argument("--folder {}: there is no such folder", options.folder.string()),
                  kExitUsage);
  std::vector<CachedSnapshot> cached = hub::list_snapshots(options.cache);
  for (const std::string& word : command.words)
    if (std::ranges::find(cached, word, &CachedSnapshot::repo) == cached.end())
      return report(error(StatusCode::kNotFound, "the cache {} has no model {}",
                          options.cache.string(), word),
                    kExitFailure);
  if (!command.words.empty())
    std::erase_if(cached, [&](const CachedSnapshot& each) {
      return std::ranges::find(command.words, each.repo) == command.words.end();
    });
  std::vector<LocalModel> local;
  if (!options.folder.empty()) local = find_models(options.folder);
  if (command.words.empty()) add_shipped_models(local);
  std::vector<std::vector<std::string>> problems;
  size_t num_problems = 0;
  if (options.verify)
    for (const CachedSnapshot& each : cached)
      num_problems += problems.emplace_back(verify(each)).size();
  options.json ? print_json(cached, local, options.cache, problems)
               : print_table(cached, local, options.cache);
  for (size_t i = 0; i < problems.size(); ++i)
    for (const std::string& text : problems[i])
      note(fmt::format("error: {}: {}\n", cached[i].repo, text));
  if (options.verify && !options.json && num_problems == 0)
    fmt::print("{} verified: every checksum matches\n",
               cached.size() == 1 ? "1 model" : fmt::format("{} models", cached.size()));
  return num_problems == 0 ? kExitOk : kExitFailure;
}

}  // namespace espalier::apps
