// JSON strings, for headers that programs include without a JSON library. Pure; thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace espalier::lang {

// "text", escaped. What is no UTF-8 is passed on as it is.
std::string json_quoted(std::string_view text);

}  // namespace espalier::lang
