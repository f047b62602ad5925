// The times of a video's frames as tokens, which stand in the prompt in front of them (Qwen3-VL).
#pragma once

#include "engine/images/place_images.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier {

// Appends "<12.3 seconds>" in the tokens that the whole text would have, for a tokenizer may join
// the end of the text in front of it with its first character. The tokenizer outlives the result.
AppendTime time_appender(const Tokenizer& tokenizer);

}  // namespace espalier
