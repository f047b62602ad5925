// The CPU back end, the first argument of every CPU operation: the threads, the functions for this
// processor, and scratch memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "kernels/cpu/isa.h"
#include "tensor/buffer.h"
#include "tensor/work_pool.h"

namespace espalier::kernels {

struct CpuTable;

// Thread safety: operations on one back end are called from one thread at a time, the one that may
// call pool().run(); they work in parallel inside.
class CpuBackend {
 public:
  // pool: borrowed, outlives the back end. isa_name: as resolve_cpu_isa takes it.
  static Result<std::unique_ptr<CpuBackend>> create(WorkPool& pool, std::string_view isa_name = {});

  WorkPool& pool() { return pool_; }
  CpuIsa isa() const { return isa_; }
  const CpuTable& table() const { return table_; }

  // Scratch of one operation, 64-byte aligned, contents undefined. Grows to the largest size ever
  // requested, so a steady step allocates nothing.
  std::byte* scratch(size_t size_bytes);

  // Grows the scratch to what linear() needs for `rows` rows of `in_features`, ahead of time.
  // kResourceExhausted when there is no memory.
  Status reserve_linear(int64_t rows, int64_t in_features);

 private:
  CpuBackend(WorkPool& pool, CpuIsa isa, const CpuTable& table)
      : pool_(pool), isa_(isa), table_(table) {}
  Status grow(size_t size_bytes);

  WorkPool& pool_;
  const CpuIsa isa_;
  const CpuTable& table_;
  Buffer scratch_;
};

}  // namespace espalier::kernels
