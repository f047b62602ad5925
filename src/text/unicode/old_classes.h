// Sets of characters from the Unicode of 2015 and 2016, which steps of Hugging Face's tokenizers
// still use: a text is normalised as its model was trained, not as Unicode stands today. Pure;
// thread-safe.
#pragma once

namespace espalier {

bool is_old_other(char32_t code);         // Cc, Cf and Co but \t, \n and \r; and U+FFFD
bool is_old_nonspacing(char32_t code);    // Mn
bool is_old_mark(char32_t code);          // M
bool is_old_punctuation(char32_t code);   // P, and ASCII's symbols
bool is_old_combining(char32_t code);     // canonical combining class above 0
bool is_late_decomposing(char32_t code);  // has a decomposition in newer tables alone

}  // namespace espalier
