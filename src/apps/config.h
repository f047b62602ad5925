// The settings of the commands, and the rows that bind them to flags. A table refers to the config
// that it was made for, which outlives it. Used by one thread.
#pragma once

#include <string>

#include "apps/settings.h"
#include "engine/engine.h"
#include "engine/nodes/settings.h"
#include "server/server.h"

namespace espalier::apps {

// Where a model that is named as on a hub comes from.
struct HubSettings {
  std::string revision;                // a branch, a tag or a commit; empty: main
  std::filesystem::path download_dir;  // the hub's cache; empty: as HF_HUB_CACHE and HF_HOME say
};

struct AppConfig {
  EngineConfig engine;
  HubSettings hub;
  ServerConfig server;
  std::string log_level = "info";
  Duration drain_timeout = std::chrono::seconds(30);
  NodeSettings nodes;                   // of `serve`
  std::filesystem::path served_models;  // a file of several models; empty: engine.model's alone
  std::filesystem::path warm_prompts;   // a file of prompts that are computed first; empty: none
};

// The engine's settings and the log level: for every command that runs a model.
void add_engine_settings(SettingTable& table, AppConfig& config);
// The server's settings: for `serve`.
void add_server_settings(SettingTable& table, AppConfig& config);

// --ssl-certfile and its like: for `serve` and `route`.
void add_tls_rows(SettingTable& table, net::TlsFiles& tls);

// Flags that contradict each other; the error names what set each of them.
Status check_contradictions(const SettingTable& table, const AppConfig& config);

// The model that a command runs: --model-path (a path, else a model of the hub, which is fetched
// into its cache), else `default_model` in ESPALIER_SHARE, in share/ beside the binary, in
// ../share/espalier (an installation) or in share/ of the source tree that the binary was built in.
// kNotFound says where it looked.
Result<std::filesystem::path> resolve_model_path(const std::filesystem::path& given,
                                                 const HubSettings& hub = {});

// A host as a URL has it: an IPv6 address stands in brackets there.
std::string url_host(const std::string& host);

// Documentation of all settings, as docs/flags.md holds it.
std::string settings_markdown();
// Of the rows of a table, by heading.
std::string rows_markdown(const SettingTable& table);

}  // namespace espalier::apps
