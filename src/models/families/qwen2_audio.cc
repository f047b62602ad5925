// Qwen2-Audio (Chu et al. 2024): Qwen2's decoder, and Whisper's encoder of sounds, whose rows are
// averaged two by two, normed, and carried to the decoder's width by one matrix.
// Source: transformers, models/qwen2_audio.
#include <fmt/format.h>

#include <cmath>

#include "models/families/clip_vision.h"
#include "models/families/common.h"
#include "models/families/family.h"
#include "models/families/seeing.h"
#include "seams/forward_batch.h"

namespace espalier {
namespace {

// What config.json leaves out: Qwen2Config's defaults as the released models have them.
constexpr std::string_view kTextDefaults = R"({
  "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0})";

constexpr int64_t kAudioPlaceholder = 151646;  // <|AUDIO|>

Result<LayerSpec> read_audio_layer(const JsonObject& audio, int32_t hidden_size) {
  const NormSpec norm{.epsilon = 1e-5f, .kind = NormSpec::Kind::kLayer};
  LayerSpec layer{.input_norm = norm, .post_attention_norm = norm};
  AttentionSpec& a = layer.attention;
  ESP_ASSIGN_OR_RETURN(a.num_heads, read_size_or(audio, "encoder_attention_heads", 20));
  a.num_kv_heads = a.num_heads;
  a.head_dim = hidden_size / a.num_heads;
  if (a.head_dim * a.num_heads != hidden_size)
    return fail(audio.field_error("encoder_attention_heads", "must divide d_model"));
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  a.qkv_bias = a.output_bias = true;
  a.causal = false;
  ESP_ASSIGN_OR_RETURN(layer.mlp.intermediate_size, read_size_or(audio, "encoder_ffn_dim", 5120));
  ESP_ASSIGN_OR_RETURN(layer.mlp.gelu, read_gelu(audio, "activation_function", "gelu"));
  layer.mlp.gated = false;
  layer.mlp.bias = true;
  return layer;
}

Result<PatchesSpec> read_audio_patches(const JsonObject& audio, int32_t hidden_size) {
  SoundSpec sound{.merge = 2, .stem = "audio_tower.conv1"};
  ESP_ASSIGN_OR_RETURN(const int64_t mels, audio.integer_or("num_mel_bins", 128, 1, 1024));
  ESP_ASSIGN_OR_RETURN(const int64_t rows,
                       audio.integer_or("max_source_positions", 1500, sound.merge, 1 << 16));
  sound.num_mels = static_cast<int32_t>(mels);
  sound.frames_max = static_cast<int32_t>(2 * rows);
  // The second convolution's neighbours are the frames of a patch.
  PatchesSpec patches{.patch_size = 1, .channels = hidden_size, .frames = 3};
  patches.bias = true;
  ESP_ASSIGN_OR_RETURN(patches.activation, read_gelu(audio, "activation_function", "gelu"));
  patches.sound = std::move(sound);
  return patches;
}

WeightNames audio_names() {
  WeightNames names;
  const std::string top = "audio_tower.", layer = top + "layers.{}.";
  names.patch_embedding = top + "conv2";
  names.position_embedding = top + "embed_positions";
  names.input_norm = layer + "self_attn_layer_norm";
  names.post_attention_norm = layer + "final_layer_norm";
  names.q = layer + "self_attn.q_proj";
  names.k = layer + "self_attn.k_proj";
  names.v = layer + "self_attn.v_proj";
  names.attention_output = layer + "self_attn.out_proj";
  names.up = layer + "fc1";
  names.down = layer + "fc2";
  names.absent_suffixes = {".self_attn.k_proj.bias"};
  for (const char* part : {"audio_tower.", "multi_modal_projector."})
    names.other_prefixes.emplace_back(part, std::string("model.") + part);
  // The stem is read apart (sound_stem.h).
  names.unused_prefixes = {"audio_tower.conv1.", "model.audio_tower.conv1."};
  return names;
}

}  // namespace

Result<DecoderSpec> make_qwen2_audio_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_nested_text(config, kTextDefaults));
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_qwen2_spec(text));
  ESP_ASSIGN_OR_RETURN(spec.model_type, config.string_or("model_type", "qwen2_audio"));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  nest_text_names(spec.names);
  for (const char* part : {"audio_tower.", "model.audio_tower."})
    spec.names.unused_prefixes.emplace_back(part);
  ESP_ASSIGN_OR_RETURN(const int64_t named,
                       config.integer_or("audio_token_index", kAudioPlaceholder, 0, 1 << 30));
  ESP_ASSIGN_OR_RETURN(const int64_t id, config.integer_or("audio_token_id", named, 0, 1 << 30));
  if (id >= spec.vocab_size || spec.vocab_size > kFirstSpanKey) {
    return fail(config.field_error(
        "audio_token_index", fmt::format("is {}, which must be a token of a vocabulary of at most "
                                         "{}, and there are {}",
                                         id, kFirstSpanKey, spec.vocab_size)));
  }
  spec.images = ImagesSpec{.placeholder = static_cast<TokenId>(id), .sounds = true};
  return spec;
}

Result<DecoderSpec> make_qwen2_audio_encoder(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const JsonObject audio, config.object("audio_config"));
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_nested_text(config, kTextDefaults));
  DecoderSpec spec;
  spec.model_type = "qwen2_audio_encoder";
  ESP_ASSIGN_OR_RETURN(spec.hidden_size, read_size_or(audio, "d_model", 1280));
  ESP_ASSIGN_OR_RETURN(spec.patches, read_audio_patches(audio, spec.hidden_size));
  spec.context_length = spec.learned_positions = spec.patches->sound->rows_max();
  ESP_ASSIGN_OR_RETURN(const LayerSpec layer, read_audio_layer(audio, spec.hidden_size));
  ESP_ASSIGN_OR_RETURN(const int64_t depth, audio.integer_or("encoder_layers", 32, 1, 4096));
  spec.layers.assign(static_cast<size_t>(depth), layer);
  spec.names = audio_names();
  leave_text_unread(spec.names);
  ProjectorSpec projector{.merge = spec.patches->square(), .how = ProjectorSpec::Merge::kMean};
  projector.norm = NormSpec{.epsilon = 1e-5f, .kind = NormSpec::Kind::kLayer};
  projector.norm_name = "audio_tower.layer_norm";
  ESP_ASSIGN_OR_RETURN(const int32_t outputs, read_size(text, "hidden_size"));
  projector.layers = {{"multi_modal_projector.linear", outputs, true}};
  spec.projector = std::move(projector);
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  return spec;
}

}  // namespace espalier
