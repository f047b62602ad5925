// Gives the pages of a pool in the host's memory back to the system.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "seams/kv_view.h"

namespace espalier {

// Address space stays, so views do; contents are lost: the system backs the pages again, with
// zeros, as steps write them. Returns the size of what was given back, which counts pages that were
// never written too. kInternal where the system refuses.
Result<int64_t> give_back_planes(const KvView& view);

}  // namespace espalier
