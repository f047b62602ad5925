#include "speech/whisper_weights.h"

#include <set>
#include <string>

#include "checkpoint/convert.h"

namespace espalier::speech {
namespace {

// Reads tensors by their names without the prefix ("model.") that they have beside a head.
class Reader {
 public:
  Reader(kernels::CpuBackend& backend, const Checkpoint& checkpoint, DType type)
      : backend_(backend), checkpoint_(checkpoint), type_(type) {
    if (checkpoint.find("model.decoder.embed_tokens.weight") != nullptr) prefix_ = "model.";
  }

  bool has(const std::string& name) const { return checkpoint_.find(prefix_ + name) != nullptr; }

  Status floats(const std::string& name, std::vector<int64_t> shape, std::vector<float>& out) {
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor,
                         checkpoint_.require(prefix_ + name, shape));
    out.resize(static_cast<size_t>(tensor->num_elements()));
    copy_as_float(*tensor, 0, out);
    checkpoint_.release(*tensor);
    if (used_.insert(prefix_ + name).second) num_parameters_ += tensor->num_elements();
    return Status();
  }

  // The bias where the tensor is there; else none, or zeros.
  Status linear(const std::vector<std::string>& names, int64_t outputs, int64_t inputs,
                LinearWeights& out) {
    std::vector<std::vector<float>> blocks(names.size());
    std::vector<kernels::WeightRows> rows;
    for (size_t i = 0; i < names.size(); ++i) {
      ESP_RETURN_IF_ERROR(floats(names[i] + ".weight", {outputs, inputs}, blocks[i]));
      rows.push_back({.data = blocks[i].data(), .type = DType::kFloat32, .rows = outputs});
      std::vector<float> bias(static_cast<size_t>(outputs));
      if (has(names[i] + ".bias")) {
        ESP_RETURN_IF_ERROR(floats(names[i] + ".bias", {outputs}, bias));
      }
      out.bias.insert(out.bias.end(), bias.begin(), bias.end());
    }
    return pack(rows, inputs, out.matrix);
  }

  // A convolution over three neighbours, as a matrix of their inputs one behind the other.
  Status convolution(const std::string& name, int64_t outputs, int64_t inputs, LinearWeights& out) {
    std::vector<float> stored;
    ESP_RETURN_IF_ERROR(floats(name + ".weight", {outputs, inputs, 3}, stored));
    ESP_RETURN_IF_ERROR(floats(name + ".bias", {outputs}, out.bias));
    std::vector<float> ordered(stored.size());
    for (int64_t row = 0; row < outputs; ++row) {
      for (int64_t in = 0; in < inputs; ++in) {
        for (int64_t k = 0; k < 3; ++k) {
          ordered[static_cast<size_t>((row * 3 + k) * inputs + in)] =
              stored[static_cast<size_t>((row * inputs + in) * 3 + k)];
        }
      }
    }
    const kernels::WeightRows rows{
        .data = ordered.data(), .type = DType::kFloat32, .rows = outputs};
    return pack({&rows, 1}, 3 * inputs, out.matrix);
  }

  Status matrix(const std::string& name, int64_t rows, int64_t columns,
                kernels::PackedMatrix& out) {
    std::vector<float> stored;
    ESP_RETURN_IF_ERROR(floats(name, {rows, columns}, stored));
    const kernels::WeightRows all{.data = stored.data(), .type = DType::kFloat32, .rows = rows};
    return pack({&all, 1}, columns, out);
  }

  Status norm(const std::string& name, int64_t width, LayerNormWeights& out) {
    ESP_RETURN_IF_ERROR(floats(name + ".weight", {width}, out.weight));
    return floats(name + ".bias", {width}, out.bias);
  }

  // The head may be stored beside the embedding that it equals.
  Status finish() const {
    for (const CheckpointTensor& tensor : checkpoint_.tensors()) {
      if (used_.contains(tensor.name) || tensor.name == "proj_out.weight") continue;
      return error(StatusCode::kDataLoss, "the checkpoint has a tensor '{}' that Whisper lacks",
                   tensor.name);
    }
    return Status();
  }

  int64_t num_parameters() const { return num_parameters_; }

 private:
  Status pack(std::span<const kernels::WeightRows> rows, int64_t inputs,
              kernels::PackedMatrix& out) {
    ESP_ASSIGN_OR_RETURN(
        out, kernels::PackedMatrix::pack(backend_,
                                         {.in_features = inputs, .type = type_, .blocks = rows}));
    return Status();
  }

