// The types of elements that a GGUF file holds, and what their blocks stand for.
// Source of the layouts: ggml's ggml-common.h; values are equal to the bit to those of the `gguf`
// package's quants.py.
// Thread-safe: the table is constant and lives as long as the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace espalier {

struct BlockType {
  uint32_t id;  // in the file
  std::string_view name;
  uint32_t elements;  // of a block
  uint32_t bytes;     // of a block, which starts at any address
  // Null for types that are known and not read.
  void (*dequantize)(const std::byte* block, float* out);
};

// Null for an id that is not known.
const BlockType* find_block_type(uint32_t id);
std::span<const BlockType> block_types();

}  // namespace espalier
