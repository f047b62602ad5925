#include "cache/kv_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace espalier {

namespace {

// Planes begin on a huge page's border, so that the system may back them with huge pages and no two
// planes share one.
constexpr int64_t kPlaneAlignment = 2 << 20;

Status check_config(const KvPoolConfig& config) {
  const auto positive = [](const char* name, int32_t value) {
    return value >= 1 ? Status()
                      : invalid_argument("KV pool: {} is {}; it must be at least 1", name, value);
  };
  ESP_RETURN_IF_ERROR(positive("num_layers", config.num_layers));
  ESP_RETURN_IF_ERROR(positive("num_kv_heads", config.num_kv_heads));
  ESP_RETURN_IF_ERROR(positive("head_dim", config.head_dim));
  ESP_RETURN_IF_ERROR(positive("num_pages", config.num_pages));
  ESP_RETURN_IF_ERROR(positive("page_size", config.page_size));
  return Status();
}

KvView make_view(const KvPoolConfig& config, std::byte* base, int64_t plane_stride_bytes) {
  KvView view;
  view.type = config.type;
  view.num_pages = config.num_pages;
  view.page_size = config.page_size;
  view.num_kv_heads = config.num_kv_heads;
  view.head_dim = config.head_dim;
  view.head_stride = config.head_dim;
  view.token_stride = view.head_stride * config.num_kv_heads;
  view.page_stride = view.token_stride * config.page_size;
  for (int32_t i = 0; i < config.num_layers; ++i, base += 2 * plane_stride_bytes)
    view.layers.push_back({.k = base, .v = base + plane_stride_bytes});
  return view;
}

}  // namespace

Result<KvPool> KvPool::create(const KvPoolConfig& config) {
  ESP_RETURN_IF_ERROR(check_config(config));
  const int64_t plane_bytes =
      config.bytes_per_page() / (2ll * config.num_layers) * config.num_pages;
  const int64_t plane_stride_bytes =
      (plane_bytes + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
  // One alignment more, so that the first plane can begin on a border.
  const int64_t size = plane_stride_bytes * 2 * config.num_layers + kPlaneAlignment;
  void* base = mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return fail(error(StatusCode::kResourceExhausted,
                      "cannot reserve {} bytes for keys and values ({}); lower max_total_tokens",
                      size, std::strerror(errno)));
  KvPool pool;
  pool.config_ = config;
  pool.base_ = base;
  pool.size_ = static_cast<size_t>(size);
  const auto address = reinterpret_cast<uintptr_t>(base);
  const uintptr_t aligned = (address + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
  pool.view_ =
      make_view(config, static_cast<std::byte*>(base) + (aligned - address), plane_stride_bytes);
  return pool;
}

KvPool::KvPool(KvPool&& other) noexcept { *this = std::move(other); }

KvPool& KvPool::operator=(KvPool&& other) noexcept {
  std::swap(config_, other.config_);
  std::swap(view_, other.view_);
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

KvPool::~KvPool() {
  if (base_ != nullptr) munmap(base_, size_);
}

}  // namespace espalier
