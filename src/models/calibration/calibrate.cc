#include "models/calibration/calibrate.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "checkpoint/convert.h"
#include "models/calibration/layer_inputs.h"
#include "models/calibration/output_factor.h"
#include "models/program/cpu_model.h"
#include "models/weight_layout.h"
#include "models/weight_source.h"

namespace espalier::calibration {
namespace {

// As a share of the mean of the inputs' squares: large enough for inputs that follow from others.
constexpr double kDamping = 0.01;
constexpr float kE4m3Max = 448;
constexpr int32_t kPageSize = 16;

// Of inputs of this many columns: with few of them, weights would suit these alone.
int64_t least_rows(int64_t columns) { return std::max<int64_t>(32, columns / 16); }

// One layer of a model, which takes rows (the first one tokens) and hands rows on.
DecoderSpec spec_of_layer(const DecoderSpec& whole, int32_t layer) {
  DecoderSpec spec = whole;
  spec.stage.first_layer = layer;
  spec.stage.embeds = layer == 0;
  spec.stage.samples = false;
  spec.layers = {whole.layers[static_cast<size_t>(layer)]};
  return spec;
}

// A checkpoint of which one layer is read, with other numbers in place of some matrices.
class LayerSource final : public WeightSource {
 public:
  using Numbers = std::map<std::string, std::vector<float>>;
  // replaced: by the tensors' names in the checkpoint.
  LayerSource(CheckpointSource& checkpoint, const Numbers& replaced)
      : checkpoint_(checkpoint), replaced_(replaced) {}

  Result<LentTensor> lend(const std::string& name, std::span<const int64_t> shape) override {
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, checkpoint_.find(name, shape));
    const auto found = replaced_.find(tensor->name);
    if (found == replaced_.end()) return checkpoint_.lend(name, shape);
    return LentTensor{found->second.data(), DType::kFloat32};
  }
  void give_back(const std::string& name) override { checkpoint_.give_back(name); }
  Status finish() override { return Status(); }  // other layers' tensors are left over

 private:
  CheckpointSource& checkpoint_;
  const Numbers& replaced_;
};

// Keys and values of one text in one layer.
class LayerKeys {
 public:
  LayerKeys(const ModelInfo& info, int32_t num_tokens) {
    KvView::Layer layer{.kind = info.kv_planes == 1 ? KvLayerKind::kLatent : KvLayerKind::kPages,
                        .type = KvType::kFloat32,
                        .num_pages = (num_tokens + kPageSize - 1) / kPageSize,
                        .num_kv_heads = info.num_kv_heads,
                        .head_dim = info.head_dim};
    layer.set_dense_strides(kPageSize);
    const auto plane = static_cast<size_t>(layer.plane_bytes()) / sizeof(float);
    values_.resize(plane * static_cast<size_t>(info.kv_planes));
    layer.k = values_.data();
    layer.v = values_.data() + plane * static_cast<size_t>(info.kv_planes - 1);
    view_.page_size = kPageSize;
    view_.layers = {layer};
  }
  const KvView& view() const { return view_; }

