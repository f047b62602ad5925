// The key that a request brings, and its comparison with a key that is known. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace espalier {

// The key of "Authorization: Bearer KEY", or of "x-api-key: KEY" as Anthropic's clients send it;
// empty: there is none. Each header's value, or null where the request has no such header.
std::string_view api_key_of(const std::string* authorization, const std::string* x_api_key);

// Takes the same time however much of the given key is right.
bool same_key(std::string_view given, std::string_view key);

}  // namespace espalier
