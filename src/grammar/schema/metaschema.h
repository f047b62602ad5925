// The metaschemas of drafts 4 to 2020-12, for schemas that refer to them.
#pragma once

#include <optional>
#include <string_view>

namespace espalier::grammar {

// Returns the metaschema of the draft at `uri` as one schema; nothing for other addresses.
std::optional<std::string_view> metaschema_text(std::string_view uri);

}  // namespace espalier::grammar
