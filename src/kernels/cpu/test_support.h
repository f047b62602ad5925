// Shared helpers of the kernel tests: fresh random inputs with a printed seed, and every
// instruction set of this system.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/backend.h"
#include "tensor/dtype.h"

namespace espalier::kernels::test {

// ESPALIER_TEST_SEED repeats a test run.
inline uint64_t fresh_seed() {
  const char* wanted = std::getenv("ESPALIER_TEST_SEED");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device{}();
}

inline std::vector<float> random_floats(Rng& rng, int64_t count, double deviation = 1.0) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(deviation * rng.normal());
  return values;
}

inline std::vector<BFloat16> to_bfloat16s(const std::vector<float>& values) {
  std::vector<BFloat16> result;
  for (float value : values) result.push_back(to_bfloat16(value));
  return result;
}

inline std::unique_ptr<CpuBackend> make_backend(WorkPool& pool, CpuIsa isa) {
  auto backend = CpuBackend::create(pool, cpu_isa_name(isa));
  EXPECT_TRUE(backend) << backend.error().message();
  return std::move(*backend);
}

// A fixture that runs each test with each instruction set that this system has.
class EachIsa : public testing::TestWithParam<CpuIsa> {
 protected:
  EachIsa() : seed_(fresh_seed()), rng_(seed_), trace_(__FILE__, __LINE__, seed_message(seed_)) {}

  std::unique_ptr<CpuBackend> backend_on(WorkPool& pool) { return make_backend(pool, GetParam()); }

  const uint64_t seed_;
  Rng rng_;

 private:
  static std::string seed_message(uint64_t seed) {
    return "ESPALIER_TEST_SEED=" + std::to_string(seed);
  }
  testing::ScopedTrace trace_;
};

inline std::string isa_test_name(const testing::TestParamInfo<CpuIsa>& info) {
  return std::string(cpu_isa_name(info.param));
}

#define ESP_EACH_ISA(fixture)                                                     \
  INSTANTIATE_TEST_SUITE_P(Cpu, fixture, testing::ValuesIn(supported_cpu_isas()), \
                           test::isa_test_name)

}  // namespace espalier::kernels::test
