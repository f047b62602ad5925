// Copies single pages between the device's cache and the host's memory: how tiers read and write
// them. As bytes a page is its layers one behind the other, each K, then V, so a transfer can be
// cut by layer.
//
// Thread-safe for different pages. REQUIRES that no step reads a page that is written, or writes
// one that is read; the cache's locks ensure it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "seams/kv_view.h"

namespace espalier {

class PageCopier {
 public:
  virtual ~PageCopier() = default;

  virtual int32_t num_layers() const = 0;
  virtual int64_t layer_bytes(int32_t layer) const = 0;  // of a page

  // REQUIRES spans of layer_bytes(layer).
  virtual void read_layer(int32_t layer, PageId page, std::span<std::byte> to) const = 0;
  virtual void write_layer(int32_t layer, PageId page, std::span<const std::byte> from) = 0;

  // The same of all layers; REQUIRES spans of page_bytes().
  int64_t page_bytes() const;
  void read_page(PageId page, std::span<std::byte> to) const;
  void write_page(PageId page, std::span<const std::byte> from);
};

// Of planes in the host's memory, which outlive it. kUnimplemented where layers have pages of their
// own, states or scales.
Result<std::unique_ptr<PageCopier>> make_host_page_copier(const KvView& view);

}  // namespace espalier
