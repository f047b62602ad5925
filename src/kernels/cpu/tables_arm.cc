// The tables of 64-bit Arm, where NEON is always there.
#include "base/check.h"
#include "kernels/cpu/tables.h"

namespace espalier::kernels {

std::vector<CpuIsa> supported_cpu_isas() { return {CpuIsa::kPlain, CpuIsa::kNeon}; }

const CpuTable& table_for(CpuIsa isa) {
  ESP_CHECK(isa == CpuIsa::kPlain || isa == CpuIsa::kNeon, "no table for {} on Arm",
            cpu_isa_name(isa));
  return isa == CpuIsa::kNeon ? kNeonTable : kPlainTable;
}

}  // namespace espalier::kernels
