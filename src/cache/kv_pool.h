// The memory of keys and values: for each layer one K plane and one V plane, or one plane that is
// both. Not thread-safe, but for reads of an unchanging view.
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

// What one token has in a layer's plane: [num_kv_heads, head_dim] elements of `type`.
struct KvLayerShape {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  KvType type = KvType::kBFloat16;
  friend bool operator==(const KvLayerShape&, const KvLayerShape&) = default;
};

struct KvPoolConfig {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  KvType type = KvType::kBFloat16;
  int32_t num_pages = 0;
  int32_t page_size = 1;   // tokens
  int32_t num_planes = 2;  // of a layer: K and V, or 1 that is both
  // [num_layers], or empty: no layer has pages of its own. A marked layer reads a sliding window
  // only and lies in a second pool of num_window_pages pages.
  std::vector<bool> window_layers;
  int32_t num_window_pages = 0;
  // [num_layers], or empty: each layer has the three numbers above.
  std::vector<KvLayerShape> layer_shapes;

  bool is_window_layer(int32_t layer) const {
    return !window_layers.empty() && window_layers[static_cast<size_t>(layer)];
  }
  KvLayerShape shape_of(int32_t layer) const {
    if (layer_shapes.empty()) return {num_kv_heads, head_dim, type};
    return layer_shapes[static_cast<size_t>(layer)];
  }
  int32_t num_pages_of(int32_t layer) const {
    return is_window_layer(layer) ? num_window_pages : num_pages;
  }
  // All planes of all layers, where these have the same pages.
  int64_t bytes_per_page() const;
};

// The part of the configuration that decides what the bytes of a page mean, as text. Engines whose
// texts are equal can exchange pages; the text is part of every page's name (page_name.h).
std::string kv_layout_name(const KvPoolConfig& config);

// The memory of all planes. data() has at least the size that was requested and is zero at first.
class KvPlanes {
 public:
  virtual ~KvPlanes() = default;
  virtual std::byte* data() = 0;
};

// Allocates memory for planes: the host's, or a device's where its back end passes a function.
using AllocatePlanes = std::function<Result<std::unique_ptr<KvPlanes>>(int64_t size_bytes)>;

// Address space is reserved at once; the system backs it page by page as steps write, so resident
// memory follows use. kResourceExhausted when the system refuses.
Result<std::unique_ptr<KvPlanes>> allocate_host_planes(int64_t size_bytes);

// Owns the planes, which are zero at first. Move-only; views are valid while the pool lives.
class KvPool {
 public:
  // kInvalidArgument for a number below 1 or a list of another length than num_layers; else the
  // error of `allocate`.
  static Result<KvPool> create(const KvPoolConfig& config,
                               const AllocatePlanes& allocate = allocate_host_planes);
  // The size that create() allocates.
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
