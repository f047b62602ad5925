// SentencePiece's normaliser: replacements, white space, the mark that stands for it.
// Source: sentencepiece/src/normalizer.cc. Pure; thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "text/tokenizer/piece_trie.h"
#include "text/tokenizer/sentencepiece_model.h"

namespace espalier {

// `user_defined`: symbols that are left as they are. Each byte of invalid UTF-8 becomes U+FFFD.
std::string normalize_sentencepiece(const SentencePieceModel& model, const PieceTrie& user_defined,
                                    std::string_view text);

// The replacements alone, white space untouched.
std::string replace_by(const Charsmap& charsmap, std::string_view text);

}  // namespace espalier
