// Which layers of a KvView the kernels of this build take. Stateless; thread-safe.
#pragma once

#include "base/status.h"
#include "seams/kv_view.h"

namespace espalier::kernels {

// kUnimplemented for a kind, an element type or scales that no kernel takes yet, with the reason.
Status check_kv_layer(const KvView::Layer& layer);

// The same for each layer of a view; the message names the layer. Executors call it once, where
// they bind the view, so that no kernel misreads memory of another kind.
Status check_kv_view(const KvView& view);

}  // namespace espalier::kernels
