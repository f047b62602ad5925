#include "cache/page_copier.h"

#include <cstring>
#include <limits>
#include <utility>

#include "cache/host_staging.h"

namespace espalier {
namespace {

Status check_layers(const KvView& view) {
  for (const KvView::Layer& layer : view.layers)
    if ((layer.kind != KvLayerKind::kPages && layer.kind != KvLayerKind::kLatent) ||
        layer.k_scales != nullptr || layer.v_scales != nullptr)
      return error(StatusCode::kUnimplemented,
                   "layers with window pages, recurrent states or scales are kept on the device "
                   "alone");
  return {};
}

void append_plane(std::vector<PlaneRun>& runs, void* plane, int64_t page_bytes, int64_t pitch_max) {
  auto* const at = static_cast<std::byte*>(plane);
  if (!runs.empty() && runs.back().page_bytes == page_bytes) {
    PlaneRun& run = runs.back();
    const int64_t pitch = at - (run.first + run.pitch * (run.num_planes - 1));
    const bool continues =
        run.num_planes == 1 ? pitch >= page_bytes && pitch <= pitch_max : pitch == run.pitch;
    if (continues) {
      run.pitch = pitch;
      ++run.num_planes;
      return;
    }
  }
  runs.push_back({.first = at, .num_planes = 1, .page_bytes = page_bytes});
}

class HostPageCopier final : public PageCopier {
 public:
  explicit HostPageCopier(std::vector<PlaneRun> runs) : runs_(std::move(runs)) {
    for (const PlaneRun& run : runs_) page_bytes_ += run.bytes();
  }

  int64_t page_bytes() const override { return page_bytes_; }
  Transfer begin_read(PageId page, std::span<std::byte> to) override {
    std::byte* at = to.data();
    for (const PlaneRun& run : runs_)
      for (int64_t i = 0; i < run.num_planes; ++i, at += run.page_bytes)
        std::memcpy(at, run.page_at(page) + i * run.pitch, static_cast<size_t>(run.page_bytes));
    return 0;
  }
  Transfer begin_write(PageId page, std::span<const std::byte> from) override {
    const std::byte* at = from.data();
    for (const PlaneRun& run : runs_)
      for (int64_t i = 0; i < run.num_planes; ++i, at += run.page_bytes)
        std::memcpy(run.page_at(page) + i * run.pitch, at, static_cast<size_t>(run.page_bytes));
    return 0;
  }
  Status finish(Transfer) override { return {}; }

  Result<PageStaging*> start_staging(int64_t bytes) override {
    ESP_ASSIGN_OR_RETURN(staging_, make_host_staging(runs_, bytes));
    return staging_.get();
  }
  std::string staging_kind() const override { return "memfd"; }
  Result<std::unique_ptr<MappedStaging>> map_staging(const StagingHandle& handle) override {
    return map_host_staging(runs_, handle);
  }

 private:
  const std::vector<PlaneRun> runs_;
  int64_t page_bytes_ = 0;
  std::unique_ptr<PageStaging> staging_;  // null until it is started
};

}  // namespace

Result<std::vector<PlaneRun>> plane_runs(const KvView& view, int64_t pitch_max) {
  ESP_RETURN_IF_ERROR(check_layers(view));
  std::vector<PlaneRun> runs;
  for (const KvView::Layer& layer : view.layers) {
    append_plane(runs, layer.k, layer.page_bytes(), pitch_max);
    if (layer.v != layer.k) append_plane(runs, layer.v, layer.page_bytes(), pitch_max);
  }
  return runs;
}

Result<std::unique_ptr<PageCopier>> make_host_page_copier(const KvView& view) {
  ESP_ASSIGN_OR_RETURN(std::vector<PlaneRun> runs,
                       plane_runs(view, std::numeric_limits<int64_t>::max()));
  return std::make_unique<HostPageCopier>(std::move(runs));
}

}  // namespace espalier
