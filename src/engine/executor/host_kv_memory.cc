#include "engine/executor/host_kv_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace espalier {
namespace {

// The whole pages of the system within [begin, begin + size_bytes).
Status give_back(void* begin, int64_t size_bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (address + page - 1) / page * page;
  const uintptr_t last = (address + static_cast<uintptr_t>(size_bytes)) / page * page;
  if (first >= last) return Status();
  auto* const start = static_cast<std::byte*>(begin) + (first - address);
  if (madvise(start, last - first, MADV_DONTNEED) == 0) return Status();
  return error(StatusCode::kInternal, "{} bytes of keys and values are not given back: {}",
               last - first, std::strerror(errno));
}

}  // namespace

Result<int64_t> give_back_planes(const KvView& view) {
  int64_t size_bytes = 0;
  for (const KvView::Layer& layer : view.layers) {
    for (void* const plane : {layer.k, layer.v == layer.k ? nullptr : layer.v}) {
      if (plane == nullptr) continue;
      ESP_RETURN_IF_ERROR(give_back(plane, layer.plane_bytes()));
      size_bytes += layer.plane_bytes();
    }
  }
  return size_bytes;
}

}  // namespace espalier
