// GPT-2's spelling of bytes as printable characters, in which a byte-level vocabulary is written
// ("Ġthe" is " the"). https://github.com/openai/gpt-2/blob/master/src/encoder.py, bytes_to_unicode
// Pure; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

// Appends the bytes that `spelled` stands for. False (and nothing appended) when a character of it
// spells no byte or it is not UTF-8.
bool append_spelled_bytes(std::string_view spelled, std::string& out);
std::string spell_bytes(std::string_view bytes);

}  // namespace espalier
