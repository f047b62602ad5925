#include "tiers/block_io.h"

namespace espalier {

Result<std::unique_ptr<BlockIo>> make_uring_io(int, int32_t) {
  return fail(error(StatusCode::kUnimplemented, "this build has no io_uring (liburing-dev)"));
}

}  // namespace espalier
