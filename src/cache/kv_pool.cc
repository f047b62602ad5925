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
  ESP_RETURN_IF_ERROR(positive("num_pages", config.num_pages));
  ESP_RETURN_IF_ERROR(positive("page_size", config.page_size));
  if (config.num_planes != 1 && config.num_planes != 2) {
    return invalid_argument("KV pool: num_planes is {}; it must be 1 or 2", config.num_planes);
  }
  const auto num_layers = static_cast<size_t>(config.num_layers);
  if (!config.layer_shapes.empty() && config.layer_shapes.size() != num_layers)
    return invalid_argument("KV pool: layer_shapes describes {} layers of {}",
                            config.layer_shapes.size(), num_layers);
  for (int32_t i = 0; i < config.num_layers; ++i) {
    ESP_RETURN_IF_ERROR(positive("num_kv_heads", config.shape_of(i).num_kv_heads));
    ESP_RETURN_IF_ERROR(positive("head_dim", config.shape_of(i).head_dim));
  }
  if (!config.window_layers.empty()) {
    ESP_RETURN_IF_ERROR(positive("num_window_pages", config.num_window_pages));
    if (config.window_layers.size() != num_layers)
      return invalid_argument("KV pool: window_layers describes {} layers of {}",
                              config.window_layers.size(), num_layers);
  }
  return Status();
}

KvLayerKind kind_of(const KvPoolConfig& config, int32_t layer) {
  if (config.is_window_layer(layer)) return KvLayerKind::kWindowPages;
  return config.num_planes == 1 ? KvLayerKind::kLatent : KvLayerKind::kPages;
}

// The description of a layer, without addresses.
KvView::Layer layer_of(const KvPoolConfig& config, int32_t layer) {
  const KvLayerShape shape = config.shape_of(layer);
  KvView::Layer out{.kind = kind_of(config, layer),
                    .type = shape.type,
                    .num_pages = config.num_pages_of(layer),
                    .num_kv_heads = shape.num_kv_heads,
                    .head_dim = shape.head_dim};
  out.set_dense_strides(config.page_size);
  return out;
}

// From the start of a plane to where the next one may begin.
int64_t plane_stride_bytes(const KvView::Layer& layer) {
  return (layer.plane_bytes() + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
}

KvView make_view(const KvPoolConfig& config, std::byte* base) {
  KvView view{.page_size = config.page_size};
  for (int32_t i = 0; i < config.num_layers; ++i) {
    KvView::Layer layer = layer_of(config, i);
    const int64_t stride = plane_stride_bytes(layer);
    layer.k = base;
    layer.v = base + (config.num_planes - 1) * stride;
    view.layers.push_back(layer);
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

int64_t KvPoolConfig::bytes_per_page() const {
  int64_t bytes = 0;
  for (int32_t i = 0; i < num_layers; ++i) bytes += num_planes * layer_of(*this, i).page_bytes();
  return bytes;
}

std::string kv_layout_name(const KvPoolConfig& config) {
  const KvLayerShape first = config.shape_of(0);
  std::string name =
      fmt::format("{} page_size={} layers={} planes={} kv_heads={} head_dim={} window_layers=",
                  kv_type_name(first.type), config.page_size, config.num_layers, config.num_planes,
                  first.num_kv_heads, first.head_dim);
  for (const bool is_window : config.window_layers) name += is_window ? '1' : '0';
  for (int32_t i = 1; i < config.num_layers; ++i)
    if (const KvLayerShape shape = config.shape_of(i); shape != first)
      name += fmt::format(" layer{}={},{},{}", i, kv_type_name(shape.type), shape.num_kv_heads,
                          shape.head_dim);
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
    bytes += config.num_planes * plane_stride_bytes(layer_of(config, i));
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
