// Which bytes of an answer's text each of its tokens has become. Pure; thread-safe. Internal to the
// room.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace espalier::server {

struct TokenPlace {
  bool first = false;     // no text is in front of it: some tokenizers drop a space there
  bool complete = false;  // no more text comes
  bool special = false;   // the text may have left it out
};

// How many bytes at the begin of `rest`, which is an answer's text from some byte on, the next
// token stands for. nullopt: more of the text must come before this is known. 0: the token is not
// part of the text, as a special token that is left out, or one behind a stop string. bytes: the
// token's.
std::optional<size_t> token_length_in(std::string_view rest, std::string_view bytes,
                                      TokenPlace place);

// The length of the longest beginning of `text` of at most num_bytes that ends between characters.
size_t whole_characters(std::string_view text, size_t num_bytes);

}  // namespace espalier::server
