#include "api/open_engine.h"

#include <dlfcn.h>

#include <cstdlib>
#include <map>

#include "apps/config.h"
#include "apps/model_path.h"
#include "base/log.h"

namespace espalier::api {
namespace {

namespace fs = std::filesystem;

// The file that holds this code: the shared library, or the program that it is linked into.
fs::path own_file() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&own_file), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code problem;
  return fs::weakly_canonical(info.dli_fname, problem);
}

}  // namespace

Result<fs::path> model_folder(const fs::path& given, const apps::HubSettings& hub) {
  const std::optional<std::string> shipped = apps::shipped_model_folder(given);
  if (shipped && std::getenv("ESPALIER_SHARE") == nullptr) {
    const fs::path folder = own_file().parent_path();
    for (const fs::path& share :
         {folder.parent_path() / "share/espalier", folder.parent_path().parent_path() / "share",
          folder.parent_path().parent_path() / "share/espalier"}) {
      std::error_code problem;
      if (fs::exists(share / *shipped / "config.json", problem)) return share / *shipped;
    }
  }
  return apps::resolve_model_path(given, hub);
}

Result<std::unique_ptr<Engine>> open_engine(const fs::path& model_path,
                                            const NamedSettings& settings) {
  apps::AppConfig config;
  config.log_level = "warning";
  apps::SettingTable table;
  apps::add_engine_settings(table, config);
  std::map<const apps::Setting*, std::vector<std::string>> given;
  for (const auto& [name, value] : settings) {
    apps::Setting* row = table.find(name);
    if (row == nullptr) {
      const std::string near = table.nearest_name(name);
      return fail(invalid_argument("there is no setting '{}'{}; docs/flags.md lists them", name,
                                   near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
    }
    std::vector<std::string>& values = given[row];
    values.push_back(value);
    ESP_RETURN_IF_ERROR(apps::assign(*row, values, "the setting " + name));
  }
  if (!model_path.empty()) config.engine.model.model_path = model_path;
  ESP_RETURN_IF_ERROR(apps::check_contradictions(table, config));
  ESP_ASSIGN_OR_RETURN(const LogLevel level, parse_log_level(config.log_level));
  set_log_level(level);
  ESP_ASSIGN_OR_RETURN(config.engine.model.model_path,
                       model_folder(config.engine.model.model_path, config.hub));
  return Engine::create(config.engine);
}

}  // namespace espalier::api
