// The memory of keys and values: one K plane and one V plane a layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "seams/kv_view.h"

namespace espalier {

struct KvPoolConfig {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  KvType type = KvType::kBFloat16;
  int32_t num_pages = 0;
  int32_t page_size = 1;   // tokens
  int32_t num_planes = 2;  // of a layer: K and V, or 1 that is both
  // Layers that see a sliding window and have pages of their own; empty: none.
  std::vector<bool> window_layers;
  int32_t num_window_pages = 0;  // of these

  bool is_window_layer(int32_t layer) const {
    return !window_layers.empty() && window_layers[static_cast<size_t>(layer)];
  }
  int64_t bytes_per_layer_page() const {  // all planes of a layer
    return int64_t{num_planes} * page_size * num_kv_heads * head_dim *
           (type == KvType::kFloat32 ? 4 : 2);
  }
  // All planes of all layers, where these have the same pages.
  int64_t bytes_per_page() const { return num_layers * bytes_per_layer_page(); }
};

// The part of the configuration that decides what the bytes of a page mean, as text; equal texts
// mean that pages can be exchanged. It is part of every page's name (page_name.h).
std::string kv_layout_name(const KvPoolConfig& config);

// Where planes lie. `data` has at least the bytes that were asked for, zero at first.
class KvPlanes {
 public:
  virtual ~KvPlanes() = default;
  virtual std::byte* data() = 0;
};

// Takes memory for planes: the host's, or what a back end brings for its device.
using AllocatePlanes = std::function<Result<std::unique_ptr<KvPlanes>>(int64_t size_bytes)>;

// Address space is reserved at once; the system backs it page by page as steps write, so resident
// memory follows use. kResourceExhausted when the system refuses.
Result<std::unique_ptr<KvPlanes>> allocate_host_planes(int64_t size_bytes);

// Owns the planes. Zero at first. Move-only.
class KvPool {
 public:
  // kInvalidArgument for a number below 1; what `allocate` fails with.
  static Result<KvPool> create(const KvPoolConfig& config,
                               const AllocatePlanes& allocate = allocate_host_planes);
  // What create() asks for.
  static int64_t bytes_needed(const KvPoolConfig& config);

  const KvView& view() const { return view_; }
  const KvPoolConfig& config() const { return config_; }
  int64_t bytes() const { return size_bytes_; }

 private:
  KvPool() = default;
  KvPoolConfig config_;
  KvView view_;
  std::unique_ptr<KvPlanes> planes_;
  int64_t size_bytes_ = 0;
};

}  // namespace espalier
