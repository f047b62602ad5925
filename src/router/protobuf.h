// protobuf's wire format: messages as fields of numbers, without their descriptions. Pure
// functions. What is not known is skipped, as the format wants it. Internal to the room.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace espalier::router {

struct ProtoField {
  uint32_t number = 0;
  uint64_t value = 0;      // of a varint or a fixed number
  std::string_view bytes;  // of a text, of bytes or of a message
};

// The fields of a message one after another. `message` outlives it and the fields.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view message) : rest_(message) {}
  // False at the end, and where the bytes are no message.
  bool next(ProtoField& field);
  bool ok() const { return ok_; }  // whether all were read so far

 private:
  bool read_varint(uint64_t& value);
  bool read_fixed(size_t size, uint64_t& value);
  bool broken() {
    ok_ = false;
    return false;
  }

  std::string_view rest_;
  bool ok_ = true;
};

// Appends one field to a message. An empty text is written too, for it selects a member of a oneof.
void put_number(std::string& message, uint32_t number, uint64_t value);
void put_bytes(std::string& message, uint32_t number, std::string_view bytes);

}  // namespace espalier::router