 private:
  std::vector<float> values_;
  KvView view_;
};

ForwardBatch batch_of(const std::vector<TokenId>& tokens) {
  ForwardBatch batch;
  const auto count = static_cast<int32_t>(tokens.size());
  batch.entries.push_back(
      {.slot = 0, .num_query_tokens = count, .num_pages = (count + kPageSize - 1) / kPageSize});
  batch.token_ids = tokens;
  for (int32_t i = 0; i < count; ++i) batch.positions.push_back(i);
  for (PageId i = 0; i < batch.entries[0].num_pages; ++i) batch.page_tables.push_back(i);
  return batch;
}

// A matrix of a layer and which inputs it has.
struct LayerMatrix {
  const MatrixLayout* layout = nullptr;
  WeightKind kind{};
  int32_t expert = -1;
};

std::vector<LayerMatrix> matrices_of(const LayerLayout& layer) {
  std::vector<LayerMatrix> out = {{&layer.qkv, WeightKind::kQkv},
                                  {&layer.latent.q_a, WeightKind::kLatentQA},
                                  {&layer.latent.q, WeightKind::kLatentQ},
                                  {&layer.latent.kv_a, WeightKind::kLatentKvA},
                                  {&layer.latent.kv_b, WeightKind::kNone},
                                  {&layer.attention_output, WeightKind::kAttentionOutput},
                                  {&layer.mlp.gate_up, WeightKind::kGateUp},
                                  {&layer.mlp.down, WeightKind::kDown}};
  for (int32_t i = 0; i < std::ssize(layer.experts.experts); ++i) {
    const MlpLayout& expert = layer.experts.experts[static_cast<size_t>(i)];
    out.push_back({&expert.gate_up, WeightKind::kExpertGateUp, i});
    out.push_back({&expert.down, WeightKind::kExpertDown, i});
  }
  std::erase_if(out, [](const LayerMatrix& each) {
    return each.layout->empty() || each.layout->transposed || !each.layout->stored_shape.empty();
  });
  return out;
}

class Calibrator {
 public:
  Calibrator(const Checkpoint& checkpoint, const ModelPlan& plan, const CompressedFormat& format,
             const CalibrationInputs& inputs, kernels::CpuBackend& backend, RoundedMatrices& to)
      : checkpoint_(checkpoint),
        plan_(plan),
        format_(format),
        inputs_(inputs),
        backend_(backend),
        to_(to),
        states_(inputs.texts.size()) {}

  Result<LayerReport> run_layer(int32_t layer) {
    const DecoderSpec spec = spec_of_layer(plan_.spec, layer);
    CheckpointSource source(checkpoint_, spec, plan_.type, &backend_.pool());
    LayerInputs seen(backend_);
    replaced_.clear();
    ESP_RETURN_IF_ERROR(run_texts(spec, source, &seen));
    ESP_RETURN_IF_ERROR(seen.status());
    LayerReport report{.layer = layer};
    const WeightLayout layout = weight_layout(spec);
    for (const LayerMatrix& matrix : matrices_of(layout.layers[0]))
      ESP_RETURN_IF_ERROR(round(matrix, source, seen, report));
    if (layer + 1 < std::ssize(plan_.spec.layers))
      ESP_RETURN_IF_ERROR(run_texts(spec, source, nullptr));
    return report;
  }

 private:
  // With an observer the states stay as they are.
  Status run_texts(const DecoderSpec& spec, CheckpointSource& checkpoint, InputObserver* observer) {
    LayerSource source(checkpoint, replaced_);
    ESP_ASSIGN_OR_RETURN(const auto model,
                         program::CpuModel::create(spec, plan_.type, source, backend_.pool()));
    size_t longest = 0;
    for (const auto& text : inputs_.texts) longest = std::max(longest, text.size());
    ESP_RETURN_IF_ERROR(model->reserve(static_cast<int32_t>(longest), 1));
    const LayerKeys keys(model->info(), static_cast<int32_t>(longest));
    for (size_t i = 0; i < inputs_.texts.size(); ++i) {
      const std::vector<TokenId>& text = inputs_.texts[i];
      std::vector<float>& rows = states_[i];
      rows.resize(text.size() * static_cast<size_t>(spec.hidden_size));
      const ForwardBatch batch = batch_of(text);
      model->forward_stage(batch, batch.token_ids, keys.view(),
                           {.received = spec.stage.embeds ? nullptr : rows.data(),
                            .handed_on = observer != nullptr ? nullptr : rows.data(),
                            .observer = observer},
                           nullptr);
      done_ += std::ssize(text);
      if (inputs_.progress) inputs_.progress(done_);
    }
    return Status();
  }

