#include "kernels/cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace espalier::kernels {

std::string_view cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kPlain:
      return "plain";
    case CpuIsa::kNeon:
      return "neon";
    case CpuIsa::kNeonDot:
      return "neondot";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Vnni:
      return "avx512vnni";
    case CpuIsa::kAvx512Bf16:
      return "avx512bf16";
    case CpuIsa::kAmx:
      return "amx";
  }
  return "?";
}

Result<CpuIsa> resolve_cpu_isa(std::string_view name) {
  const std::vector<CpuIsa> supported = supported_cpu_isas();
  if (name.empty()) {
    const char* wanted = std::getenv("ESPALIER_CPU_ISA");
    if (wanted == nullptr || *wanted == '\0') return supported.back();
    name = wanted;
  }
  const auto found = std::find_if(supported.begin(), supported.end(),
                                  [&](CpuIsa isa) { return cpu_isa_name(isa) == name; });
  if (found != supported.end()) return *found;
  std::string names;
  for (CpuIsa isa : supported)
    names += (names.empty() ? "" : ", ") + std::string(cpu_isa_name(isa));
  return fail(invalid_argument(
      "CPU instruction set \"{}\" is not one that this system supports: use one of {}, or leave "
      "ESPALIER_CPU_ISA unset for the best",
      name, names));
}

}  // namespace espalier::kernels
