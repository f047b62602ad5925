#include "kernels/cpu/backend.h"

#include "base/check.h"
#include "kernels/cpu/tables.h"

namespace espalier::kernels {

Result<std::unique_ptr<CpuBackend>> CpuBackend::create(WorkPool& pool, std::string_view isa_name) {
  ESP_ASSIGN_OR_RETURN(const CpuIsa isa, resolve_cpu_isa(isa_name));
  return std::unique_ptr<CpuBackend>(new CpuBackend(pool, isa, table_for(isa)));
}

Status CpuBackend::grow(size_t size_bytes) {
  if (size_bytes <= scratch_.size_bytes()) return {};
  scratch_ = Buffer();  // before the larger one is there, so that both never are
  ESP_ASSIGN_OR_RETURN(scratch_, Buffer::allocate(size_bytes));
  return {};
}

std::byte* CpuBackend::scratch(size_t size_bytes) {
  const Status status = grow(size_bytes);
  ESP_CHECK(status.ok(), "kernel scratch that reserve_linear did not foresee: {}",
            status.message());
  return scratch_.data();
}

}  // namespace espalier::kernels
