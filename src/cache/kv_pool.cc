#include "cache/kv_pool.h"

#include <sys/mman.h>

#include <fmt/format.h>
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
  if (config.num_planes != 1 && config.num_planes != 2) {
    return invalid_argument("KV pool: num_planes is {}; it must be 1 or 2", config.num_planes);
  }
  const auto num_layers = static_cast<size_t>(config.num_layers);
  if (!config.window_layers.empty()) {
    ESP_RETURN_IF_ERROR(positive("num_window_pages", config.num_window_pages));
    if (config.window_layers.size() != num_layers)
      return invalid_argument("KV pool: {} layers are told whether they have a window, of {}",
                              config.window_layers.size(), num_layers);
  }
  return Status();
}

// Of one plane of a layer, up to where the next may begin.
int64_t plane_stride_bytes(const KvPoolConfig& config, int32_t layer) {
  const int32_t num_pages =
      config.is_window_layer(layer) ? config.num_window_pages : config.num_pages;
  const int64_t plane_bytes = config.bytes_per_layer_page() / config.num_planes * num_pages;
  return (plane_bytes + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
}

KvView make_view(const KvPoolConfig& config, std::byte* base) {
  KvView view;
  view.type = config.type;
  view.num_pages = config.num_pages;
  view.page_size = config.page_size;
  view.num_kv_heads = config.num_kv_heads;
  view.head_dim = config.head_dim;
  view.head_stride = config.head_dim;
  view.token_stride = view.head_stride * config.num_kv_heads;
  view.page_stride = view.token_stride * config.page_size;
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const int64_t stride = plane_stride_bytes(config, i);
    view.layers.push_back({.k = base, .v = base + (config.num_planes - 1) * stride});
    base += config.num_planes * stride;
  }
  return view;
}

class HostPlanes final : public KvPlanes {
 public:
  HostPlanes(void* base, size_t size_bytes) : base_(base), size_bytes_(size_bytes) {}
  HostPlanes(const HostPlanes&) = delete;
  HostPlanes& operator=(const HostPlanes&) = delete;
  ~HostPlanes() override { munmap(base_, size_bytes_); }
  std::byte* data() override { return static_cast<std::byte*>(base_); }

 private:
  void* base_;
  size_t size_bytes_;
};

}  // namespace

std::string kv_layout_name(const KvPoolConfig& config) {
  std::string name =
      fmt::format("{} page_size={} layers={} planes={} kv_heads={} head_dim={} window_layers=",
                  config.type == KvType::kFloat32 ? "float32" : "bfloat16", config.page_size,
                  config.num_layers, config.num_planes, config.num_kv_heads, config.head_dim);
  for (const bool is_window : config.window_layers) name += is_window ? '1' : '0';
  return name;
}

Result<std::unique_ptr<KvPlanes>> allocate_host_planes(int64_t size_bytes) {
  void* base = mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return fail(error(StatusCode::kResourceExhausted,
                      "cannot reserve {} bytes for keys and values ({}); lower max_total_tokens",
                      size_bytes, std::strerror(errno)));
  return std::make_unique<HostPlanes>(base, static_cast<size_t>(size_bytes));
}

// One alignment more than the planes take, so that the first can begin on a border.
int64_t KvPool::bytes_needed(const KvPoolConfig& config) {
  int64_t bytes = kPlaneAlignment;
  for (int32_t i = 0; i < config.num_layers; ++i)
    bytes += config.num_planes * plane_stride_bytes(config, i);
  return bytes;
}

Result<KvPool> KvPool::create(const KvPoolConfig& config, const AllocatePlanes& allocate) {
  ESP_RETURN_IF_ERROR(check_config(config));
  KvPool pool;
  pool.config_ = config;
  pool.size_bytes_ = bytes_needed(config);
  ESP_ASSIGN_OR_RETURN(pool.planes_, allocate(pool.size_bytes_));
  const auto address = reinterpret_cast<uintptr_t>(pool.planes_->data());
  const uintptr_t aligned = (address + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
  pool.view_ = make_view(config, pool.planes_->data() + (aligned - address));
  return pool;
}

}  // namespace espalier
