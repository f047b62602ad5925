#include "apps/served_models_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "apps/model_path.h"
#include "apps/session.h"
#include "apps/toml_values.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "engine/startup/device.h"
#include "models/model.h"
#include "server/chat_format.h"

namespace espalier::apps {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTokensMax = std::numeric_limits<int32_t>::max();
constexpr int64_t kKvBytesMin = int64_t{16} << 20;

// Settings of the server that each model may have for itself.
constexpr std::string_view kModelSettings[] = {
    "weight-version",        "chat-template",
    "tool-call-parser",      "max-parallel-tool-calls",
    "reasoning-parser",      "enable-cache-report",
    "enable-metrics",        "incremental-streaming-output",
    "stream-interval",       "rerank-format",
    "moderation-safe-labels"};
// Settings of the engine that all models share.
constexpr std::string_view kSharedSettings[] = {"device", "base-gpu-id", "log-level"};

// Settings of the command that would be those of every model.
constexpr std::string_view kOfOneModel[] = {"model-path",
                                            "tokenizer-path",
                                            "served-model-name",
                                            "chat-template",
                                            "warm-prompts",
                                            "lora-paths",
                                            "control-vectors",
                                            "max-total-tokens",
                                            "context-length",
                                            "weight-version",
                                            "speculative-draft-model-path",
                                            "tool-call-parser",
                                            "reasoning-parser",
                                            "json-model-override-args"};

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string normal(std::string_view key) {
  std::string out(key);
  std::ranges::replace(out, '_', '-');
  return out;
}

// A failure at a member of the file: its line, and the member's name.
Status at(const toml::node& node, std::string_view member, const Status& why) {
  return Status(why.code(),
                fmt::format("line {}: {}: {}", node.source().begin.line, member, why.message()));
}

Result<double> read_number(const toml::node& node, double low, double high) {
  const auto value = node.value<double>();
  if (!node.is_number() || !value || !(*value >= low && *value <= high))
    return fail(invalid_argument("it must be a number from {} to {}", low, high));
  return *value;
}

Result<Duration> read_seconds(const toml::node& node, double low) {
  ESP_ASSIGN_OR_RETURN(const double seconds, read_number(node, low, 1e8));
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

Result<std::string> read_text(const toml::node& node) {
  const auto value = node.value<std::string>();
  if (!node.is_string() || value->empty())
    return fail(invalid_argument("it must be a text that is not empty"));
  return *value;
}

// Names are labels of metrics and parts of "NAME:ADAPTER".
Result<std::string> read_name(const toml::node& node) {
  ESP_ASSIGN_OR_RETURN(std::string name, read_text(node));
  if (name.find_first_of("\"\\\n:") == std::string::npos) return name;
  return fail(invalid_argument(
      "a name must have no colon, no quotation mark, no backslash and no line end in it"));
}

Result<int64_t> read_bytes(const toml::node& node) {
  if (const auto* whole = node.as_integer(); whole != nullptr && whole->get() > 0)
    return whole->get();
  if (const auto* text = node.as_string()) return parse_bytes(text->get());
  return fail(invalid_argument("it must be bytes, as a number or as \"2GiB\""));
}

Status read_memory(const toml::node& node, MemoryShare& out) {
  if (const auto* part = node.as_floating_point()) {
    if (!(part->get() > 0 && part->get() <= 1))
      return invalid_argument("a part of the memory must be above 0 and at most 1");
    out.fraction = part->get();
    return {};
  }
  ESP_ASSIGN_OR_RETURN(out.bytes, read_bytes(node));
  return {};
}

Status read_aliases(const toml::node& node, std::vector<std::string>& out) {
  const toml::array* const list = node.as_array();
  if (list == nullptr) return invalid_argument("it must be a list of names");
  for (const toml::node& each : *list) {
    ESP_ASSIGN_OR_RETURN(std::string name, read_name(each));
    out.push_back(std::move(name));
  }
  return {};
}

Status read_keep_alive(const toml::node& node, std::optional<Duration>& out) {
  ESP_ASSIGN_OR_RETURN(const Duration seconds, read_seconds(node, -1));
  out = seconds < Duration::zero() ? std::nullopt : std::optional(seconds);
  return {};
}

Status read_on_idle(const toml::node& node, bool& sleeps) {
  ESP_ASSIGN_OR_RETURN(const std::string what, read_text(node));
  if (what != "sleep" && what != "unload")
    return invalid_argument("it is \"{}\", but must be \"sleep\" or \"unload\"", what);
  sleeps = what == "sleep";
  return {};
}

Status read_flag(const toml::node& node, bool& out) {
  const auto* flag = node.as_boolean();
  if (flag == nullptr) return invalid_argument("it must be true or false");
  out = flag->get();
  return {};
}

// Reads one [[model]].
class EntryReader {
 public:
  EntryReader(ServedModelEntry& entry, const std::string& path) : entry_(entry), path_(path) {
    add_engine_settings(engine_, entry_.config);
    add_server_settings(server_, entry_.config);
  }

  Status read(const toml::table& table) {
    for (const auto& [key, value] : table) {
      const std::string member(key.str());
      if (const Status status = read_member(member, value); !status.ok())
        return at(value, member, status);
    }
    if (entry_.model.name.empty())
      return at(table, "name", invalid_argument("a model needs a name, by which requests name it"));
    if (!engine_.find("model-path")->given())
      return at(table, "model_path",
                invalid_argument("the model '{}' needs one", entry_.model.name));
    if (const Status status = check_contradictions(engine_, entry_.config); !status.ok())
      return at(table, entry_.model.name, status);
    return {};
  }

 private:
  Status read_member(const std::string& member, const toml::node& value) {
    if (member == "name") {
      ESP_ASSIGN_OR_RETURN(entry_.model.name, read_name(value));
      return {};
    }
    if (member == "aliases") return read_aliases(value, entry_.model.aliases);
    if (member == "memory") return read_memory(value, entry_.memory);
    if (member == "keep_alive") return read_keep_alive(value, entry_.model.keep_alive);
    if (member == "on_idle") return read_on_idle(value, entry_.model.sleeps);
    if (member == "preload") return read_flag(value, entry_.model.preload);
    return read_setting(member, value);
  }

  Status read_setting(const std::string& member, const toml::node& value) {
    Setting* setting = engine_.find(member);
    if (setting != nullptr && contains(kSharedSettings, setting->name))
      return invalid_argument("all models of a server share it: give it as --{}", setting->name);
    if (setting == nullptr) setting = server_.find(member);
    if (setting == nullptr) {
      const std::string near = engine_.nearest_name(normal(member));
      return invalid_argument("there is no such setting{}",
                              near.empty() ? "" : fmt::format("; did you mean {}?", near));
    }
    if (engine_.find(member) == nullptr && !contains(kModelSettings, setting->name))
      return invalid_argument("it is a setting of the server, not of one model: give it as --{}",
                              setting->name);
    ESP_ASSIGN_OR_RETURN(const std::vector<std::string> values,
                         toml_values(member, value, setting->value_name == "JSON"));
    return assign(*setting, values, fmt::format("{} in {}", member, path_));
  }

  ServedModelEntry& entry_;
  const std::string& path_;
  SettingTable engine_, server_;
};

// The names of adapters that are loaded with the model name it too.
void add_adapter_names(ServedModelEntry& entry) {
  for (const std::string& stated : entry.config.engine.lora.lora_paths) {
    const size_t equals = stated.find('=');
    entry.model.aliases.push_back(equals == std::string::npos ? fs::path(stated).filename().string()
                                                              : stated.substr(0, equals));
  }
}

Status check_together(const EngineConfig& engine) {
  if (engine.disaggregation.disaggregation_mode != "null")
    return error(StatusCode::kUnimplemented,
                 "a server of several models takes no part in disaggregation: leave "
                 "disaggregation_mode out");
  return {};
}

Status read_entry(const toml::node& node, const std::string& path, const AppConfig& base,
                  std::map<std::string, std::string>& names,
                  std::map<std::string, std::string>& publishers, ServedModelsFile& out) {
  const toml::table* const table = node.as_table();
  if (table == nullptr)
    return at(node, "model", invalid_argument("each model is a table: [[model]]"));
  // In place: the tables of settings refer to it.
  ServedModelEntry& entry = out.entries.emplace_back();
  entry.config = base;
  ESP_RETURN_IF_ERROR(EntryReader(entry, path).read(*table));
  ServedModel& model = entry.model;
  if (const Status status = check_together(entry.config.engine); !status.ok())
    return at(node, model.name, status);
  add_adapter_names(entry);
  std::vector<std::string> all = model.aliases;
  all.push_back(model.name);
  for (const std::string& name : all)
    if (const auto [other, is_new] = names.emplace(name, model.name); !is_new)
      return at(node, "name",
                invalid_argument("'{}' names two models, '{}' and '{}': one of them needs another",
                                 name, other->second, model.name));
  model.kv_events = entry.config.server.telemetry.kv_events;
  if (!model.kv_events.endpoint.empty() &&
      !publishers.emplace(model.kv_events.endpoint, model.name).second)
    return at(node, "kv_events_config",
              invalid_argument("two models publish at {}: give each an endpoint of its own",
                               model.kv_events.endpoint));
  model.answers = entry.config.server.answers;
  if (!model.answers.chat_template.empty())
    if (const Status known = server::ChatFormat::check(model.answers.chat_template); !known.ok())
      return at(node, "chat_template", known);
  model.answers.served_model_name = model.name;
  return {};
}

Status read_root(const toml::table& root, const std::string& path, const AppConfig& base,
                 ServedModelsFile& out) {
  std::map<std::string, std::string> names, publishers;
  for (const auto& [key, value] : root) {
    const std::string member(key.str());
    if (member == "memory_limit") {
      auto bytes = read_bytes(value);
      if (!bytes) return at(value, member, bytes.error());
      out.memory_limit = *bytes;
    } else if (member == "load_timeout") {
      auto seconds = read_seconds(value, 0.001);
      if (!seconds) return at(value, member, seconds.error());
      out.load_timeout = *seconds;
    } else if (member != "model") {
      return at(value, member,
                invalid_argument("a file of models has memory_limit, load_timeout and [[model]] "
                                 "tables"));
    }
  }
  const toml::array* const models = root["model"].as_array();
  if (models == nullptr || models->empty())
    return invalid_argument("line 1: model: the file names no model: give each a [[model]] table");
  out.entries.reserve(models->size());
  for (const toml::node& each : *models)
    ESP_RETURN_IF_ERROR(read_entry(each, path, base, names, publishers, out));
  return {};
}

// The folder of a model that ships, which has a name instead of a path; else the path itself.
fs::path resolve_shipped_path(const fs::path& given) {
  if (!shipped_model_folder(given)) return given;
  const auto found = resolve_model_path(given);
  return found ? *found : given;
}

// Of the files of weights; 0 where the path is that of a hub, whose files are not here yet.
int64_t weight_file_bytes(const fs::path& given) {
  std::error_code problem;
  if (fs::is_regular_file(given, problem)) return static_cast<int64_t>(fs::file_size(given));
  int64_t sum = 0;
  for (const fs::directory_entry& each : fs::directory_iterator(given, problem)) {
    const fs::path extension = each.path().extension();
    if (extension == ".safetensors" || extension == ".gguf")
      sum += static_cast<int64_t>(each.file_size(problem));
  }
  return sum;
}

// What the entry states for its keys and values; 0: nothing.
int64_t stated_kv_bytes(const MemoryShare& memory, const SystemInfo& system) {
  if (memory.bytes > 0) return memory.bytes;
  return static_cast<int64_t>(memory.fraction * static_cast<double>(system.available_bytes));
}

// An equal part of what all models may take.
int64_t equal_part(const ServedModelsFile& file, const SystemInfo& system, int64_t weight_bytes) {
  double all = system.mem_fraction * static_cast<double>(system.available_bytes);
  if (file.memory_limit > 0) all = std::min(all, static_cast<double>(file.memory_limit));
  const auto part = static_cast<int64_t>(all / static_cast<double>(file.entries.size()));
  return std::max(kKvBytesMin, part - weight_bytes);
}

// The tokens that fit in so many bytes of keys and values, as far as requests can use them. What is
// wrong with the model's files is reported when they are loaded.
void limit_kv(EngineConfig& engine, int64_t kv_bytes) {
  if (kv_bytes == 0) return;
  const auto info = read_model_info(model_load_options(engine));
  if (!info || info->num_layers == 0) return;
  const auto type = resolve_kv_type(engine, *info);
  if (!type) return;
  const int64_t context =
      engine.model.context_length > 0 ? engine.model.context_length : info->context_length;
  const int64_t running =
      engine.schedule.max_running_requests > 0 ? engine.schedule.max_running_requests : 256;
  const int64_t page = engine.cache.page_size;
  const int64_t fits = kv_bytes / std::max<int64_t>(1, info->kv_bytes_per_token(*type));
  engine.cache.max_total_tokens = static_cast<int32_t>(
      std::clamp<int64_t>(std::min(fits, running * context), page, kTokensMax));
}

void prepare_engine(ServedModelEntry& entry, const ServedModelsFile& file,
                    const EngineDevice& device) {
  EngineConfig& engine = entry.config.engine;
  if (device.cuda) {
    engine.compute.device = "cuda";
    engine.compute.base_gpu_id = device.index;
  }
  // What sleeps on a GPU keeps its weights in the host's memory; replicas release none.
  if (entry.model.sleeps && device.cuda && engine.compute.dp_size == 1)
    engine.compute.enable_weights_cpu_backup = true;
  const int64_t weights = weight_file_bytes(resolve_shipped_path(engine.model.model_path));
  int64_t kv_bytes = stated_kv_bytes(entry.memory, device.system);
  entry.model.estimated_bytes = weights + kv_bytes;
  const CacheSettings& cache = engine.cache;
  if (kv_bytes == 0 && cache.max_total_tokens == 0 && cache.mem_fraction_static == 0)
    kv_bytes = equal_part(file, device.system, weights);
  entry.model.start = [config = entry.config, kv_bytes]() -> Result<std::unique_ptr<Engine>> {
    AppConfig copy = config;
    ESP_ASSIGN_OR_RETURN(copy.engine.model.model_path,
                         resolve_model_path(copy.engine.model.model_path, copy.hub));
    limit_kv(copy.engine, kv_bytes);
    return start_engine(copy);
  };
}

}  // namespace

void add_served_models_row(SettingTable& table, AppConfig& config) {
  table
      .path("served-models", config.served_models,
            "TOML file of several models behind one address, in place of model-path: each is "
            "loaded when a request names it, and stops when it has been idle "
            "(docs/several_models.md)")
      .default_text = "one model";
}

Result<int64_t> parse_bytes(std::string_view text) {
  static const std::map<std::string_view, double> kUnits = {
      {"", 1},      {"B", 1},         {"KB", 1e3},      {"MB", 1e6},      {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1099511627776.0}};
  double number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  const auto found = kUnits.find(unit);
  const double bytes = found == kUnits.end() ? 0 : number * found->second;
  if (problem != std::errc() || !(bytes >= 1 && bytes < 1e18))
    return fail(invalid_argument(
        "\"{}\" is no size: give bytes above 0, or a number with KiB, MiB, GiB, KB, MB or GB",
        text));
  return static_cast<int64_t>(bytes);
}

Result<ServedModelsFile> parse_served_models(std::string_view text, const std::string& path,
                                             const AppConfig& base) {
  const std::string context = "--served-models " + path;
  ServedModelsFile out;
  try {
    const toml::table root = toml::parse(text);
    if (const Status read = read_root(root, path, base, out); !read.ok())
      return fail(read.with_context(context));
  } catch (const toml::parse_error& problem) {
    return fail(invalid_argument("{}: line {}: {}", context, problem.source().begin.line,
                                 problem.description()));
  }
  return out;
}

Status check_served_models(const SettingTable& table, const AppConfig& config) {
  if (config.served_models.empty()) return {};
  for (const std::string_view name : kOfOneModel) {
    const Setting* const row = table.find(name);
    // The environment may name a model for all commands.
    if (row == nullptr || !row->given() || row->set_by == environment_name(name)) continue;
    return invalid_argument(
        "{} is a setting of one model, and --served-models has several: state it in the file",
        row->set_by);
  }
  if (!config.nodes.single())
    return invalid_argument(
        "--nnodes computes one model, and --served-models has several: leave "
        "one out");
  return {};
}

Result<ServedModels> read_served_models(const AppConfig& config) {
  Result<std::string> text = read_text_file(config.served_models);
  if (!text) return fail(text.error().with_context("--served-models"));
  ESP_ASSIGN_OR_RETURN(ServedModelsFile file,
                       parse_served_models(*text, config.served_models.string(), config));
  const ComputeSettings& compute = config.engine.compute;
  ESP_ASSIGN_OR_RETURN(const EngineDevice device,
                       choose_device(compute.device, compute.base_gpu_id));
  ServedModels out{.models = {},
                   .memory_limit = file.memory_limit,
                   .load_timeout = file.load_timeout,
                   .free_bytes = {}};
  for (ServedModelEntry& entry : file.entries) {
    prepare_engine(entry, file, device);
    out.models.push_back(std::move(entry.model));
  }
  out.free_bytes = [is_cuda = device.cuda, index = device.index]() -> int64_t {
    if (!is_cuda) return read_system_info().available_bytes;
    const auto opened = choose_device("cuda", index);
    return opened ? opened->system.available_bytes : 0;
  };
  return out;
}

}  // namespace espalier::apps
