#include "kernels/kv_layer.h"

#include <fmt/format.h>

namespace espalier::kernels {

Status check_kv_layer(const KvView::Layer& layer, KvKernels kernels) {
  if (layer.kind == KvLayerKind::kRecurrentState)
    return error(StatusCode::kUnimplemented,
                 "no kernel of this build takes a recurrent state; use a model whose layers keep "
                 "keys and values");
  if (layer.type == KvType::kFloat8E4M3 && kernels == KvKernels::kCpu)
    return error(StatusCode::kUnimplemented,
                 "the CPU takes no keys and values of {}; use float32 or bfloat16, or --device "
                 "cuda",
                 kv_type_name(layer.type));
  if (layer.k_scales != nullptr || layer.v_scales != nullptr)
    return error(StatusCode::kUnimplemented,
                 "no kernel of this build takes scales of keys and values");
  return Status();
}

Status check_kv_view(const KvView& view, KvKernels kernels) {
  for (size_t i = 0; i < view.layers.size(); ++i)
    if (const Status status = check_kv_layer(view.layers[i], kernels); !status.ok())
      return status.with_context(fmt::format("KV layer {}", i));
  return Status();
}

}  // namespace espalier::kernels
