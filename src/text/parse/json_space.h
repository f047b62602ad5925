// JSON's white space, which may stand between the parts of a call. Pure; thread-safe.
#pragma once

namespace espalier {

inline bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace espalier
