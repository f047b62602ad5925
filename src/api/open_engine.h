// Opens an engine by settings that are given by name, as a program that links the library states
// them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/config.h"
#include "base/status.h"
#include "engine/engine.h"

namespace espalier::api {

// Names and values of docs/flags.md, without dashes before the names.
using NamedSettings = std::vector<std::pair<std::string, std::string>>;

// The model that an engine runs: `given`, or a model that ships ("", or "seeing", the one that
// reads pictures). That one is looked for beside the library (../share/espalier, or share of the
// source tree that the library was built in) unless ESPALIER_SHARE is set, then where the command
// looks (apps/config.h). kNotFound lists the folders.
Result<std::filesystem::path> model_folder(const std::filesystem::path& given,
                                           const apps::HubSettings& hub = {});

// Opens an engine that logs warnings and errors only, unless the setting log-level says otherwise.
// kInvalidArgument for an unknown name or a wrong value.
Result<std::unique_ptr<Engine>> open_engine(const std::filesystem::path& model_path,
                                            const NamedSettings& settings);

}  // namespace espalier::api
