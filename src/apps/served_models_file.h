// The file of --served-models (TOML): several models behind one address.
//
//   memory_limit = "24GiB"          # of all in memory together
//   [[model]]
//   name = "small"
//   model_path = "models/small"     # and any setting of the engine, by its flag's name
//   memory = 0.1                    # of the device, for keys and values; or bytes, or "2GiB"
//   keep_alive = 60                 # seconds; -1: it stays
//   on_idle = "sleep"
//
// docs/several_models.md describes it. Used by the main thread, before others start.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/config.h"
#include "server/served_models/served_models.h"

namespace espalier::apps {

// The flag --served-models.
void add_served_models_row(SettingTable& table, AppConfig& config);

// How a model's keys and values share the device's memory: a part of what is free when the server
// starts, or bytes. Neither: an equal share with the others.
struct MemoryShare {
  double fraction = 0;
  int64_t bytes = 0;
};

// An entry of the file: the settings of the command with those of the entry above them.
struct ServedModelEntry {
  ServedModel model;  // without `start` and `estimated_bytes`
  AppConfig config;
  MemoryShare memory;
};

struct ServedModelsFile {
  int64_t memory_limit = 0;
  Duration load_timeout = std::chrono::minutes(5);
  std::vector<ServedModelEntry> entries;
};

// text: of the file `path`, which errors name with the line and the member. base: the settings of
// the command, from which those of each model begin.
Result<ServedModelsFile> parse_served_models(std::string_view text, const std::string& path,
                                             const AppConfig& base);

// Settings of the command that are those of one model, beside --served-models.
Status check_served_models(const SettingTable& table, const AppConfig& config);

// Reads config.served_models. Each model gets its part of the memory that is free now, and its
// engine is started by start_engine().
Result<ServedModels> read_served_models(const AppConfig& config);

// "2GiB", "512MiB", "800MB" or plain bytes.
Result<int64_t> parse_bytes(std::string_view text);

}  // namespace espalier::apps
