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

// Names and values of docs/flags.md, without dashes before the names. A list's name stands once for
// each of its values; another setting that is given twice has equal values.
using NamedSettings = std::vector<std::pair<std::string, std::string>>;

// The model that an engine runs: `given`, or a model that ships ("", or "seeing", the one that
// reads pictures). That one is looked for beside the library (../share/espalier, or share of the
// source tree that the library was built in) unless ESPALIER_SHARE is set, then where the command
// looks (apps/config.h). kNotFound lists the folders.
Result<std::filesystem::path> model_folder(const std::filesystem::path& given,
                                           const apps::HubSettings& hub = {});

// Opens an engine that logs warnings and errors only, unless the setting log-level says otherwise.
// model_path is what --model-path takes: a folder, a .gguf file, a model that ships by its name, or
// org/name of a Hugging Face hub, which is fetched into its cache (settings revision,
// download-dir). kInvalidArgument for an unknown name or a wrong value.
Result<std::unique_ptr<Engine>> open_engine(const std::filesystem::path& model_path,
                                            const NamedSettings& settings);

}  // namespace espalier::api
