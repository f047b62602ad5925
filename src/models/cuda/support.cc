#include "models/cuda/support.h"

#include <tuple>

#include "kernels/attention/bidirectional.h"
#include "kernels/attention/cuda.h"

namespace espalier {
namespace {

// Kernels read vectors of eight elements along these sizes.
Status check_sizes(const DecoderSpec& spec, const LayerSpec& layer) {
  const auto eights = [&](const char* what, int32_t size) -> Status {
    if (size % 8 == 0) return Status();
    return error(StatusCode::kUnimplemented,
                 "{}: {} is {}, but must be a multiple of 8 on the GPU; use --device cpu",
                 spec.architecture, what, size);
  };
  ESP_RETURN_IF_ERROR(eights("hidden_size", spec.hidden_size));
  ESP_RETURN_IF_ERROR(eights("head_dim", layer.attention.head_dim));
  if (!layer.experts) return eights("intermediate_size", layer.mlp.intermediate_size);
  ESP_RETURN_IF_ERROR(
      eights("the experts' intermediate_size", layer.experts->expert.intermediate_size));
  if (!layer.experts->shared) return Status();
  return eights("the shared expert's intermediate_size", layer.experts->shared->intermediate_size);
}

Status check_latent(const DecoderSpec& spec, const LatentSpec& latent) {
  const auto [queries, rank, nope, rope, value] = std::tuple(
      latent.query_rank, latent.rank, latent.nope_dim, latent.rope_dim, latent.value_dim);
  if ((queries | rank | nope | rope) % 8 == 0 && value % 4 == 0) return Status();
  return error(StatusCode::kUnimplemented,
               "{}: the sizes of latent attention ({}, {}, {}, {}, {}) must be multiples of 8 on "
               "the GPU; use "
               "--device cpu",
               spec.architecture, queries, rank, nope, rope, value);
}

// Positions of a decoder and places of an encoder's rows have three components, or one.
Status check_ropes(const DecoderSpec& spec) {
  for (const RopeSpec& rope : spec.ropes) {
    if (rope.sections.empty() || rope.sections.size() == 3) continue;
    return error(StatusCode::kUnimplemented,
                 "{}: rotary positions of {} components do not run on the GPU yet; use --device "
                 "cpu",
                 spec.architecture, rope.sections.size());
  }
  return Status();
}

}  // namespace

Status check_cuda_support(const DecoderSpec& spec) {
  ESP_RETURN_IF_ERROR(check_ropes(spec));
  if (num_cross_layers(spec) > 0) {
    return error(StatusCode::kUnimplemented,
                 "{}: cross attention does not run on the GPU yet; use --device cpu",
                 spec.architecture);
  }
  if (spec.pooling && !spec.pooling->head.empty()) {
    return error(StatusCode::kUnimplemented,
                 "{}: classes and rewards of texts do not run on the GPU yet, embeddings do; use "
                 "--device cpu",
                 spec.architecture);
  }
  for (const LayerSpec& layer : spec.layers) {
    ESP_RETURN_IF_ERROR(check_sizes(spec, layer));
    if (layer.attention.latent) {
      ESP_RETURN_IF_ERROR(check_latent(spec, *layer.attention.latent));
    }
    const int32_t most = kernels::cuda::kMaxHeadDim;
    if (layer.attention.head_dim > most) {
      return error(StatusCode::kUnimplemented,
                   "head_dim is {}, but the GPU takes at most {}; use --device cpu",
                   layer.attention.head_dim, most);
    }
  }
  return Status();
}

Status check_cuda_encoder(const DecoderSpec& spec) {
  ESP_RETURN_IF_ERROR(check_ropes(spec));
  const auto refuse = [&](std::string_view what) {
    return error(StatusCode::kUnimplemented,
                 "{}: its encoder of pictures has {}, which does not run on the GPU yet; use "
                 "--device cpu",
                 spec.architecture, what);
  };
  if (!spec.patches || !spec.projector) return refuse("no patches or no projector");
  if (spec.hidden_size % 8 != 0) return refuse("a hidden size that is no multiple of 8");
  const bool any_size = spec.patches->num_patches == 0;
  if (any_size && (spec.patches->class_token || spec.tiles))
    return refuse("class rows or tiles of any size");
  if (spec.tiles && spec.tiles->joint) return refuse("tiles that see each other");
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& a = layer.attention;
    if (a.causal || a.latent || a.sliding_window > 0 || a.softcap > 0 || a.sinks)
      return refuse("such attention");
    const bool rotary = any_size && !spec.patches->sound;
    if (a.rope.has_value() != rotary || (a.windowed && !any_size))
      return refuse("rotary positions or windows in pictures of one size, or neither in others");
    if (a.rope && spec.ropes[static_cast<size_t>(*a.rope)].sections.empty())
      return refuse("rotary positions of one component");
    if (a.num_heads != a.num_kv_heads) return refuse("heads that share keys and values");
    if (a.head_dim > kernels::cuda::kBidirectionalHeadDimMax) return refuse("heads that wide");
    if (layer.experts) return refuse("experts");
  }
  for (const PoolingSpec::HeadLayer& layer : spec.projector->layers) {
    if (layer.outputs % 8 != 0) return refuse("a projector whose outputs are no multiple of 8");
  }
  if (!spec.projector->deepstack.empty() && spec.projector->merge == 1)
    return refuse("states of several layers whose rows are not merged");
  return Status();
}

Status check_cuda_text_encoder(const DecoderSpec& spec) {
  const auto refuse = [&](std::string_view what) {
    return error(StatusCode::kUnimplemented,
                 "{} has {}, which does not run on the GPU yet; use --device cpu",
                 spec.architecture, what);
  };
  if (spec.hidden_size % 8 != 0) return refuse("a hidden size that is no multiple of 8");
  for (const LayerSpec& layer : spec.layers) {
    if (layer.attention.head_dim > kernels::cuda::kBidirectionalHeadDimMax)
      return refuse("heads that wide");
    if (!spec.names.gate_up.empty() && layer.mlp.intermediate_size % 8 != 0)
      return refuse("an MLP whose size is no multiple of 8");
  }
  if (spec.projector && spec.projector->layers.back().outputs % 8 != 0)
    return refuse("vectors of tokens whose size is no multiple of 8");
  return Status();
}

}  // namespace espalier
