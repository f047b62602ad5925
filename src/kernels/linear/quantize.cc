// Rounding rows of weights to quantised formats at load. The formats are GGUF's; how scales are
// chosen is not part of them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/linear/block_rows.h"
#include "tensor/dtype.h"

namespace espalier::kernels {
namespace {

// The nearest float16, ties to even; the largest finite one beyond it.
uint16_t half_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float size = std::min(std::abs(value), 65504.0f);
  if (size < 0x1p-14f) {  // subnormal: whole multiples of 2^-24
    return sign | static_cast<uint16_t>(std::nearbyint(size * 0x1p24f));
  }
  const uint32_t magnitude = std::bit_cast<uint32_t>(size) - (112u << 23);
  return sign | static_cast<uint16_t>((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13);
}
float rounded_to_half(float value) { return to_float(Float16{half_bits(value)}); }

uint8_t whole_between(float value, float low, float high) {
  return static_cast<uint8_t>(static_cast<int>(std::nearbyint(std::clamp(value, low, high))));
}

float inverse_of(float value) { return value == 0 ? 0 : 1 / value; }

void quantize_q8_0(const float* x, int64_t block, BlockRow& row) {
  float most = 0;
  for (int64_t i = 0; i < 32; ++i) most = std::max(most, std::abs(x[i]));
  const float d = rounded_to_half(most / 127), inverse = inverse_of(d);
  row.d[static_cast<size_t>(block)] = half_bits(d);
  for (int64_t i = 0; i < 32; ++i) {
    row.values[static_cast<size_t>(block * 32 + i)] = whole_between(x[i] * inverse + 128, 1, 255);
  }
}

// x is close to scale * q - minimum with q in 0 to 15, scale and minimum not negative.
struct Line {
  float scale = 0, minimum = 0;
};

double squared_error(const float* x, const Line& line) {
  const float inverse = inverse_of(line.scale);
  double error = 0;
  for (int64_t i = 0; i < 32; ++i) {
    const float q = std::nearbyint(std::clamp((x[i] + line.minimum) * inverse, 0.0f, 15.0f));
    const float off = line.scale * q - line.minimum - x[i];
    error += static_cast<double>(off) * off;
  }
  return error;
}

// The best line for the values that `start` rounds to: least squares.
Line refit(const float* x, const Line& start) {
  const float inverse = inverse_of(start.scale);
  double sum_q = 0, sum_qq = 0, sum_x = 0, sum_qx = 0;
  for (int64_t i = 0; i < 32; ++i) {
    const double q = std::nearbyint(std::clamp((x[i] + start.minimum) * inverse, 0.0f, 15.0f));
    sum_q += q;
    sum_qq += q * q;
    sum_x += x[i];
    sum_qx += q * x[i];
  }
  const double determinant = 32 * sum_qq - sum_q * sum_q;
  if (determinant <= 0) return start;
  const double scale = (32 * sum_qx - sum_q * sum_x) / determinant;
  const double minimum = (sum_q * sum_qx - sum_qq * sum_x) / determinant;
  if (scale <= 0) return start;
  if (minimum < 0) return {static_cast<float>(sum_qx / std::max(sum_qq, 1.0)), 0};
  return {static_cast<float>(scale), static_cast<float>(minimum)};
}

// From lowest to highest in 15 steps, or in a few more or fewer, each refitted once.
Line fit(const float* x) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const float minimum = std::max(0.0f, -*low);
  const float width = *high + minimum;
  Line best;
  if (width <= 0) return {0, minimum};
  double least = -1;
  for (const float steps : {13.5f, 14.25f, 15.0f, 15.75f}) {
    const Line line = refit(x, {width / steps, minimum});
    const double error = squared_error(x, line);
    if (least >= 0 && error >= least) continue;
    least = error;
    best = line;
  }
  return best;
}

void quantize_q4_k(const float* x, int64_t block, BlockRow& row) {
  Line lines[8];
  float largest_scale = 0, largest_minimum = 0;
  for (int64_t run = 0; run < 8; ++run) {
    lines[run] = fit(x + run * 32);
    largest_scale = std::max(largest_scale, lines[run].scale);
    largest_minimum = std::max(largest_minimum, lines[run].minimum);
  }
  const float d = rounded_to_half(largest_scale / 63), dmin = rounded_to_half(largest_minimum / 63);
  row.d[static_cast<size_t>(block)] = half_bits(d);
  row.dmin[static_cast<size_t>(block)] = half_bits(dmin);
  for (int64_t run = 0; run < 8; ++run) {
    const auto index = static_cast<size_t>(block * 8 + run);
    row.scales[index] = whole_between(lines[run].scale * inverse_of(d), 0, 63);
    row.minima[index] = whole_between(lines[run].minimum * inverse_of(dmin), 0, 63);
    const float inverse = inverse_of(d * row.scales[index]);
    const float minimum = dmin * row.minima[index];
    for (int64_t i = run * 32; i < run * 32 + 32; ++i) {
      row.values[static_cast<size_t>(block * 256 + i)] =
          whole_between((x[i] + minimum) * inverse, 0, 15);
    }
  }
}

// Each 16 by their largest: d is the scale of 127.
void quantize_q6_k(const float* x, int64_t block, BlockRow& row) {
  float scales[16];
  float largest = 0;
  for (int64_t group = 0; group < 16; ++group) {
    float most = 0;  // of the larger side, which reaches -32, as the other does 31
    for (int64_t i = group * 16; i < group * 16 + 16; ++i) {
      if (std::abs(x[i]) > std::abs(most)) most = x[i];
    }
    scales[group] = most / -32;
    largest = std::max(largest, std::abs(scales[group]));
  }
  const float d = rounded_to_half(largest / 127), inverse_d = inverse_of(d);
  row.d[static_cast<size_t>(block)] = half_bits(d);
  for (int64_t group = 0; group < 16; ++group) {
    const auto scale =
        static_cast<int8_t>(std::nearbyint(std::clamp(scales[group] * inverse_d, -127.0f, 127.0f)));
    row.scales[static_cast<size_t>(block * 16 + group)] = static_cast<uint8_t>(scale);
    const float inverse = inverse_of(d * scale);
    for (int64_t i = group * 16; i < group * 16 + 16; ++i) {
      row.values[static_cast<size_t>(block * 256 + i)] = whole_between(x[i] * inverse + 32, 0, 63);
    }
  }
}

}  // namespace

void quantize_row(BlockFormat format, const float* numbers, int64_t in_features, BlockRow& row) {
  clear_row(format, in_features, row);
  const int64_t elements = block_format_info(format).elements;
  float padded[256];
  for (int64_t block = 0; block < row.padded / elements; ++block) {
    const float* x = numbers + block * elements;
    if (const int64_t left = in_features - block * elements; left < elements) {
      std::fill(std::copy_n(x, left, padded), padded + elements, 0.0f);
      x = padded;
    }
    switch (format) {
      case BlockFormat::kQ8_0:
        quantize_q8_0(x, block, row);
        break;
      case BlockFormat::kQ4K:
        quantize_q4_k(x, block, row);
        break;
      case BlockFormat::kQ6K:
        quantize_q6_k(x, block, row);
        break;
      default:
        ESP_CHECK(false, "weights are not rounded to {}", block_format_info(format).name);
    }
  }
}

}  // namespace espalier::kernels
