#include "kernels/linear/block_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/linear/block_layout.h"
#include "kernels/linear/op.h"
#include "tensor/dtype.h"

// Compiled without contraction of a * b + c, so that results have the reference's bits.

namespace espalier::kernels {
namespace {

constexpr int64_t kUnit = PackedMatrix::kUnit;

const BlockLayout& layout_of(BlockFormat format) {
  return kBlockLayouts[static_cast<size_t>(format)];
}

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
uint8_t byte_at(const std::byte* from, int64_t i) { return static_cast<uint8_t>(from[i]); }

// ---- GGUF's blocks ----

// 32 values of four bits in 16 bytes: the low halves, then the high ones.
void take_nibbles(const std::byte* packed, uint8_t* values) {
  for (int64_t i = 0; i < 16; ++i) {
    values[i] = byte_at(packed, i) & 15;
    values[i + 16] = byte_at(packed, i) >> 4;
  }
}
void add_fifth_bits(const std::byte* bits, uint8_t* values) {
  const auto high = load<uint32_t>(bits);
  for (int64_t i = 0; i < 32; ++i) values[i] |= static_cast<uint8_t>((high >> i & 1) << 4);
}

// A block of 32 inputs with scales of one level.
void take_block(BlockFormat format, const std::byte* from, int64_t index, BlockRow& row) {
  uint8_t* values = row.values.data() + index * 32;
  if (format == BlockFormat::kMxfp4) {
    row.scales[static_cast<size_t>(index)] = byte_at(from, 0);
    return take_nibbles(from + 1, values);
  }
  row.d[static_cast<size_t>(index)] = load<uint16_t>(from);
  // The file's m is added and minima are subtracted: the other sign.
  if (layout_of(format).minima) {
    row.dmin[static_cast<size_t>(index)] = load<uint16_t>(from + 2) ^ 0x8000;
  }
  from += layout_of(format).minima ? 4 : 2;
  if (format == BlockFormat::kQ8_0) {
    for (int64_t i = 0; i < 32; ++i) values[i] = byte_at(from, i) ^ 0x80;
    return;
  }
  const bool five = layout_of(format).bits == 5;
  take_nibbles(five ? from + 4 : from, values);
  if (five) add_fifth_bits(from, values);
}

// The 6-bit scales and minima of eight groups of 32, in 12 bytes.
void take_k_scales(const std::byte* packed, uint8_t* scales, uint8_t* minima) {
  for (int64_t i = 0; i < 4; ++i) {
    scales[i] = byte_at(packed, i) & 63;
    minima[i] = byte_at(packed, i + 4) & 63;
    const uint8_t both = byte_at(packed, i + 8);
    scales[i + 4] = static_cast<uint8_t>((both & 15) | (byte_at(packed, i) >> 2 & 0x30));
    minima[i + 4] = static_cast<uint8_t>(both >> 4 | (byte_at(packed, i + 4) >> 2 & 0x30));
  }
}

// A block of 256 of Q4_K or Q5_K: d, dmin, scales, [fifth bits,] nibbles.
void take_k_block(BlockFormat format, const std::byte* from, int64_t index, BlockRow& row) {
  row.d[static_cast<size_t>(index)] = load<uint16_t>(from);
  row.dmin[static_cast<size_t>(index)] = load<uint16_t>(from + 2);
  take_k_scales(from + 4, row.scales.data() + index * 8, row.minima.data() + index * 8);
  const bool five = format == BlockFormat::kQ5K;
  const std::byte* high = from + 16;
  const std::byte* low = five ? high + 32 : high;
  uint8_t* values = row.values.data() + index * 256;
  for (int64_t run = 0; run < 8; ++run) {
    for (int64_t i = 0; i < 32; ++i) {
      int value = byte_at(low, run / 2 * 32 + i) >> (run % 2 * 4) & 15;
      if (five) value |= (byte_at(high, i) >> run & 1) << 4;
      values[run * 32 + i] = static_cast<uint8_t>(value);
    }
  }
}

// Q6_K: 128 bytes of low nibbles, 64 of high pairs, 16 signed scales, d.
void take_q6_k(const std::byte* from, int64_t index, BlockRow& row) {
  row.d[static_cast<size_t>(index)] = load<uint16_t>(from + 208);
  std::memcpy(row.scales.data() + index * 16, from + 192, 16);
  uint8_t* values = row.values.data() + index * 256;
  for (int64_t half = 0; half < 2; ++half) {
    for (int64_t i = 0; i < 128; ++i) {
      const int low = byte_at(from, half * 64 + i % 64) >> (i / 64 * 4) & 15;
      const int high = byte_at(from + 128, half * 32 + i % 32) >> (i / 32 * 2) & 3;
      values[half * 128 + i] = static_cast<uint8_t>(low | high << 4);
    }
  }
}

// Two bits each: 32 bytes hold four groups of 32.
void take_pairs(const std::byte* packed, uint8_t* values) {
  for (int64_t i = 0; i < 256; ++i) {
    values[i] = byte_at(packed, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
  }
}

// Q2_K: 16 bytes of scales and minima, 64 of pairs, d, dmin.
void take_q2_k(const std::byte* from, int64_t index, BlockRow& row) {
  row.d[static_cast<size_t>(index)] = load<uint16_t>(from + 80);
  row.dmin[static_cast<size_t>(index)] = load<uint16_t>(from + 82);
  for (int64_t i = 0; i < 16; ++i) {
    row.scales[static_cast<size_t>(index * 16 + i)] = byte_at(from, i) & 15;
    row.minima[static_cast<size_t>(index * 16 + i)] = byte_at(from, i) >> 4;
  }
  take_pairs(from + 16, row.values.data() + index * 256);
}

// Q3_K: 32 bytes of third bits, 64 of pairs, 12 of scales of 6 bits less 32, d.
void take_q3_k(const std::byte* from, int64_t index, BlockRow& row) {
  row.d[static_cast<size_t>(index)] = load<uint16_t>(from + 108);
  const std::byte* scales = from + 96;
  for (int64_t i = 0; i < 16; ++i) {
    const int low = byte_at(scales, i % 8) >> (i / 8 * 4) & 15;
    const int high = byte_at(scales, 8 + i % 4) >> (i / 4 * 2) & 3;
    row.scales[static_cast<size_t>(index * 16 + i)] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  uint8_t* values = row.values.data() + index * 256;
  take_pairs(from + 32, values);
  for (int64_t i = 0; i < 256; ++i) {
    values[i] |= static_cast<uint8_t>((byte_at(from, i % 32) >> (i / 32) & 1) << 2);
  }
}

// IQ4_XS: d, 16 bits of high scale pairs, 4 bytes of low scale nibbles, 128 of nibbles.
void take_iq4_xs(const std::byte* from, int64_t index, BlockRow& row) {
  row.d[static_cast<size_t>(index)] = load<uint16_t>(from);
  const auto high_scales = load<uint16_t>(from + 2);
  for (int64_t run = 0; run < 8; ++run) {
    const int low = byte_at(from + 4, run / 2) >> (run % 2 * 4) & 15;
    const int high = high_scales >> (2 * run) & 3;
    row.scales[static_cast<size_t>(index * 8 + run)] = static_cast<uint8_t>((low | high << 4) - 32);
    take_nibbles(from + 8 + run * 16, row.values.data() + index * 256 + run * 32);
  }
}

void take_block_of_256(BlockFormat format, const std::byte* from, int64_t index, BlockRow& row) {
  switch (format) {
    case BlockFormat::kQ6K:
      return take_q6_k(from, index, row);
    case BlockFormat::kQ2K:
      return take_q2_k(from, index, row);
    case BlockFormat::kQ3K:
      return take_q3_k(from, index, row);
    case BlockFormat::kIq4Xs:
      return take_iq4_xs(from, index, row);
    default:
      return take_k_block(format, from, index, row);
  }
}

// ---- The layout of the kernels ----

uint32_t four(const uint8_t* values) {
  uint32_t bits;
  std::memcpy(&bits, values, sizeof bits);
  return bits;
}
void put_four(uint32_t bits, std::byte* to) { std::memcpy(to, &bits, sizeof bits); }

// The `width` bits from `first` on of each byte of each vector, side by side in its byte.
uint32_t bits_of(const uint32_t* v, int64_t count, int64_t first, int64_t width) {
  const uint32_t mask = ((1u << width) - 1) * 0x01010101u;
  uint32_t out = 0;
  for (int64_t k = 0; k < count; ++k) out |= (v[k] >> first & mask) << (width * k);
  return out;
}

// 32 values of an output; panel: its offset in the first vector.
void place_values(int64_t bits, const uint8_t* values, std::byte* panel) {
  uint32_t v[8];
  for (int64_t k = 0; k < 8; ++k) v[k] = four(values + 4 * k);
  if (bits == 8) {
    for (int64_t k = 0; k < 8; ++k) put_four(v[k], panel + k * kVectorBytes);
    return;
  }
  if (bits < 4) {
    for (int64_t half = 0; half < 2; ++half) {
      put_four(bits_of(v + 4 * half, 4, 0, 2), panel + half * kVectorBytes);
    }
    if (bits == 3) put_four(bits_of(v, 8, 2, 1), panel + 2 * kVectorBytes);
    return;
  }
  for (int64_t j = 0; j < 4; ++j) {
    put_four((v[2 * j] & 0x0f0f0f0fu) | (v[2 * j + 1] & 0x0f0f0f0fu) << 4,
             panel + j * kVectorBytes);
  }
  std::byte* high = panel + 4 * kVectorBytes;
  if (bits == 5) {
    put_four(bits_of(v, 8, 4, 1), high);
  } else if (bits == 6) {
    for (int64_t half = 0; half < 2; ++half) {
      put_four(bits_of(v + 4 * half, 4, 4, 2), high + half * kVectorBytes);
    }
  }
}

void widen_values(int64_t bits, const std::byte* panel, uint8_t* values) {
  for (int64_t i = 0; i < kBlockInputs; ++i) {
    const int64_t k = i / 4, byte = i % 4;
    if (bits == 8) {
      values[i] = byte_at(panel, k * kVectorBytes + byte);
      continue;
    }
    if (bits < 4) {
      int value = byte_at(panel, k / 4 * kVectorBytes + byte) >> (k % 4 * 2) & 3;
      if (bits == 3) value |= (byte_at(panel, 2 * kVectorBytes + byte) >> k & 1) << 2;
      values[i] = static_cast<uint8_t>(value);
      continue;
    }
    int value = byte_at(panel, k / 2 * kVectorBytes + byte) >> (k % 2 * 4) & 15;
    const std::byte* high = panel + 4 * kVectorBytes;
    if (bits == 5) value |= (byte_at(high, byte) >> k & 1) << 4;
    if (bits == 6) value |= (byte_at(high, k / 4 * kVectorBytes + byte) >> (k % 4 * 2) & 3) << 4;
    values[i] = static_cast<uint8_t>(value);
  }
}

// Where an output's scale and values begin in a block of a unit.
std::byte* values_at(const BlockLayout& layout, std::byte* block, int64_t output) {
  const int64_t panel_bytes = (layout.block_bytes - layout.scale_bytes) / 2;
  return block + layout.scale_bytes + output / kPanelOutputs * panel_bytes +
         output % kPanelOutputs * 4;
}

float half_at(const std::byte* from) { return to_float(load<Float16>(from)); }

// What a block has of an output besides d and dmin; to: at the first group's scale.
void place_scales(const BlockLayout& layout, const BlockRow& row, int64_t block, std::byte* to) {
  const int64_t groups = kBlockInputs / layout.group;
  for (int64_t i = 0; i < groups; ++i) {
    const auto group = static_cast<size_t>(block * groups + i);
    to[i * kUnit] = std::byte{row.scales[group]};
    if (layout.scales == BlockScales::kNibbles) {
      to[i * kUnit] |= std::byte{row.minima[group]} << 4;
    } else if (layout.minima) {
      to[(groups + i) * kUnit] = std::byte{row.minima[group]};
    }
  }
}

struct Scale {
  float scale, minimum;
};

// Of group `group` of a block; from: at the output's first scale; first_level: d and dmin.
Scale scale_of(const BlockLayout& layout, const std::byte* from, int64_t group, Scale first_level) {
  const auto [d, dmin] = first_level;
  const uint8_t byte = byte_at(from, group * kUnit);
  switch (layout.scales) {
    case BlockScales::kHalf:
      break;
    case BlockScales::kExponent:
      return {std::ldexp(1.0f, byte - 128), 0};
    case BlockScales::kUnsigned:
      return {d * static_cast<float>(byte), dmin * static_cast<float>(byte_at(from, kUnit))};
    case BlockScales::kSigned:
      return {d * static_cast<float>(static_cast<int8_t>(byte)), 0};
    case BlockScales::kNibbles:
      return {d * static_cast<float>(byte & 15), dmin * static_cast<float>(byte >> 4)};
  }
  return first_level;
}

}  // namespace

int64_t padded_inputs(BlockFormat format, int64_t in_features) {
  const int64_t chunk = layout_of(format).chunk;
  return (in_features + chunk - 1) / chunk * chunk;
}

void clear_row(BlockFormat format, int64_t in_features, BlockRow& row) {
  const BlockLayout& layout = layout_of(format);
  row.padded = padded_inputs(format, in_features);
  const auto chunks = static_cast<size_t>(row.padded / layout.chunk);
  const auto groups = static_cast<size_t>(row.padded / layout.group);
  row.values.assign(static_cast<size_t>(row.padded), static_cast<uint8_t>(layout.zero));
  row.d.assign(chunks, 0);
  row.dmin.assign(chunks, 0);
  row.scales.assign(groups, 0);
  row.minima.assign(groups, 0);
}

void take_apart(BlockFormat format, const std::byte* blocks, int64_t in_features, BlockRow& row) {
  const BlockFormatInfo& info = block_format_info(format);
  ESP_CHECK(in_features % info.elements == 0, "{} inputs in blocks of {}", in_features,
            info.elements);
  clear_row(format, in_features, row);
  for (int64_t block = 0; block < in_features / info.elements; ++block, blocks += info.bytes) {
    if (info.elements == 32) {
      take_block(format, blocks, block, row);
    } else {
      take_block_of_256(format, blocks, block, row);
    }
  }
}

void place_row(BlockFormat format, const BlockRow& row, int64_t output, std::byte* unit) {
  const BlockLayout& layout = layout_of(format);
  std::byte* to = unit;
  for (int64_t block = 0; block < row.padded / kBlockInputs; ++block, to += layout.block_bytes) {
    const auto chunk = static_cast<size_t>(block * kBlockInputs / layout.chunk);
    const bool halves = layout.scales == BlockScales::kHalf;
    if (halves || (layout.header_bytes > 0 && block * kBlockInputs % layout.chunk == 0)) {
      std::memcpy(to + 2 * output, &row.d[chunk], 2);
      if (layout.minima) std::memcpy(to + 2 * (kUnit + output), &row.dmin[chunk], 2);
      to += layout.header_bytes;
    }
    if (!halves) place_scales(layout, row, block, to + output);
    place_values(layout.bits, row.values.data() + block * kBlockInputs,
                 values_at(layout, to, output));
  }
}

void widen_row(BlockFormat format, const std::byte* unit, int64_t output, int64_t in_features,
               float* out) {
  const BlockLayout& layout = layout_of(format);
  const std::byte* from = unit;
  float d = 0, dmin = 0;
  uint8_t values[kBlockInputs];
  for (int64_t in = 0; in < in_features; in += kBlockInputs, from += layout.block_bytes) {
    const bool halves = layout.scales == BlockScales::kHalf;
    if (halves || (layout.header_bytes > 0 && in % layout.chunk == 0)) {
      d = half_at(from + 2 * output);
      if (layout.minima) dmin = half_at(from + 2 * (kUnit + output));
      from += layout.header_bytes;
    }
    widen_values(layout.bits, values_at(layout, const_cast<std::byte*>(from), output), values);
    const int64_t count = std::min(kBlockInputs, in_features - in);
    for (int64_t i = 0; i < count; ++i) {
      const Scale scale = scale_of(layout, from + output, i / layout.group, {d, dmin});
      const int64_t value =
          layout.codebook < 0 ? values[i] : kCodebooks[layout.codebook][values[i]];
      const float scaled = scale.scale * static_cast<float>(value - layout.zero);
      out[in + i] = !layout.minima ? scaled : scaled - scale.minimum;
    }
  }
}

}  // namespace espalier::kernels
