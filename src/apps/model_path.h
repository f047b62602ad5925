// The models that ship, by name.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace espalier::apps {

// The folder in share/ of the model that ships by a name: default_model for "", seeing_model for
// "seeing" where no file has that name. Nothing for what is a path or a hub's name.
// resolve_model_path() finds it.
std::optional<std::string> shipped_model_folder(const std::filesystem::path& given);

}  // namespace espalier::apps
