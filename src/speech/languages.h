// The languages that models of the Whisper family know, in the order of their tokens. Constant.
#pragma once

#include <span>
#include <string_view>

namespace espalier::speech {

struct Language {
  std::string_view code;  // of ISO 639-1, where it has one
  std::string_view name;  // in English, small letters
};

std::span<const Language> languages();

// The code of a code or an English name, in any case; empty where neither is known.
std::string_view language_code(std::string_view text);

// "english" of "en"; the text itself where no language has that code.
std::string_view language_name(std::string_view code);

}  // namespace espalier::speech
