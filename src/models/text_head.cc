#include "models/text_head.h"

#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "models/weight_source.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using Activation = TextsSpec::HeadLayer::Activation;

Status read_tensor(WeightSource& source, const std::string& name, std::vector<int64_t> shape,
                   std::vector<float>& out) {
  ESP_ASSIGN_OR_RETURN(const LentTensor lent, source.lend(name, shape));
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  out.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = element_of(lent, i);
  source.give_back(name);
  return Status();
}

// The files of a folder, which the source borrows.
struct OpenFolder {
  Checkpoint checkpoint;
  CheckpointSource source;

  OpenFolder(Checkpoint opened, const DecoderSpec& spec)
      : checkpoint(std::move(opened)), source(checkpoint, spec, DType::kFloat32) {}
};

Result<std::unique_ptr<OpenFolder>> open_folder(const std::filesystem::path& path,
                                                const DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(path));
  return std::make_unique<OpenFolder>(std::move(checkpoint), spec);
}

float activated(Activation activation, float v) {
  switch (activation) {
    case Activation::kTanh:
      return std::tanh(v);
    case Activation::kGelu:
      return 0.5f * v * (1.0f + std::erf(v * 0.70710678f));
    case Activation::kRelu:
      return std::max(v, 0.0f);
    case Activation::kNone:
      break;
  }
  return v;
}

void layer_norm(std::vector<float>& row, float epsilon, std::span<const float> weight,
                std::span<const float> bias) {
  double mean = 0, square = 0;
  for (const float v : row) mean += v;
  mean /= static_cast<double>(row.size());
  for (const float v : row) square += (v - mean) * (v - mean);
  const double scale = 1 / std::sqrt(square / static_cast<double>(row.size()) + epsilon);
  for (size_t i = 0; i < row.size(); ++i)
    row[i] = static_cast<float>((row[i] - mean) * scale) * weight[i] + bias[i];
}

}  // namespace

Result<TextHead> TextHead::load(const ModelLoadOptions& options, const DecoderSpec& spec) {
  TextHead head;
  std::optional<WorkPool> own_pool;
  std::optional<DummySource> dummy;
  std::unique_ptr<OpenFolder> opened;
  int64_t inputs = spec.projector ? spec.projector->layers.back().outputs : spec.hidden_size;
  for (const TextsSpec::HeadLayer& of : spec.texts->head) {
    if (options.format == LoadFormat::kDummy) {
      WorkPool& pool = options.pool != nullptr ? *options.pool : own_pool.emplace(1);
      dummy.emplace(options.seed, DType::kFloat32, pool);
    } else {
      ESP_ASSIGN_OR_RETURN(
          opened, open_folder(of.folder.empty() ? options.path : options.path / of.folder, spec));
    }
    WeightSource& source = dummy ? static_cast<WeightSource&>(*dummy) : opened->source;
    Layer& layer = head.layers_.emplace_back(Layer{.spec = of});
    ESP_RETURN_IF_ERROR(
        read_tensor(source, of.name + ".weight", {of.outputs, inputs}, layer.matrix));
    if (of.bias)
      ESP_RETURN_IF_ERROR(read_tensor(source, of.name + ".bias", {of.outputs}, layer.bias));
    if (of.norm) {
      ESP_RETURN_IF_ERROR(
          read_tensor(source, of.norm_name + ".weight", {of.outputs}, layer.norm_weight));
      ESP_RETURN_IF_ERROR(
          read_tensor(source, of.norm_name + ".bias", {of.outputs}, layer.norm_bias));
    }
    inputs = of.outputs;
  }
  return head;
}

std::vector<float> TextHead::apply(std::vector<float> row) const {
  for (const Layer& layer : layers_) {
    std::vector<float> out(static_cast<size_t>(layer.spec.outputs));
    for (size_t o = 0; o < out.size(); ++o) {
      const float* const weights = layer.matrix.data() + o * row.size();
      double sum = layer.bias.empty() ? 0.0 : double{layer.bias[o]};
      for (size_t i = 0; i < row.size(); ++i) sum += double{weights[i]} * double{row[i]};
      out[o] = activated(layer.spec.activation, static_cast<float>(sum));
    }
    row = std::move(out);
    if (layer.spec.norm)
      layer_norm(row, layer.spec.norm->epsilon, layer.norm_weight, layer.norm_bias);
  }
  return row;
}

}  // namespace espalier
