// Numbers as blocks of the element types that GGUF files hold: the way back of block_types.h. Each
// block is made from its own elements alone, by the rule of ggml's reference (quantize_row_*_ref):
// the scale comes from the largest element, and codes are the nearest.
// Thread-safe: the table is constant and lives as long as the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "checkpoint/block_types.h"

namespace espalier {

struct BlockEncoder {
  std::string_view name;  // of the BlockType
  // Writes one block, which starts at any address, from its type's number of elements. Elements
  // that are not finite, or beyond the type's range, give no useful block and no error.
  void (*encode)(const float* elements, std::byte* block);
  uint32_t file_type;  // general.file_type of a file whose matrices are of this type
};

// F32, F16, BF16, Q8_0, Q5_1, Q5_0, Q4_1, Q4_0, in this order.
std::span<const BlockEncoder> block_encoders();
const BlockEncoder* find_block_encoder(std::string_view name);  // null: not one of these
const BlockType& block_type_of(const BlockEncoder& encoder);

// Whole blocks. REQUIRES: elements fill them, and `out` holds them.
void encode_blocks(const BlockEncoder& encoder, std::span<const float> elements,
                   std::span<std::byte> out);

}  // namespace espalier
