#include "media/resize_passes.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace espalier {
namespace {

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

uint8_t rounded(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

void plain_rows(const uint8_t* from, int64_t from_bytes, int32_t num_rows,
                const ResizeFilter& filter, int32_t width, uint8_t* to) {
  for (int32_t row = 0; row < num_rows; ++row, from += from_bytes) {
    for (int32_t x = 0; x < width; ++x, to += 3) {
      const uint8_t* pixel = from + int64_t{3} * filter.firsts[static_cast<size_t>(x)];
      int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (const int32_t weight : filter.weights_of(x)) {
        red += pixel[0] * weight;
        green += pixel[1] * weight;
        blue += pixel[2] * weight;
        pixel += 3;
      }
      to[0] = rounded(red), to[1] = rounded(green), to[2] = rounded(blue);
    }
  }
}

// Bytes [begin, end) of the row. Blocks keep their sums in the first-level cache.
void plain_part(const uint8_t* from, int64_t row_bytes, std::span<const int32_t> weights,
                int64_t begin, int64_t end, uint8_t* to) {
  constexpr int64_t kBlock = 256;
  std::array<int32_t, kBlock> sums;
  for (; begin < end; begin += kBlock) {
    const int64_t count = std::min(kBlock, end - begin);
    sums.fill(kHalf);
    const uint8_t* row = from + begin;
    for (const int32_t weight : weights) {
      for (int64_t i = 0; i < count; ++i) sums[static_cast<size_t>(i)] += row[i] * weight;
      row += row_bytes;
    }
    for (int64_t i = 0; i < count; ++i) to[begin + i] = rounded(sums[static_cast<size_t>(i)]);
  }
}

void plain_column(const uint8_t* from, int64_t row_bytes, const ResizeFilter& filter, int32_t y,
                  uint8_t* to) {
  plain_part(from + filter.firsts[static_cast<size_t>(y)] * row_bytes, row_bytes,
             filter.weights_of(y), 0, row_bytes, to);
}

constexpr ResizePasses kPlain{"plain", plain_rows, plain_column};

#if defined(__x86_64__)

#define ESP_AVX2 __attribute__((target("avx2")))

// Both halves' sums, shifted together: wrapped around where their sum does not.
ESP_AVX2 inline __m256i joined(__m256i high, __m256i low) {
  return _mm256_add_epi32(_mm256_slli_epi32(high, ResizeFilter::kLowBits), low);
}

// N rows at once share the weights. Of four pixels (12 bytes) the lower lane takes two and the
// upper lane the others, each channel's bytes side by side, so that one instruction multiplies two
// pixels' bytes and adds them: [r0 r1 g0 g1 b0 b1 - -], [r2 r3 g2 g3 b2 b3 - -].
template <int N>
ESP_AVX2 void avx2_some_rows(const uint8_t* from, int64_t from_bytes, const ResizeFilter& filter,
                             int32_t width, uint8_t* to) {
  const __m256i pairs =
      _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                       -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const __m256i high_pairs = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  const __m256i low_pairs = _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3);
  const __m128i half = _mm_set1_epi32(kHalf);
  for (int32_t x = 0; x < width; ++x) {
    const auto at = static_cast<size_t>(x);
    const uint8_t* pixels = from + int64_t{3} * filter.firsts[at];
    const int16_t* halves = filter.halves_of(x);
    __m256i high[N], low[N];
    for (int row = 0; row < N; ++row) high[row] = low[row] = _mm256_setzero_si256();
    for (int32_t k = 0; k < filter.counts[at]; k += 4, pixels += 12, halves += 8) {
      const __m256i group =
          _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
      const __m256i of_high = _mm256_permutevar8x32_epi32(group, high_pairs);
      const __m256i of_low = _mm256_permutevar8x32_epi32(group, low_pairs);
      for (int row = 0; row < N; ++row) {
        const __m128i four =
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixels + row * from_bytes));
        const __m256i bytes = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(four), pairs);
        high[row] = _mm256_add_epi32(high[row], _mm256_madd_epi16(bytes, of_high));
        low[row] = _mm256_add_epi32(low[row], _mm256_madd_epi16(bytes, of_low));
      }
    }
    for (int row = 0; row < N; ++row) {
      const __m256i sums = joined(high[row], low[row]);
      const __m128i both =
          _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
      const __m128i values = _mm_srai_epi32(_mm_add_epi32(both, half), kWeightBits);
      const __m128i words = _mm_packs_epi32(values, values);
      const int32_t pixel = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
      std::memcpy(to + (int64_t{row} * width + x) * 3, &pixel, 3);
    }
  }
}