  kernels::CpuBackend& backend_;
  const Checkpoint& checkpoint_;
  const DType type_;
  std::string prefix_;
  std::set<std::string> used_;
  int64_t num_parameters_ = 0;
};

Status read_self_attention(Reader& reader, const std::string& layer, int64_t width,
                           SelfAttentionWeights& out) {
  const std::string part = layer + "self_attn.";
  ESP_RETURN_IF_ERROR(reader.norm(layer + "self_attn_layer_norm", width, out.norm));
  ESP_RETURN_IF_ERROR(
      reader.linear({part + "q_proj", part + "k_proj", part + "v_proj"}, width, width, out.qkv));
  return reader.linear({part + "out_proj"}, width, width, out.output);
}

Status read_cross_attention(Reader& reader, const std::string& layer, int64_t width,
                            CrossAttentionWeights& out) {
  const std::string part = layer + "encoder_attn.";
  ESP_RETURN_IF_ERROR(reader.norm(layer + "encoder_attn_layer_norm", width, out.norm));
  ESP_RETURN_IF_ERROR(reader.linear({part + "q_proj"}, width, width, out.query));
  ESP_RETURN_IF_ERROR(reader.linear({part + "k_proj"}, width, width, out.key));
  ESP_RETURN_IF_ERROR(reader.linear({part + "v_proj"}, width, width, out.value));
  return reader.linear({part + "out_proj"}, width, width, out.output);
}

Status read_mlp(Reader& reader, const std::string& layer, int64_t width, int64_t intermediate,
                MlpWeights& out) {
  ESP_RETURN_IF_ERROR(reader.norm(layer + "final_layer_norm", width, out.norm));
  ESP_RETURN_IF_ERROR(reader.linear({layer + "fc1"}, intermediate, width, out.up));
  return reader.linear({layer + "fc2"}, width, intermediate, out.down);
}

Status read_encoder(Reader& reader, const WhisperSizes& sizes, WhisperWeights& out) {
  const int64_t width = sizes.width;
  ESP_RETURN_IF_ERROR(reader.convolution("encoder.conv1", width, sizes.num_mels, out.conv1));
  ESP_RETURN_IF_ERROR(reader.convolution("encoder.conv2", width, width, out.conv2));
  ESP_RETURN_IF_ERROR(reader.floats("encoder.embed_positions.weight",
                                    {sizes.max_source_positions, width}, out.source_positions));
  out.encoder_layers.resize(static_cast<size_t>(sizes.encoder.num_layers));
  for (size_t i = 0; i < out.encoder_layers.size(); ++i) {
    const std::string layer = "encoder.layers." + std::to_string(i) + ".";
    ESP_RETURN_IF_ERROR(read_self_attention(reader, layer, width, out.encoder_layers[i].attention));
    ESP_RETURN_IF_ERROR(
        read_mlp(reader, layer, width, sizes.encoder.intermediate_size, out.encoder_layers[i].mlp));
  }
  return reader.norm("encoder.layer_norm", width, out.encoder_norm);
}

Status read_decoder(Reader& reader, const WhisperSizes& sizes, WhisperWeights& out) {
  const int64_t width = sizes.width;
  ESP_RETURN_IF_ERROR(
      reader.matrix("decoder.embed_tokens.weight", sizes.vocab_size, width, out.tokens));
  ESP_RETURN_IF_ERROR(reader.floats("decoder.embed_positions.weight",
                                    {sizes.max_target_positions, width}, out.target_positions));
  out.decoder_layers.resize(static_cast<size_t>(sizes.decoder.num_layers));
  for (size_t i = 0; i < out.decoder_layers.size(); ++i) {
    const std::string layer = "decoder.layers." + std::to_string(i) + ".";
    DecoderLayerWeights& weights = out.decoder_layers[i];
    ESP_RETURN_IF_ERROR(read_self_attention(reader, layer, width, weights.attention));
    ESP_RETURN_IF_ERROR(read_cross_attention(reader, layer, width, weights.cross));
    ESP_RETURN_IF_ERROR(
        read_mlp(reader, layer, width, sizes.decoder.intermediate_size, weights.mlp));
  }
  return reader.norm("decoder.layer_norm", width, out.decoder_norm);
}

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
  WhisperWeights out;
  ESP_ASSIGN_OR_RETURN(out.type, whisper_matrix_type(checkpoint, dtype));
  Reader reader(backend, checkpoint, out.type);
  ESP_RETURN_IF_ERROR(read_encoder(reader, sizes, out));
  ESP_RETURN_IF_ERROR(read_decoder(reader, sizes, out));
  ESP_RETURN_IF_ERROR(reader.finish());
  out.num_parameters = reader.num_parameters();
  out.size_bytes = bytes_of(out);
  return out;
}

}  // namespace espalier::speech
