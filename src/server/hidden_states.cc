#include "server/hidden_states.h"

#include <bit>
#include <string>

#include "base/base64.h"

namespace espalier::server {
namespace {

void write_vector(JsonWriter& w, std::span<const float> values) {
  w.begin_array();
  for (const float value : values) w.value(value);
  w.end_array();
}

void write_row(JsonWriter& w, std::span<const float> row, const HiddenShape& shape) {
  if (shape.num_layers == 0) return write_vector(w, row);
  w.begin_array();
  for (size_t i = 0; i < shape.num_layers; ++i)
    write_vector(w, row.subspan(i * shape.hidden_size, shape.hidden_size));
  w.end_array();
}

void write_list(JsonWriter& w, std::span<const float> states, size_t row,
                const HiddenShape& shape) {
  w.begin_array();
  const bool has_prompt = row < shape.num_prompt && !states.empty();
  if (has_prompt) w.begin_array();
  for (; !states.empty(); states = states.subspan(shape.row_floats()), ++row) {
    if (has_prompt && row == shape.num_prompt) w.end_array();
    write_row(w, states.first(shape.row_floats()), shape);
  }
  if (has_prompt && row <= shape.num_prompt) w.end_array();
  w.end_array();
}

void append_little_endian(std::string& out, uint32_t bits, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) out.push_back(static_cast<char>(bits >> (8 * i)));
}

// The upper half, rounded to nearest with ties to even; NaN stays one.
uint32_t bfloat16_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return (bits >> 16) | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

std::string bytes_of(std::span<const float> states, HiddenFormat format) {
  std::string bytes;
  bytes.reserve(states.size() * (format == HiddenFormat::kFloat32 ? 4 : 2));
  for (const float value : states)
    format == HiddenFormat::kFloat32
        ? append_little_endian(bytes, std::bit_cast<uint32_t>(value), 4)
        : append_little_endian(bytes, bfloat16_bits(value), 2);
  return bytes;
}

}  // namespace

Result<HiddenFormat> parse_hidden_format(std::string_view name) {
  if (name == "list") return HiddenFormat::kList;
  if (name == "float32") return HiddenFormat::kFloat32;
  if (name == "bfloat16") return HiddenFormat::kBFloat16;
  return fail(invalid_argument(
      "hidden_states_format is '{}', but must be list, float32 or bfloat16", name));
}

void write_hidden_states(JsonWriter& w, std::span<const float> states, size_t first_row,
                         const HiddenShape& shape, HiddenFormat format) {
  if (format == HiddenFormat::kList) return write_list(w, states, first_row, shape);
  w.begin_object().member("dtype", format == HiddenFormat::kFloat32 ? "float32" : "bfloat16");
  w.key("shape").begin_array().value(states.size() / shape.row_floats());
  if (shape.num_layers > 0) w.value(shape.num_layers);
  w.value(shape.hidden_size).end_array();
  w.member("first_token", first_row);
  w.member("data", encode_base64(bytes_of(states, format))).end_object();
}

int64_t json_bytes_of_float(HiddenFormat format) {
  constexpr int64_t kDigits = 14, kBase64OfFloat = 6, kBase64OfHalf = 3;
  if (format == HiddenFormat::kList) return kDigits;
  return format == HiddenFormat::kFloat32 ? kBase64OfFloat : kBase64OfHalf;
}

Status no_room_for_states(size_t num_floats) {
  return error(
      StatusCode::kResourceExhausted,
      "the answers of all requests take what memory there is for them, and hidden states "
      "take {} bytes more: ask for fewer layers or tokens, stream the answer, or try again "
      "later",
      num_floats * sizeof(float));
}

Status charge_hidden_states(MemoryCharge& charge, size_t num_floats) {
  if (charge.resize(charge.bytes() + static_cast<int64_t>(num_floats * sizeof(float)))) return {};
  return no_room_for_states(num_floats);
}

}  // namespace espalier::server
