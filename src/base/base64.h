// Base64: the standard alphabet, padded or not, no line ends. The functions are pure and thread-safe,
// and fail only by their result.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace espalier {

// Padded.
std::string encode_base64(std::string_view bytes);
// Appends the decoded bytes to `out`. Returns false when `text` is no base64.
bool decode_base64(std::string_view text, std::string& out);

}  // namespace espalier
