// What a SentencePiece .model holds: a protocol buffer, read without its library.
// Source: sentencepiece/src/sentencepiece_model.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/charsmap.h"

namespace espalier {

struct SentencePieceModel {
  enum class Type { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };
  enum class PieceType {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };

  Type type = Type::kUnigram;
  std::vector<Piece> pieces;  // by id
  bool byte_fallback = false;
  bool whitespace_is_suffix = false;
  std::string unk_surface = " \xE2\x81\x87 ";  // what decoding shows of an unknown piece
  std::string bos_piece = "<s>", eos_piece = "</s>";

  // The normaliser.
  Charsmap charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  Charsmap decode_charsmap;  // of the denormaliser; mostly empty

  // kDataLoss with what is wrong: cut short, an empty piece or one that stands twice, a score that
  // is no number, no unknown piece.
  static Result<SentencePieceModel> parse(std::string_view bytes);
};

inline constexpr std::string_view kSentencePieceSpace =
    "\xE2\x96\x81";  // U+2581, a space in pieces

// The byte that a piece such as "<0x41>" stands for, or -1.
int sentencepiece_byte(std::string_view piece);

// Whether bytes look like such a file.
bool looks_like_sentencepiece(std::string_view bytes);

}  // namespace espalier
