#include "kernels/kv_layer.h"

#include <fmt/format.h>

namespace espalier::kernels {

Status check_kv_layer(const KvView::Layer& layer) {
  if (layer.kind == KvLayerKind::kRecurrentState)
    return error(StatusCode::kUnimplemented,
                 "no kernel of this build takes a recurrent state; use a model whose layers keep "
                 "keys and values");
  if (layer.type != KvType::kFloat32 && layer.type != KvType::kBFloat16)
    return error(StatusCode::kUnimplemented,
                 "no kernel of this build takes keys and values of {}; use float32 or bfloat16",
                 kv_type_name(layer.type));
  if (layer.k_scales != nullptr || layer.v_scales != nullptr)
    return error(StatusCode::kUnimplemented,
                 "no kernel of this build takes scales of keys and values");
  return Status();
}

Status check_kv_view(const KvView& view) {
  for (size_t i = 0; i < view.layers.size(); ++i)
    if (const Status status = check_kv_layer(view.layers[i]); !status.ok())
      return status.with_context(fmt::format("KV layer {}", i));
  return Status();
}

}  // namespace espalier::kernels
