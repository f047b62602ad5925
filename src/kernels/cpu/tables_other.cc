// Processors without a table of their own.
#include "base/check.h"
#include "kernels/cpu/tables.h"

namespace espalier::kernels {

std::vector<CpuIsa> supported_cpu_isas() { return {CpuIsa::kPlain}; }

const CpuTable& table_for(CpuIsa isa) {
  ESP_CHECK(isa == CpuIsa::kPlain, "no table for {} on this processor", cpu_isa_name(isa));
  return kPlainTable;
}

}  // namespace espalier::kernels
