// The characters of a JSON string without a copy. Pure; thread-safe.
#pragma once

#include <boost/json/string.hpp>
#include <string_view>

namespace espalier::server {

// Valid as long as `text` is neither changed nor destroyed.
inline std::string_view view(const boost::json::string& text) { return {text.data(), text.size()}; }

}  // namespace espalier::server
