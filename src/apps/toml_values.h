// A member of a TOML file as the texts that a setting takes. Pure.
#pragma once

#include <toml++/toml.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier::apps {

// One text, or an array's. takes_json: a table is the text of its JSON. A failure names the key.
Result<std::vector<std::string>> toml_values(std::string_view key, const toml::node& value,
                                             bool takes_json);

}  // namespace espalier::apps
