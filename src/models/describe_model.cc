#include <algorithm>

#include "models/model_plan.h"

namespace espalier {

ModelInfo describe_model(const DecoderSpec& spec) {
  const AttentionSpec& attention = spec.layers.at(0).attention;
  ModelInfo info;
  info.architecture = spec.architecture;
  info.model_type = spec.model_type;
  info.vocab_size = spec.vocab_size;
  info.context_length = spec.context_length;
  info.hidden_size = spec.hidden_size;
  info.num_layers = static_cast<int32_t>(spec.layers.size());
  info.num_kv_heads = attention.num_kv_heads;
  info.head_dim = attention.head_dim;
  info.kv_planes = attention.latent ? 1 : 2;
  for (const LayerSpec& layer : spec.layers) {
    info.window_layers.push_back(layer.attention.sliding_window > 0);
    info.sliding_window = std::max(info.sliding_window, layer.attention.sliding_window);
  }
  if (info.sliding_window == 0) info.window_layers.clear();
  info.num_parameters = spec.num_parameters();
  info.eos_ids = spec.eos_ids;
  if (spec.control_vectors != nullptr) info.control_vectors = spec.control_vectors->names();
  if (spec.images) {
    info.images = ImagesInfo{.placeholder = spec.images->placeholder,
                             .num_rows = spec.images->num_rows,
                             .width = static_cast<int32_t>(spec.span_width()),
                             .mark = spec.images->mark,
                             .marked = spec.images->marked,
                             .line_end = spec.images->line_end,
                             .picture_end = spec.images->picture_end,
                             .video_placeholder = spec.images->video_placeholder,
                             .grid_begin = spec.images->grid_begin,
                             .grid_end = spec.images->grid_end,
                             .bidirectional = spec.images->bidirectional,
                             .num_cross_layers = num_cross_layers(spec),
                             .sounds = spec.images->sounds};
  }
  if (spec.pooling) {
    info.pooled = PooledInfo{.size = spec.pooled_size(),
                             .all_tokens = spec.pooling->kind == PoolingSpec::Kind::kMean,
                             .normalize = spec.pooling->normalize,
                             .is_scores = !spec.pooling->labels.empty(),
                             .labels = spec.pooling->labels,
                             .each_token = spec.pooling->kind == PoolingSpec::Kind::kEach,
                             .pairs = spec.texts && spec.texts->pairs,
                             .sigmoid = spec.texts && spec.texts->sigmoid};
  }
  return info;
}

}  // namespace espalier
