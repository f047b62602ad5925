// A build without CUDA: no device was opened, so nobody comes here.
#include "engine/nodes/gpu_part.h"

namespace espalier {

Result<std::unique_ptr<GpuNodePart>> GpuNodePart::start(const EngineConfig&, const SystemInfo&,
                                                        nodes::NodeGroup&) {
  return fail(error(StatusCode::kUnavailable, "this build has no CUDA back end"));
}

}  // namespace espalier
