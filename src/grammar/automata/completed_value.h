// Which part of a text is the JSON value that its last byte completes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace espalier::grammar {

// Returns how many bytes at the end of `text` belong to the JSON value that the byte `last`
// completes when it is appended. REQUIRES: `last` completes a value: a quote or a closing bracket
// does; any other byte is taken to end a number or a word.
size_t completed_value_size(std::string_view text, uint8_t last);

}  // namespace espalier::grammar
