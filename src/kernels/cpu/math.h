// Elementary functions on simd::F, one generic source for every instruction set. Included after one
// of the simd headers, by that file alone.
#pragma once

#include <cstdint>

namespace espalier::kernels {
namespace {

// exp(x), relative error under 2 units in the last place; 0 below the smallest normal result,
// infinity above the largest, NaN of NaN; exactly 1 at 0.
// x = n ln 2 + r with |r| <= ln(2) / 2; ln 2 in two parts so that n times the first is exact. The
// polynomial is the one of Cephes' expf (Moshier), minimax for (exp(r) - 1 - r) / r^2.
inline simd::F exp(simd::F x) {
  using namespace simd;
  const F lowest = set1(-87.33654f), highest = set1(88.72284f);
  const F clamped = min(highest, max(lowest, x));  // NaN passes: it is the second operand
  // At the upper end n would be 128, out of scale_by_power's range.
  const F n = min(set1(127.0f), round(mul(clamped, set1(1.44269504f))));
  F r = fnma(n, set1(0.693359375f), clamped);
  r = fnma(n, set1(-2.12194440e-4f), r);
  F p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, mul(r, r), add(r, set1(1.0f)));
  const F result = scale_by_power(p, n);
  const F bounded = where_less(highest, x, set1(__builtin_inff()), result);
  return where_less(x, lowest, zero(), bounded);
}

// v / (1 + exp(-v)).
inline simd::F silu(simd::F v) {
  using namespace simd;
  return div(v, add(set1(1.0f), exp(sub(zero(), v))));
}

// v / 2 (1 + tanh(w)) = v / (1 + exp(-2 w)), w = sqrt(2 / pi) (v + 0.044715 v^3).
inline simd::F gelu_tanh(simd::F v) {
  using namespace simd;
  const F w =
      mul(v, fma(mul(v, v), set1(-2 * 0.7978845608f * 0.044715f), set1(-2 * 0.7978845608f)));
  return div(v, add(set1(1.0f), exp(w)));
}

// 1 - 2 / (1 + exp(2 v)): absolute error of a few 2^-24.
inline simd::F tanh(simd::F v) {
  using namespace simd;
  return sub(set1(1.0f), div(set1(2.0f), add(set1(1.0f), exp(add(v, v)))));
}

}  // namespace
}  // namespace espalier::kernels
