// Vocabularies in tiktoken's format: a token in base64 and its rank on each line. The file holds no
// more than that, so how text is cut into words is chosen by the vocabulary's size.
#pragma once

#include <memory>
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace espalier {

// Byte pairs are merged by the rank of what they make. One special token more, "<|endoftext|>",
// gets the first id behind the ranks and ends a sequence. Words are cut as cl100k (100,256 tokens),
// Llama 3 (128,000), Qwen 2 (151,643) or o200k (199,998) cuts them, and as cl100k for any other
// size. kDataLoss names the line that is malformed.
Result<std::unique_ptr<Tokenizer>> parse_tiktoken(std::string_view text);

}  // namespace espalier
