// URI references (RFC 3986, section 5). Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace espalier::grammar {

// Resolves `reference` against the address `base`.
std::string resolved_uri(std::string_view base, std::string_view reference);

// "a%20b" -> "a b"; other text is unchanged.
std::string percent_decoded(std::string_view text);

}  // namespace espalier::grammar
