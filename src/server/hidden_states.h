// Hidden states in the answers of /generate: meta_info.hidden_states.
//
// As lists they are SGLang's: one element for the prompt, which holds a row for each of its tokens,
// and then one row for each output token but the last. A row is [hidden_size], or with
// hidden_states_layers [layers, hidden_size]. In binary they are one object: {"dtype", "shape":
// [rows, (layers,) hidden_size], "data": little-endian base64}. An event of a stream has the rows
// that are new; "first_token" then says of which token the first one is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/memory_account.h"
#include "base/status.h"
#include "server/json_writer.h"

namespace espalier::server {

enum class HiddenFormat : uint8_t { kList, kFloat32, kBFloat16 };

// "list", "float32" or "bfloat16"; else kInvalidArgument with the list.
Result<HiddenFormat> parse_hidden_format(std::string_view name);

// How the rows of a request are to be read.
struct HiddenShape {
  size_t hidden_size = 0;
  size_t num_layers = 0;  // 0: a row is one vector, for the request names no layers
  size_t num_prompt = 0;  // rows of the prompt, which come first

  size_t row_floats() const { return hidden_size * (num_layers == 0 ? 1 : num_layers); }
};

// states: rows from number `first_row` on.
void write_hidden_states(JsonWriter& w, std::span<const float> states, size_t first_row,
                         const HiddenShape& shape, HiddenFormat format);

// About how many bytes of JSON a float takes.
int64_t json_bytes_of_float(HiddenFormat format);

// kResourceExhausted: the account has no room for so many.
Status no_room_for_states(size_t num_floats);
// Charges for so many more floats; no_room_for_states() where the account has no room.
Status charge_hidden_states(MemoryCharge& charge, size_t num_floats);

}  // namespace espalier::server
