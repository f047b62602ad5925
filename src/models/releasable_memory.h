// Memory that a model or its cache gives back to the system while the engine serves nobody, and
// takes again before it serves.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace espalier {

// One thread at a time. What holds such memory (an Executor, ModelWeights) implements this beside
// its own interface; one that does not keeps its memory.
class ReleasableMemory {
 public:
  virtual ~ReleasableMemory() = default;

  // Gives it back, and returns its size in bytes. REQUIRES: it is not released, and no step runs
  // until restore_memory() has succeeded.
  virtual Result<int64_t> release_memory() = 0;

  // Takes it again. After a failure it is still released. REQUIRES: it is released.
  virtual Status restore_memory() = 0;
};

}  // namespace espalier
