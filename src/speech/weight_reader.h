// How a Whisper model's tensors become the weights of a back end: which tensors there are, by name
// and shape, stands here once. A format states how matrices and vectors are held
// (WhisperWeightsOf).
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "speech/whisper_config.h"
#include "speech/whisper_weights.h"

namespace espalier::speech {

// Tensors by their names without the prefix ("model.") that they have beside a head.
class TensorSource {
 public:
  using Floats = std::vector<float>;
  virtual ~TensorSource() = default;
  virtual bool has(const std::string& name) const = 0;
  // Fails by the tensor that is missing or has another shape.
  virtual Result<Floats> read(const std::string& name, const std::vector<int64_t>& shape) = 0;
};

// Those of a checkpoint, which is borrowed.
class CheckpointTensors final : public TensorSource {
 public:
  explicit CheckpointTensors(const Checkpoint& checkpoint);
  bool has(const std::string& name) const override;
  Result<Floats> read(const std::string& name, const std::vector<int64_t>& shape) override;
  // Fails where a tensor was not read. The head may be stored beside the embedding that it equals.
  Status finish() const;
  int64_t num_parameters() const { return num_parameters_; }

 private:
  const Checkpoint& checkpoint_;
  std::string prefix_;
  std::set<std::string> used_;
  int64_t num_parameters_ = 0;
};

// What a format makes of numbers.
template <typename Format>
class WeightPacker {
 public:
  virtual ~WeightPacker() = default;
  // Matrices of `inputs` columns, whose rows stand one behind the other.
  virtual Result<typename Format::Matrix> matrix(std::vector<std::vector<float>> blocks,
                                                 int64_t inputs) = 0;
  virtual Result<typename Format::Vector> vector(std::vector<float> values) = 0;
};

template <typename Format>
class WhisperReader {
 public:
  WhisperReader(TensorSource& source, WeightPacker<Format>& packer, const WhisperSizes& sizes)
      : source_(source), packer_(packer), sizes_(sizes) {}

  Result<WhisperWeightsOf<Format>> read() {
    WhisperWeightsOf<Format> out;
    ESP_RETURN_IF_ERROR(read_encoder(out));
    ESP_RETURN_IF_ERROR(read_decoder(out));
    return out;
  }

 private:
  using Names = std::vector<std::string>;

  Status vector(const std::string& name, const std::vector<int64_t>& shape,
                typename Format::Vector& out) {
    ESP_ASSIGN_OR_RETURN(std::vector<float> values, source_.read(name, shape));
    ESP_ASSIGN_OR_RETURN(out, packer_.vector(std::move(values)));
    return Status();
  }

  // The bias where the tensor is there, else zeros.
  Status linear(const Names& names, int64_t outputs, int64_t inputs, LinearOf<Format>& out) {
    std::vector<std::vector<float>> blocks;
    std::vector<float> biases;
    for (const std::string& name : names) {
      ESP_ASSIGN_OR_RETURN(blocks.emplace_back(),
                           source_.read(name + ".weight", {outputs, inputs}));
      std::vector<float> bias(static_cast<size_t>(outputs));
      if (source_.has(name + ".bias")) {
        ESP_ASSIGN_OR_RETURN(bias, source_.read(name + ".bias", {outputs}));
      }
      biases.insert(biases.end(), bias.begin(), bias.end());
    }
    ESP_ASSIGN_OR_RETURN(out.bias, packer_.vector(std::move(biases)));
    ESP_ASSIGN_OR_RETURN(out.matrix, packer_.matrix(std::move(blocks), inputs));
    return Status();
  }

  // A convolution over three neighbours, as a matrix of their inputs one behind the other.
  Status convolution(const std::string& name, int64_t outputs, int64_t inputs,
                     LinearOf<Format>& out) {
    ESP_ASSIGN_OR_RETURN(const std::vector<float> stored,
                         source_.read(name + ".weight", {outputs, inputs, 3}));
    ESP_RETURN_IF_ERROR(vector(name + ".bias", {outputs}, out.bias));
    std::vector<float> ordered(stored.size());
    for (int64_t row = 0; row < outputs; ++row) {
      for (int64_t in = 0; in < inputs; ++in) {
        for (int64_t k = 0; k < 3; ++k) {
          ordered[static_cast<size_t>((row * 3 + k) * inputs + in)] =
              stored[static_cast<size_t>((row * inputs + in) * 3 + k)];
        }
      }
    }
    ESP_ASSIGN_OR_RETURN(out.matrix, packer_.matrix({std::move(ordered)}, 3 * inputs));
    return Status();
  }

