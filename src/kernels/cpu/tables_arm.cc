// The tables of 64-bit Arm, where NEON is always present and its sdot instructions mostly.
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "kernels/cpu/tables.h"

namespace espalier::kernels {

std::vector<CpuIsa> supported_cpu_isas() {
  std::vector<CpuIsa> isas = {CpuIsa::kPlain, CpuIsa::kNeon};
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) isas.push_back(CpuIsa::kNeonDot);
  return isas;
}

const CpuTable& table_for(CpuIsa isa) {
  static const CpuTable neon_dot = [] {
    CpuTable table = kNeonTable;
    std::copy(std::begin(kLinearBlocksNeonDot), std::end(kLinearBlocksNeonDot),
              table.linear_blocks);
    return table;
  }();
  if (isa == CpuIsa::kNeonDot) return neon_dot;
  ESP_CHECK(isa == CpuIsa::kPlain || isa == CpuIsa::kNeon, "no table for {} on Arm",
            cpu_isa_name(isa));
  return isa == CpuIsa::kNeon ? kNeonTable : kPlainTable;
}

}  // namespace espalier::kernels
