// Random numbers. Rng is a small sequential generator for tests and dummy weights; hash_uniform is
// counter-based: the same (seed, counter) gives the same draw wherever and whenever it is asked for,
// which is how a request's samples do not depend on its batch.
#pragma once

#include <cmath>
#include <cstdint>

namespace espalier {

// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection that mixes all 64 bits.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Uniform in the open interval (0, 1), from 53 bits of mix(seed, counter).
constexpr double hash_uniform(uint64_t seed, uint64_t counter) {
  const uint64_t bits = mix64(mix64(seed) ^ (counter * 0xd1342543de82ef95ull)) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

// Satisfies UniformRandomBitGenerator. Not thread-safe; cheap to copy and to seed.
class Rng {
 public:
  using result_type = uint64_t;
  explicit constexpr Rng(uint64_t seed) : state_(mix64(seed)) {}

  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~0ull; }
  constexpr uint64_t operator()() { return mix64(state_++); }

  // Uniform in [0, bound); bound > 0. The bias of the multiply method is under 2^-32 for the bounds
  // used here.
  constexpr uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<uint128>((*this)()) * bound) >> 64);
  }
  constexpr int64_t between(int64_t low, int64_t high) {  // both included
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }
  constexpr double uniform() {  // [0, 1)
    return static_cast<double>((*this)() >> 11) * 0x1.0p-53;
  }
  double normal() {  // mean 0, deviation 1 (Box-Muller, one of the pair)
    const double u = uniform() + 0x1.0p-54;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * uniform());
  }

 private:
  __extension__ typedef unsigned __int128 uint128;  // nvcc takes no `using` here
  uint64_t state_;
};

}  // namespace espalier
