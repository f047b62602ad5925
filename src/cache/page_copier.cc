#include "cache/page_copier.h"

#include <cstring>
#include <utility>

namespace espalier {

int64_t PageCopier::page_bytes() const {
  int64_t bytes = 0;
  for (int32_t layer = 0; layer < num_layers(); ++layer) bytes += layer_bytes(layer);
  return bytes;
}

void PageCopier::read_page(PageId page, std::span<std::byte> to) const {
  for (int32_t layer = 0; layer < num_layers(); ++layer) {
    const auto size = static_cast<size_t>(layer_bytes(layer));
    read_layer(layer, page, to.first(size));
    to = to.subspan(size);
  }
}

void PageCopier::write_page(PageId page, std::span<const std::byte> from) {
  for (int32_t layer = 0; layer < num_layers(); ++layer) {
    const auto size = static_cast<size_t>(layer_bytes(layer));
    write_layer(layer, page, from.first(size));
    from = from.subspan(size);
  }
}

namespace {

class HostPageCopier final : public PageCopier {
 public:
  explicit HostPageCopier(std::vector<KvView::Layer> layers) : layers_(std::move(layers)) {}

  int32_t num_layers() const override { return static_cast<int32_t>(layers_.size()); }
  int64_t layer_bytes(int32_t layer) const override {
    const KvView::Layer& l = layers_[static_cast<size_t>(layer)];
    return l.page_bytes() * (has_values(l) ? 2 : 1);
  }
  void read_layer(int32_t layer, PageId page, std::span<std::byte> to) const override {
    const KvView::Layer& l = layers_[static_cast<size_t>(layer)];
    const auto size = static_cast<size_t>(l.page_bytes());
    std::memcpy(to.data(), in_plane(l.k, l, page), size);
    if (has_values(l)) std::memcpy(to.data() + size, in_plane(l.v, l, page), size);
  }
  void write_layer(int32_t layer, PageId page, std::span<const std::byte> from) override {
    const KvView::Layer& l = layers_[static_cast<size_t>(layer)];
    const auto size = static_cast<size_t>(l.page_bytes());
    std::memcpy(in_plane(l.k, l, page), from.data(), size);
    if (has_values(l)) std::memcpy(in_plane(l.v, l, page), from.data() + size, size);
  }

 private:
  static bool has_values(const KvView::Layer& l) { return l.v != l.k; }
  static std::byte* in_plane(void* plane, const KvView::Layer& l, PageId page) {
    return static_cast<std::byte*>(plane) + page * l.page_bytes();
  }
  const std::vector<KvView::Layer> layers_;
};

}  // namespace

Result<std::unique_ptr<PageCopier>> make_host_page_copier(const KvView& view) {
  for (const KvView::Layer& layer : view.layers)
    if ((layer.kind != KvLayerKind::kPages && layer.kind != KvLayerKind::kLatent) ||
        layer.k_scales != nullptr || layer.v_scales != nullptr)
      return fail(error(StatusCode::kUnimplemented,
                        "layers with window pages, recurrent states or scales are kept on the "
                        "device alone"));
  return std::make_unique<HostPageCopier>(view.layers);
}

}  // namespace espalier
