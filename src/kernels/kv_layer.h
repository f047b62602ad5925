// Which layers of a KvView the kernels of this build take. Stateless; thread-safe.
#pragma once

#include "base/status.h"
#include "seams/kv_view.h"

namespace espalier::kernels {

enum class KvKernels { kCpu, kCuda };  // whose kernels read and write the layers

// kUnimplemented for a kind, an element type or scales that no kernel takes yet, with the reason.
// float8_e4m3 is the GPU's alone.
Status check_kv_layer(const KvView::Layer& layer, KvKernels kernels = KvKernels::kCpu);

// The same for each layer of a view; the message names the layer. Executors call it once, where
// they bind the view, so that no kernel misreads memory of another kind.
Status check_kv_view(const KvView& view, KvKernels kernels);

}  // namespace espalier::kernels
