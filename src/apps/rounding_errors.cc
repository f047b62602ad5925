#include "apps/rounding_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <map>

#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"

namespace espalier::apps {
namespace {

constexpr int64_t kChunkElements = 1 << 20;

int32_t layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = name.find(kLayers);
  int32_t layer = -1;
  if (at != std::string_view::npos)
    std::from_chars(name.data() + at + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

struct Squares {
  double off = 0, all = 0;
  double error() const { return all > 0 ? std::sqrt(off / all) : 0; }
};

Squares compare(const CheckpointTensor& before, const CheckpointTensor& after) {
  Squares out;
  std::vector<float> a, b;
  for (int64_t first = 0; first < before.num_elements(); first += kChunkElements) {
    const auto count = static_cast<size_t>(std::min(kChunkElements, before.num_elements() - first));
    a.resize(count), b.resize(count);
    copy_as_float(before, first, a);
    copy_as_float(after, first, b);
    for (size_t i = 0; i < count; ++i) {
      const double off = double{a[i]} - b[i];
      out.off += off * off;
      out.all += double{a[i]} * a[i];
    }
  }
  return out;
}

}  // namespace

Result<std::vector<LayerErrors>> rounding_errors(const std::filesystem::path& before,
                                                 const std::filesystem::path& after) {
  ESP_ASSIGN_OR_RETURN(const Checkpoint from, Checkpoint::open(before));
  ESP_ASSIGN_OR_RETURN(const Checkpoint to, Checkpoint::open(after));
  std::map<int32_t, LayerErrors> layers;
  std::map<int32_t, Squares> sums;
  for (const CheckpointTensor& tensor : from.tensors()) {
    const CheckpointTensor* rounded = to.find(tensor.name);
    if (tensor.shape.size() != 2 || rounded == nullptr || rounded->shape != tensor.shape) continue;
    const Squares squares = compare(tensor, *rounded);
    from.release(tensor), to.release(*rounded);
    if (squares.off == 0) continue;
    const int32_t index = layer_of(tensor.name);
    LayerErrors& layer = layers[index];
    layer.layer = index;
    ++layer.num_matrices;
    Squares& sum = sums[index];
    sum.off += squares.off, sum.all += squares.all;
    layer.all = sum.error();
    if (squares.error() <= layer.worst) continue;
    layer.worst = squares.error();
    layer.worst_name = tensor.name;
  }
  std::vector<LayerErrors> out;
  for (auto& [index, layer] : layers) out.push_back(std::move(layer));
  return out;
}

std::string errors_text(const std::vector<LayerErrors>& layers) {
  std::string out = fmt::format("{:>7} {:>9} {:>9} {:>9}  {}\n", "layer", "matrices", "error %",
                                "worst %", "worst matrix");
  for (const LayerErrors& each : layers)
    fmt::format_to(std::back_inserter(out), "{:>7} {:>9} {:>9.3f} {:>9.3f}  {}\n",
                   each.layer < 0 ? "-" : std::to_string(each.layer), each.num_matrices,
                   100 * each.all, 100 * each.worst, each.worst_name);
  return out;
}

}  // namespace espalier::apps
