// The drafts' own schemas, for schemas that refer to them.
#pragma once

#include <optional>
#include <string_view>

namespace espalier::grammar {

// What schemas of the draft at `uri` look like, in one schema; nothing when it is none of them.
std::optional<std::string_view> metaschema_text(std::string_view uri);

}  // namespace espalier::grammar
