// The formats of quantised weights in which blocks share scales, as GGUF files store them. Source
// of the layouts: ggml's ggml-common.h; checkpoint/block_types.cc defines their values. Pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace espalier {

// The formats that kernels multiply by without widening them first.
enum class BlockFormat : uint8_t {
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4K,
  kQ5K,
  kQ6K,
  kQ2K,
  kQ3K,
  kIq4Nl,
  kIq4Xs,
  kMxfp4,
};

struct BlockFormatInfo {
  BlockFormat format;
  std::string_view name;  // as GGUF files call it
  int64_t elements;       // of a block, neighbours in a row
  size_t bytes;           // of a block, which starts at any address
};

inline constexpr BlockFormatInfo kBlockFormats[] = {
    {BlockFormat::kQ8_0, "Q8_0", 32, 34},    {BlockFormat::kQ4_0, "Q4_0", 32, 18},
    {BlockFormat::kQ4_1, "Q4_1", 32, 20},    {BlockFormat::kQ5_0, "Q5_0", 32, 22},
    {BlockFormat::kQ5_1, "Q5_1", 32, 24},    {BlockFormat::kQ4K, "Q4_K", 256, 144},
    {BlockFormat::kQ5K, "Q5_K", 256, 176},   {BlockFormat::kQ6K, "Q6_K", 256, 210},
    {BlockFormat::kQ2K, "Q2_K", 256, 84},    {BlockFormat::kQ3K, "Q3_K", 256, 110},
    {BlockFormat::kIq4Nl, "IQ4_NL", 32, 18}, {BlockFormat::kIq4Xs, "IQ4_XS", 256, 136},
    {BlockFormat::kMxfp4, "MXFP4", 32, 17},
};
inline constexpr int kNumBlockFormats = 13;

constexpr const BlockFormatInfo& block_format_info(BlockFormat format) {
  return kBlockFormats[static_cast<size_t>(format)];
}

// Returns nothing for any other type.
constexpr std::optional<BlockFormat> parse_block_format(std::string_view name) {
  for (const BlockFormatInfo& info : kBlockFormats) {
    if (info.name == name) return info.format;
  }
  return std::nullopt;
}

}  // namespace espalier