ESP_AVX2 void avx2_rows(const uint8_t* from, int64_t from_bytes, int32_t num_rows,
                        const ResizeFilter& filter, int32_t width, uint8_t* to) {
  int32_t row = 0;
  for (; row + 4 <= num_rows; row += 4)
    avx2_some_rows<4>(from + row * from_bytes, from_bytes, filter, width,
                      to + int64_t{3} * width * row);
  for (; row < num_rows; ++row)
    avx2_some_rows<1>(from + row * from_bytes, from_bytes, filter, width,
                      to + int64_t{3} * width * row);
}

constexpr int64_t kColumns = 32;

// kColumns bytes of the row. Bytes of two rows stand side by side, for one instruction to multiply
// and add both.
ESP_AVX2 void avx2_columns(const uint8_t* from, int64_t row_bytes, const int16_t* halves,
                           int32_t count, uint8_t* to) {
  const __m256i zero = _mm256_setzero_si256();
  __m256i high[4] = {zero, zero, zero, zero}, low[4] = {zero, zero, zero, zero};
  for (int32_t k = 0; k < count; k += 2) {
    const uint8_t* const row = from + k * row_bytes;
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
    // Of an odd number the last row stands for the one that lacks, whose weight is 0.
    const __m256i b =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(k + 1 < count ? row + row_bytes : row));
    int32_t high_pair = 0, low_pair = 0;
    const int16_t* const group = halves + int64_t{2} * (k / 4 * 4) + k % 4;
    std::memcpy(&high_pair, group, sizeof high_pair);
    std::memcpy(&low_pair, group + 4, sizeof low_pair);
    const __m256i of_high = _mm256_set1_epi32(high_pair), of_low = _mm256_set1_epi32(low_pair);
    const __m256i front = _mm256_unpacklo_epi8(a, b), back = _mm256_unpackhi_epi8(a, b);
    const __m256i pairs[4] = {_mm256_unpacklo_epi8(front, zero), _mm256_unpackhi_epi8(front, zero),
                              _mm256_unpacklo_epi8(back, zero), _mm256_unpackhi_epi8(back, zero)};
    for (int i = 0; i < 4; ++i) {
      high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(pairs[i], of_high));
      low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(pairs[i], of_low));
    }
  }
  const __m256i half = _mm256_set1_epi32(kHalf);
  __m256i values[4];
  for (int i = 0; i < 4; ++i) {
    values[i] = _mm256_srai_epi32(_mm256_add_epi32(joined(high[i], low[i]), half), kWeightBits);
  }
  const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(values[0], values[1]),
                                            _mm256_packs_epi32(values[2], values[3]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}

ESP_AVX2 void avx2_column(const uint8_t* from, int64_t row_bytes, const ResizeFilter& filter,
                          int32_t y, uint8_t* to) {
  const auto at = static_cast<size_t>(y);
  from += filter.firsts[at] * row_bytes;
  if (row_bytes < kColumns) {
    plain_part(from, row_bytes, filter.weights_of(y), 0, row_bytes, to);
    return;
  }
  // The last block begins where it ends with the row.
  for (int64_t done = 0; done < row_bytes; done += kColumns) {
    const int64_t begin = std::min(done, row_bytes - kColumns);
    avx2_columns(from + begin, row_bytes, filter.halves_of(y), filter.counts[at], to + begin);
  }
}

constexpr std::array<ResizePasses, 2> kPasses = {ResizePasses{"avx2", avx2_rows, avx2_column},
                                                 kPlain};

#endif

}  // namespace

std::span<const ResizePasses> usable_resize_passes() {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  return std::span(kPasses).subspan(avx2 ? 0 : 1);
#else
  return {&kPlain, 1};
#endif
}

}  // namespace espalier
