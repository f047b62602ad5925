// UTF-8 decoding and the character sets that patterns name. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "grammar/ir.h"

namespace espalier::grammar {

// Removes one code point from the front of `text`; returns nothing when it is not valid UTF-8.
std::optional<uint32_t> take_code_point(std::string_view& text);
void append_utf8(std::string& out, uint32_t code_point);
bool valid_utf8(std::string_view text);

std::vector<CodeRange> digit_chars();  // \d
std::vector<CodeRange> word_chars();   // \w
std::vector<CodeRange> space_chars();  // \s

// \p{NAME}: a general category by its short or long name ("Lu", "Uppercase_Letter", "L", "Letter").
// Nothing when the name is unknown.
std::optional<std::vector<CodeRange>> category_chars(std::string_view name);

// Returns `ranges` with the other cases of every letter in them.
std::vector<CodeRange> with_other_cases(const std::vector<CodeRange>& ranges);

}  // namespace espalier::grammar