  Status norm(const std::string& name, LayerNormOf<Format>& out) {
    ESP_RETURN_IF_ERROR(vector(name + ".weight", {sizes_.width}, out.weight));
    return vector(name + ".bias", {sizes_.width}, out.bias);
  }

  Status read_attention(const std::string& layer, SelfAttentionOf<Format>& out) {
    const int64_t width = sizes_.width;
    const std::string part = layer + "self_attn.";
    ESP_RETURN_IF_ERROR(norm(layer + "self_attn_layer_norm", out.norm));
    ESP_RETURN_IF_ERROR(
        linear({part + "q_proj", part + "k_proj", part + "v_proj"}, width, width, out.qkv));
    return linear({part + "out_proj"}, width, width, out.output);
  }

  Status read_cross_attention(const std::string& layer, CrossAttentionOf<Format>& out) {
    const int64_t width = sizes_.width;
    const std::string part = layer + "encoder_attn.";
    ESP_RETURN_IF_ERROR(norm(layer + "encoder_attn_layer_norm", out.norm));
    ESP_RETURN_IF_ERROR(linear({part + "q_proj"}, width, width, out.query));
    ESP_RETURN_IF_ERROR(linear({part + "k_proj"}, width, width, out.key));
    ESP_RETURN_IF_ERROR(linear({part + "v_proj"}, width, width, out.value));
    return linear({part + "out_proj"}, width, width, out.output);
  }

  Status read_mlp(const std::string& layer, int64_t intermediate, MlpOf<Format>& out) {
    ESP_RETURN_IF_ERROR(norm(layer + "final_layer_norm", out.norm));
    ESP_RETURN_IF_ERROR(linear({layer + "fc1"}, intermediate, sizes_.width, out.up));
    return linear({layer + "fc2"}, sizes_.width, intermediate, out.down);
  }

  Status read_encoder(WhisperWeightsOf<Format>& out) {
    const int64_t width = sizes_.width;
    ESP_RETURN_IF_ERROR(convolution("encoder.conv1", width, sizes_.num_mels, out.conv1));
    ESP_RETURN_IF_ERROR(convolution("encoder.conv2", width, width, out.conv2));
    ESP_RETURN_IF_ERROR(vector("encoder.embed_positions.weight",
                               {sizes_.max_source_positions, width}, out.source_positions));
    out.encoder_layers.resize(static_cast<size_t>(sizes_.encoder.num_layers));
    for (size_t i = 0; i < out.encoder_layers.size(); ++i) {
      const std::string layer = "encoder.layers." + std::to_string(i) + ".";
      ESP_RETURN_IF_ERROR(read_attention(layer, out.encoder_layers[i].attention));
      ESP_RETURN_IF_ERROR(
          read_mlp(layer, sizes_.encoder.intermediate_size, out.encoder_layers[i].mlp));
    }
    return norm("encoder.layer_norm", out.encoder_norm);
  }

  Status read_decoder(WhisperWeightsOf<Format>& out) {
    const int64_t width = sizes_.width;
    {
      ESP_ASSIGN_OR_RETURN(std::vector<float> tokens,
                           source_.read("decoder.embed_tokens.weight", {sizes_.vocab_size, width}));
      ESP_ASSIGN_OR_RETURN(out.tokens, packer_.matrix({std::move(tokens)}, width));
    }
    ESP_RETURN_IF_ERROR(vector("decoder.embed_positions.weight",
                               {sizes_.max_target_positions, width}, out.target_positions));
    out.decoder_layers.resize(static_cast<size_t>(sizes_.decoder.num_layers));
    for (size_t i = 0; i < out.decoder_layers.size(); ++i) {
      const std::string layer = "decoder.layers." + std::to_string(i) + ".";
      DecoderLayerOf<Format>& weights = out.decoder_layers[i];
      ESP_RETURN_IF_ERROR(read_attention(layer, weights.attention));
      ESP_RETURN_IF_ERROR(read_cross_attention(layer, weights.cross));
      ESP_RETURN_IF_ERROR(read_mlp(layer, sizes_.decoder.intermediate_size, weights.mlp));
    }
    return norm("decoder.layer_norm", out.decoder_norm);
  }

  TensorSource& source_;
  WeightPacker<Format>& packer_;
  const WhisperSizes& sizes_;
};

}  // namespace espalier::speech
