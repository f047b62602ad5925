#include "text/tokenizer/sentencepiece_model.h"

#include <cmath>
#include <cstring>
#include <unordered_set>

#include "text/tokenizer/vocabulary.h"

namespace espalier {
namespace {

// One field of a protocol buffer.
struct Field {
  uint32_t number = 0;
  uint64_t integer = 0;    // of a varint or a fixed number
  std::string_view bytes;  // of a string or message
  bool is_bytes = false;
  float as_float() const {
    const auto bits = static_cast<uint32_t>(integer);
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
};

class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : rest_(bytes) {}

  // The next field; false at the end, and where the bytes are malformed.
  bool next(Field& field) {
    if (rest_.empty()) return false;
    uint64_t tag = 0;
    if (!varint(tag)) return false;
    field = {};
    field.number = static_cast<uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0:
        return varint(field.integer);
      case 1:
        return fixed(8, field.integer);
      case 2: {
        uint64_t size = 0;
        if (!varint(size) || size > rest_.size()) return malformed();
        field.bytes = rest_.substr(0, size);
        field.is_bytes = true;
        rest_.remove_prefix(size);
        return true;
      }
      case 5:
        return fixed(4, field.integer);
      default:
        return malformed();
    }
  }
  bool ok() const { return ok_; }

 private:
  bool malformed() {
    ok_ = false;
    return false;
  }
  bool varint(uint64_t& value) {
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return malformed();
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return malformed();
  }
  bool fixed(size_t size, uint64_t& value) {
    if (rest_.size() < size) return malformed();
    std::memcpy(&value, rest_.data(), size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
  bool ok_ = true;
};

Status malformed(std::string_view where) {
  return error(StatusCode::kDataLoss, "this is no SentencePiece model, or it is cut short: {}",
               where);
}

Status read_piece(std::string_view bytes, SentencePieceModel& model) {
  SentencePieceModel::Piece piece;
  const size_t id = model.pieces.size();
  MessageReader reader(bytes);
  for (Field field; reader.next(field);) {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2) piece.score = field.as_float();
    if (field.number == 3) {
      if (field.integer < 1 || field.integer > 6) {
        return error(StatusCode::kDataLoss, "piece {} has the unknown type {}", id, field.integer);
      }
      piece.type = static_cast<SentencePieceModel::PieceType>(field.integer);
    }
  }
  if (!reader.ok()) return malformed(fmt::format("piece {}", id));
  if (piece.text.empty()) return error(StatusCode::kDataLoss, "piece {} is empty", id);
  if (std::isnan(piece.score)) {
    return error(StatusCode::kDataLoss, "the score of piece {} is no number", id);
  }
  if (static_cast<int64_t>(id) >= kVocabularyMax) {
    return error(StatusCode::kDataLoss, "there are more than {} pieces", kVocabularyMax);
  }
  model.pieces.push_back(std::move(piece));
  return {};
}

Status read_trainer_spec(std::string_view bytes, SentencePieceModel& model) {
  MessageReader reader(bytes);
  for (Field field; reader.next(field);) {
    switch (field.number) {
      case 3:
        if (field.integer < 1 || field.integer > 4) {
          return error(StatusCode::kDataLoss, "the model is of the unknown type {}", field.integer);
        }
        model.type = static_cast<SentencePieceModel::Type>(field.integer);
        break;
      case 24:
        model.whitespace_is_suffix = field.integer != 0;
        break;
      case 35:
        model.byte_fallback = field.integer != 0;
        break;
      case 44:
        model.unk_surface = field.bytes;
        break;
      case 46:
        model.bos_piece = field.bytes;
        break;
      case 47:
        model.eos_piece = field.bytes;
        break;
      default:
        break;
    }
  }
  return reader.ok() ? Status() : malformed("the trainer's settings");
}

Status read_normalizer_spec(std::string_view bytes, SentencePieceModel& model) {
  MessageReader reader(bytes);
  for (Field field; reader.next(field);) {
    if (field.number == 2) {
      ESP_ASSIGN_OR_RETURN(model.charsmap, Charsmap::parse(field.bytes));
    }
    if (field.number == 3) model.add_dummy_prefix = field.integer != 0;
    if (field.number == 4) model.remove_extra_whitespaces = field.integer != 0;
    if (field.number == 5) model.escape_whitespaces = field.integer != 0;
  }
  return reader.ok() ? Status() : malformed("the normaliser's settings");
}

Status read_denormalizer_spec(std::string_view bytes, SentencePieceModel& model) {
  MessageReader reader(bytes);
  for (Field field; reader.next(field);) {
    if (field.number == 2) {
      ESP_ASSIGN_OR_RETURN(model.decode_charsmap, Charsmap::parse(field.bytes));
    }
  }
  return reader.ok() ? Status() : malformed("the denormaliser's settings");
}

Status check(const SentencePieceModel& model) {
  std::unordered_set<std::string_view> seen;
  bool has_unknown = false;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    if (!seen.insert(piece.text).second) {
      return error(StatusCode::kDataLoss, "the piece '{}' stands twice", piece.text);
    }
    has_unknown |= piece.type == SentencePieceModel::PieceType::kUnknown;
  }
  if (!has_unknown) return error(StatusCode::kDataLoss, "there is no unknown piece");
  return {};
}

int upper_hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Result<SentencePieceModel> SentencePieceModel::parse(std::string_view bytes) {
  SentencePieceModel model;
  MessageReader reader(bytes);
  for (Field field; reader.next(field);) {
    if (field.number >= 1 && field.number <= 5 && !field.is_bytes)
      return fail(malformed("a field"));
    if (field.number == 1) ESP_RETURN_IF_ERROR(read_piece(field.bytes, model));
    if (field.number == 2) ESP_RETURN_IF_ERROR(read_trainer_spec(field.bytes, model));
    if (field.number == 3) ESP_RETURN_IF_ERROR(read_normalizer_spec(field.bytes, model));
    if (field.number == 5) ESP_RETURN_IF_ERROR(read_denormalizer_spec(field.bytes, model));
  }
  if (!reader.ok()) {
    return fail(malformed(fmt::format("after {} pieces", model.pieces.size())));
  }
  ESP_RETURN_IF_ERROR(check(model));
  return model;
}

int sentencepiece_byte(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return -1;
  const int high = upper_hex_digit(piece[3]), low = upper_hex_digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

bool looks_like_sentencepiece(std::string_view bytes) {
  // The first piece: field 1, a message that begins with its text.
  MessageReader reader(bytes);
  Field field;
  return reader.next(field) && field.number == 1 && field.is_bytes &&
         field.bytes.starts_with('\x0A');
}

}  // namespace espalier
