// The discrete Fourier transform of lengths whose factors are 2, 3, 4 and 5, in double: Cooley and
// Tukey's recursion with tabulated roots of unity. Internal to the room.
#pragma once

#include <complex>
#include <cstdint>
#include <span>
#include <vector>

namespace espalier::media {

// Immutable after it is made, so any thread may call transform().
class FourierTransform {
 public:
  // REQUIRES: length above 0, without other factors.
  explicit FourierTransform(int32_t length);

  int32_t length() const { return length_; }
  // out[k] = sum over n of in[n] * exp(-2 pi i k n / length). in and out: [length], apart.
  void transform(std::span<const std::complex<double>> in,
                 std::span<std::complex<double>> out) const;

 private:
  void step(const std::complex<double>* in, int32_t stride, int32_t length, size_t factor,
            std::complex<double>* out) const;

  int32_t length_;
  std::vector<int32_t> factors_;             // whose product is the length
  std::vector<std::complex<double>> roots_;  // exp(-2 pi i k / length)
};

}  // namespace espalier::media
