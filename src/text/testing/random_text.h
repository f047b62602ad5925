// Random texts for property tests, made of characters that tokenizers treat specially. A seed gives
// the same text everywhere. Thread-safe for distinct generators.
#pragma once

#include <string>

#include "base/rng.h"

namespace espalier {

// Valid UTF-8 of about `num_pieces` pieces: letters of several scripts, digits, runs of white space
// of all kinds, contractions, combining marks, emoji with joiners, controls, any code point.
std::string random_text(Rng& rng, int num_pieces);
char32_t random_scalar(Rng& rng);

}  // namespace espalier
