#include "media/fourier.h"

#include <cmath>
#include <numbers>

#include "base/check.h"

namespace espalier::media {

using Complex = std::complex<double>;

FourierTransform::FourierTransform(int32_t length) : length_(length) {
  ESP_CHECK(length > 0);
  int32_t rest = length;
  for (const int32_t factor : {4, 2, 3, 5}) {
    for (; rest % factor == 0; rest /= factor) factors_.push_back(factor);
  }
  ESP_CHECK(rest == 1, "a length of {} has other factors than 2, 3 and 5", length);
  roots_.reserve(static_cast<size_t>(length));
  for (int32_t k = 0; k < length; ++k) {
    roots_.push_back(std::polar(1.0, -2 * std::numbers::pi * k / length));
  }
}

void FourierTransform::transform(std::span<const Complex> in, std::span<Complex> out) const {
  ESP_CHECK(std::ssize(in) == length_ && std::ssize(out) == length_);
  step(in.data(), 1, length_, 0, out.data());
}

// The transform of in[0], in[stride], ..., `length` of them: of each residue by itself, then
// combined.
void FourierTransform::step(const Complex* in, int32_t stride, int32_t length, size_t factor,
                            Complex* out) const {
  if (length == 1) {
    out[0] = in[0];
    return;
  }
  const int32_t parts = factors_[factor], size = length / parts;
  for (int32_t part = 0; part < parts; ++part) {
    step(in + int64_t{part} * stride, stride * parts, size, factor + 1, out + int64_t{part} * size);
  }
  for (int32_t k = 0; k < size; ++k) {
    Complex terms[5], sums[5];
    for (int32_t part = 0; part < parts; ++part) {
      const Complex term = out[part * size + k];
      const Complex root = roots_[static_cast<size_t>(int64_t{part} * k * stride)];
      terms[part] = {term.real() * root.real() - term.imag() * root.imag(),
                     term.real() * root.imag() + term.imag() * root.real()};
    }
    for (int32_t j = 0; j < parts; ++j) {
      double real = terms[0].real(), imaginary = terms[0].imag();
      for (int32_t part = 1; part < parts; ++part) {
        const Complex root = roots_[static_cast<size_t>(length_ / parts * ((j * part) % parts))];
        real += terms[part].real() * root.real() - terms[part].imag() * root.imag();
        imaginary += terms[part].real() * root.imag() + terms[part].imag() * root.real();
      }
      sums[j] = {real, imaginary};
    }
    for (int32_t j = 0; j < parts; ++j) out[j * size + k] = sums[j];
  }
}

}  // namespace espalier::media