  // The tensors of a matrix, all of which have the same inputs.
  Status round(const LayerMatrix& matrix, CheckpointSource& source, LayerInputs& seen,
               LayerReport& report) {
    InputSquares* const squares = seen.find(matrix.kind, matrix.expert);
    std::optional<OutputFactor> factor;
    std::string before;
    for (const WeightBlock& block : matrix.layout->blocks) {
      if (std::exchange(before, block.name) == block.name) continue;  // parts of one tensor
      const int64_t rows = matrix.layout->fused ? matrix.layout->out_features() : block.rows;
      const int64_t shape[] = {rows, matrix.layout->in_features};
      ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, source.find(block.name, shape));
      const auto module = rounded_module(*tensor, format_);
      if (!module) continue;
      std::vector<float> weights(static_cast<size_t>(tensor->num_elements()));
      copy_as_float(*tensor, 0, weights);
      if (squares == nullptr || squares->rows() < least_rows(squares->columns())) {
        ++report.num_unseen;
        ESP_RETURN_IF_ERROR(
            take_plain(*tensor, std::string(*module), weights, seen.largest(matrix.kind)));
        continue;
      }
      if (!factor) {
        const int64_t columns = squares->columns();
        ESP_ASSIGN_OR_RETURN(std::vector<float> sums, squares->take(backend_));
        ESP_ASSIGN_OR_RETURN(factor,
                             OutputFactor::create(backend_, std::move(sums), columns, kDamping));
      }
      ESP_ASSIGN_OR_RETURN(CalibratedMatrix rounded,
                           round_with_feedback(backend_, *factor, format_.kind, weights));
      ++report.num_matrices;
      report.squares.all += rounded.squares.all;
      report.squares.plain += rounded.squares.plain;
      report.squares.calibrated += rounded.squares.calibrated;
      rounded.rounded.input_scale = seen.largest(matrix.kind) / kE4m3Max;
      ESP_RETURN_IF_ERROR(to_.add(std::string(*module), rounded.rounded));
      replace(*tensor, rounded.rounded);
    }
    return Status();
  }

  // A matrix that is rounded number by number, as what is not calibrated is when it is written.
  // largest: of its inputs, 0 where they are not known.
  Status take_plain(const CheckpointTensor& tensor, const std::string& module,
                    std::span<const float> weights, float largest) {
    const bool fixed = format_.kind == CompressedFormat::Kind::kFp8Static;
    if (fixed && largest == 0) return Status();  // it stays as it is
    RoundedRows rounded = round_plainly(backend_, format_.kind, weights, tensor.shape[1]);
    replace(tensor, rounded);
    if (!fixed) return Status();
    rounded.input_scale = largest / kE4m3Max;
    return to_.add(module, rounded);
  }

  void replace(const CheckpointTensor& tensor, const RoundedRows& rounded) {
    std::vector<float>& numbers = replaced_[tensor.name];
    numbers.resize(rounded.codes.size());
    backend_.pool().parallel_for(rounded.rows, 16, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row)
        for (int64_t column = 0; column < rounded.columns; ++column)
          numbers[static_cast<size_t>(row * rounded.columns + column)] = rounded.value(row, column);
    });
    checkpoint_.release(tensor);
  }

  const Checkpoint& checkpoint_;
  const ModelPlan& plan_;
  const CompressedFormat& format_;
  const CalibrationInputs& inputs_;
  kernels::CpuBackend& backend_;
  RoundedMatrices& to_;
  std::vector<std::vector<float>> states_;  // of each text, [tokens, hidden]
  LayerSource::Numbers replaced_;           // of the layer
  int64_t done_ = 0;
};

}  // namespace

// The last layer's rows are nobody's inputs.
int64_t total_steps(const CalibrationInputs& inputs, int64_t num_layers) {
  int64_t tokens = 0;
  for (const auto& text : inputs.texts) tokens += std::ssize(text);
  return tokens * (2 * num_layers - 1);
}

Result<std::vector<LayerReport>> calibrate(const Checkpoint& checkpoint, const ModelPlan& plan,
                                           const CompressedFormat& format,
                                           const CalibrationInputs& inputs, WorkPool& pool,
                                           RoundedMatrices& to) {
  ESP_ASSIGN_OR_RETURN(const auto backend, kernels::CpuBackend::create(pool));
  Calibrator calibrator(checkpoint, plan, format, inputs, *backend, to);
  std::vector<LayerReport> reports;
  for (int32_t layer = 0; layer < std::ssize(plan.spec.layers); ++layer) {
    ESP_ASSIGN_OR_RETURN(reports.emplace_back(), calibrator.run_layer(layer));
  }
  return reports;
}

}  // namespace espalier::calibration
