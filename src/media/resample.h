// Samples at another rate: a low-pass filter (a sinc under a Kaiser window) whose coefficients are
// tabulated for each phase that an output sample has between input samples. What lies below nine
// tenths of the lower rate's half keeps its level to a thousandth; what lies above 1.1 times that
// half is damped by 80 dB at least.
//
// Pure and thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace espalier {

// round(n * to_rate / from_rate) samples. Beyond both ends there is silence. Allocates the result
// and at most 50 MB for the table. REQUIRES: rates from 1,000 to 192,000 Hz.
std::vector<float> resample(std::span<const float> samples, int32_t from_rate, int32_t to_rate);

}  // namespace espalier
