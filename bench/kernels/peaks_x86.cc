#include <immintrin.h>

#include <algorithm>

#include "peaks.h"

namespace espalier::kernels::bench {
namespace {

constexpr int64_t kRounds = 2000000;

// Each runs kRounds of independent instructions and returns the operations it did.
__attribute__((target("amx-tile,amx-bf16"))) double run_amx() {
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile("" : : "r"(&config) : "memory");  // as in linear/cpu_amx.cc
  _tile_loadconfig(&config);
  for (int64_t i = 0; i < kRounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return static_cast<double>(kRounds) * 4 * 16 * 16 * 32 * 2;
}

#define ESP_TWELVE(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9) x(10) x(11)

__attribute__((target("avx512f,avx512bf16"))) double run_avx512bf16() {
  __m512 sums[12] = {};
  const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  for (int64_t i = 0; i < 4 * kRounds; ++i) {
#define ESP_STEP(n) sums[n] = _mm512_dpbf16_ps(sums[n], ones, ones);
    ESP_TWELVE(ESP_STEP)
#undef ESP_STEP
#define ESP_KEEP(n) asm volatile("" : "+v"(sums[n]));
    ESP_TWELVE(ESP_KEEP)
#undef ESP_KEEP
  }
  return static_cast<double>(kRounds) * 4 * 12 * 64;
}

__attribute__((target("avx512f"))) double run_avx512() {
  __m512 sums[12] = {};
  const __m512 ones = _mm512_set1_ps(1);
  for (int64_t i = 0; i < 4 * kRounds; ++i) {
#define ESP_STEP(n) sums[n] = _mm512_fmadd_ps(sums[n], ones, ones);
    ESP_TWELVE(ESP_STEP)
#undef ESP_STEP
#define ESP_KEEP(n) asm volatile("" : "+v"(sums[n]));
    ESP_TWELVE(ESP_KEEP)
#undef ESP_KEEP
  }
  return static_cast<double>(kRounds) * 4 * 12 * 32;
}

__attribute__((target("avx2,fma"))) double run_avx2() {
  __m256 sums[12] = {};
  const __m256 ones = _mm256_set1_ps(1);
  for (int64_t i = 0; i < 4 * kRounds; ++i) {
#define ESP_STEP(n) sums[n] = _mm256_fmadd_ps(sums[n], ones, ones);
    ESP_TWELVE(ESP_STEP)
#undef ESP_STEP
#define ESP_KEEP(n) asm volatile("" : "+x"(sums[n]));
    ESP_TWELVE(ESP_KEEP)
#undef ESP_KEEP
  }
  return static_cast<double>(kRounds) * 4 * 12 * 16;
}
#undef ESP_TWELVE

double rate_of(CpuBackend& backend, const Stopwatch& watch, double (*run)()) {
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double begin = watch.now_seconds();
    backend.pool().run([&](int) { run(); });
    const double seconds = watch.now_seconds() - begin;
    // All runs do the same; one more tells how much, untimed.
    best = std::max(best, 1 / seconds);
  }
  return best * run() * backend.pool().num_threads();
}

}  // namespace

double measure_bf16_peak(CpuBackend& backend, const Stopwatch& watch) {
  switch (backend.isa()) {
    case CpuIsa::kAmx:
      return rate_of(backend, watch, run_amx);
    case CpuIsa::kAvx512Bf16:
      return rate_of(backend, watch, run_avx512bf16);
    default:
      return measure_f32_peak(backend, watch);  // bfloat16 is widened and multiplied as float32
  }
}

double measure_f32_peak(CpuBackend& backend, const Stopwatch& watch) {
  switch (backend.isa()) {
    case CpuIsa::kAmx:
    case CpuIsa::kAvx512Bf16:
    case CpuIsa::kAvx512:
      return rate_of(backend, watch, run_avx512);
    case CpuIsa::kAvx2:
      return rate_of(backend, watch, run_avx2);
    default:
      return 0;
  }
}

}  // namespace espalier::kernels::bench
