// The tables of x86-64, and what the processor and the system allow of them.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "kernels/cpu/tables.h"

namespace espalier::kernels {
namespace {

CpuTable with_blocks(CpuTable table, const LinearFn (&blocks)[kNumBlockFormats]) {
  std::copy(std::begin(blocks), std::end(blocks), table.linear_blocks);
  return table;
}

CpuTable with_block_tiles(CpuTable table, const LinearFn (&blocks)[kNumBlockFormats],
                          PrepareFn prepare) {
  table.prepare_block_tiles = prepare;
  return with_blocks(table, blocks);
}

CpuTable with_linear_bf16(CpuTable table, LinearFn linear, PrepareFn prepare) {
  table.linear_bf16 = linear;
  table.prepare_bf16 = prepare;
  table.prepared_bytes = 2;
  return table;
}

// Conversions of float16 (leaf 1, ECX bit 29). Every processor with AVX2 has them.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
}

// Tiles need the processor's AMX-TILE, AMX-BF16 and AMX-INT8 (Intel SDM: leaf 7, EDX bits 24, 22
// and 25) and the system's permission (arch_prctl(2), ARCH_REQ_XCOMP_PERM of XTILEDATA), which
// holds for the process and all its threads.
bool amx_works() {
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d >> 24 & 1) == 0 || (d >> 22 & 1) == 0 || (d >> 25 & 1) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

std::vector<CpuIsa> supported_cpu_isas() {
  std::vector<CpuIsa> isas = {CpuIsa::kPlain};
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return isas;
  isas.push_back(CpuIsa::kAvx2);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return isas;
  }
  isas.push_back(CpuIsa::kAvx512);
  if (!__builtin_cpu_supports("avx512vnni")) return isas;
  isas.push_back(CpuIsa::kAvx512Vnni);
  if (!__builtin_cpu_supports("avx512bf16")) return isas;
  isas.push_back(CpuIsa::kAvx512Bf16);
  if (amx_works()) isas.push_back(CpuIsa::kAmx);
  return isas;
}

const CpuTable& table_for(CpuIsa isa) {
  static const CpuTable avx512vnni = with_blocks(kAvx512Table, kLinearBlocksVnni);
  static const CpuTable avx512bf16 =
      with_linear_bf16(avx512vnni, kLinearAvx512Bf16, kPrepareAvx512Bf16);
  static const CpuTable amx = with_linear_bf16(
      with_block_tiles(kAvx512Table, kLinearBlocksAmx, kPrepareBlocksAmx), kLinearAmx, kPrepareAmx);
  switch (isa) {
    case CpuIsa::kPlain:
      return kPlainTable;
    case CpuIsa::kAvx2:
      return kAvx2Table;
    case CpuIsa::kAvx512:
      return kAvx512Table;
    case CpuIsa::kAvx512Vnni:
      return avx512vnni;
    case CpuIsa::kAvx512Bf16:
      return avx512bf16;
    case CpuIsa::kAmx:
      return amx;
    case CpuIsa::kNeon:
    case CpuIsa::kNeonDot:
      break;
  }
  ESP_CHECK(false, "no table for {} on x86-64", cpu_isa_name(isa));
}

}  // namespace espalier::kernels
