#include "speech/whisper_weights.h"

#include <string>

#include "checkpoint/convert.h"
#include "speech/weight_reader.h"

namespace espalier::speech {
namespace {

class CpuPacker final : public WeightPacker<CpuFormat> {
 public:
  CpuPacker(kernels::CpuBackend& backend, DType type) : backend_(backend), type_(type) {}

  Result<kernels::PackedMatrix> matrix(std::vector<std::vector<float>> blocks,
                                       int64_t inputs) override {
    std::vector<kernels::WeightRows> rows;
    for (const std::vector<float>& block : blocks) {
      rows.push_back(
          {.data = block.data(), .type = DType::kFloat32, .rows = std::ssize(block) / inputs});
    }
    return kernels::PackedMatrix::pack(backend_,
                                       {.in_features = inputs, .type = type_, .blocks = rows});
  }
  Result<std::vector<float>> vector(std::vector<float> values) override { return values; }

 private:
  kernels::CpuBackend& backend_;
  const DType type_;
};

int64_t bytes_of(const LinearWeights& weights) {
  return static_cast<int64_t>(weights.matrix.size_bytes() + weights.bias.size() * sizeof(float));
}

int64_t bytes_of(const WhisperWeights& w) {
  const auto floats = static_cast<int64_t>(sizeof(float));
  int64_t sum = bytes_of(w.conv1) + bytes_of(w.conv2) +
                static_cast<int64_t>(w.tokens.size_bytes()) +
                floats * (std::ssize(w.source_positions) + std::ssize(w.target_positions));
  const auto add = [&](const auto& layer) {
    sum += bytes_of(layer.attention.qkv) + bytes_of(layer.attention.output) +
           bytes_of(layer.mlp.up) + bytes_of(layer.mlp.down);
  };
  for (const EncoderLayerWeights& layer : w.encoder_layers) add(layer);
  for (const DecoderLayerWeights& layer : w.decoder_layers) {
    add(layer);
    for (const LinearWeights* each :
         {&layer.cross.query, &layer.cross.key, &layer.cross.value, &layer.cross.output}) {
      sum += bytes_of(*each);
    }
  }
  return sum;
}

}  // namespace

CheckpointTensors::CheckpointTensors(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
  if (checkpoint.find("model.decoder.embed_tokens.weight") != nullptr) prefix_ = "model.";
}

bool CheckpointTensors::has(const std::string& name) const {
  return checkpoint_.find(prefix_ + name) != nullptr;
}

Result<std::vector<float>> CheckpointTensors::read(const std::string& name,
                                                   const std::vector<int64_t>& shape) {
  ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, checkpoint_.require(prefix_ + name, shape));
  std::vector<float> out(static_cast<size_t>(tensor->num_elements()));
  copy_as_float(*tensor, 0, out);
  checkpoint_.release(*tensor);
  if (used_.insert(prefix_ + name).second) num_parameters_ += tensor->num_elements();
  return out;
}

Status CheckpointTensors::finish() const {
  for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
    if (used_.contains(tensor.name) || tensor.name == "proj_out.weight") continue;
    return error(StatusCode::kDataLoss, "the checkpoint has a tensor '{}' that Whisper lacks",
                 tensor.name);
  }
  return Status();
}

Result<DType> whisper_matrix_type(const Checkpoint& checkpoint, std::string_view dtype) {
  if (dtype == "float32") return DType::kFloat32;
  if (dtype == "bfloat16") return DType::kBFloat16;
  if (dtype != "auto") {
    return fail(invalid_argument(
        "dtype '{}' is not for a Whisper model: take auto, float32 or bfloat16", dtype));
  }
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (tensor.name.ends_with("embed_tokens.weight")) {
      return tensor.dtype == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
    }
  }
  return DType::kBFloat16;
}

Result<WhisperWeights> load_whisper_weights(kernels::CpuBackend& backend,
                                            const Checkpoint& checkpoint, const WhisperSizes& sizes,
                                            std::string_view dtype) {
  ESP_ASSIGN_OR_RETURN(const DType type, whisper_matrix_type(checkpoint, dtype));
  CheckpointTensors tensors(checkpoint);
  CpuPacker packer(backend, type);
  WhisperWeights out;
  ESP_ASSIGN_OR_RETURN(static_cast<WhisperWeightsOf<CpuFormat>&>(out),
                       WhisperReader<CpuFormat>(tensors, packer, sizes).read());
  ESP_RETURN_IF_ERROR(tensors.finish());
  out.type = type;
  out.num_parameters = tensors.num_parameters();
  out.size_bytes = bytes_of(out);
  return out;
}

}  // namespace espalier::speech
