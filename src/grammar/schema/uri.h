// Addresses as references write them (RFC 3986, section 5).
#pragma once

#include <string>
#include <string_view>

namespace espalier::grammar {

// The address that `reference` means where `base` is the address read.
std::string resolved_uri(std::string_view base, std::string_view reference);

// "a%20b" -> "a b"; what is no escape stays.
std::string percent_decoded(std::string_view text);

}  // namespace espalier::grammar
