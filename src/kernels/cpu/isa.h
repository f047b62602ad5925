// The instruction set that the kernels use, chosen once at start. Pure functions; thread-safe.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier::kernels {

// In rising order of speed on the systems that have them.
enum class CpuIsa {
  kPlain,       // "plain": portable C++
  kNeon,        // "neon": Armv8-A
  kNeonDot,     // "neondot": 8-bit dot instructions
  kAvx2,        // "avx2": with FMA and F16C
  kAvx512,      // "avx512": F, BW, DQ, VL
  kAvx512Vnni,  // "avx512vnni": 8-bit dot instructions
  kAvx512Bf16,  // "avx512bf16": bf16 dot instructions
  kAmx,         // "amx": bf16 and 8-bit tiles, besides all of the above
};

std::string_view cpu_isa_name(CpuIsa isa);

// What this processor and this system support, slowest first; never empty.
std::vector<CpuIsa> supported_cpu_isas();

// `name`, or if it is empty the environment's ESPALIER_CPU_ISA, or if that is unset or empty the
// best supported. kInvalidArgument, with the list of those that are supported, for another name.
Result<CpuIsa> resolve_cpu_isa(std::string_view name);

}  // namespace espalier::kernels
