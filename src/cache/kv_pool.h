// The memory of keys and values: one K plane and one V plane a layer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "seams/kv_view.h"

namespace espalier {

struct KvPoolConfig {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  KvType type = KvType::kBFloat16;
  int32_t num_pages = 0;
  int32_t page_size = 1;  // tokens

  int64_t bytes_per_page() const {  // all layers, K and V
    return 2ll * num_layers * page_size * num_kv_heads * head_dim *
           (type == KvType::kFloat32 ? 4 : 2);
  }
};

// Owns the planes. Address space is reserved at once; the system backs it page by page as steps
// write, so resident memory follows use. Zero at first. Move-only.
class KvPool {
 public:
  // kInvalidArgument for a number below 1; kResourceExhausted when the system refuses.
  static Result<KvPool> create(const KvPoolConfig& config);

  KvPool(KvPool&& other) noexcept;
  KvPool& operator=(KvPool&& other) noexcept;
  ~KvPool();

  const KvView& view() const { return view_; }
  const KvPoolConfig& config() const { return config_; }
  int64_t bytes() const { return static_cast<int64_t>(size_); }

 private:
  KvPool() = default;
  KvPoolConfig config_;
  KvView view_;
  void* base_ = nullptr;
  size_t size_ = 0;  // bytes mapped
};

}  // namespace espalier
