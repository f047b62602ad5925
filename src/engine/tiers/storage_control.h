// Storage of an engine's tiers that is shown, attached, detached or emptied while the engine runs.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "engine/config.h"

namespace espalier {

class KvTiers;

struct StorageRequest {
  enum class Action { kShow, kAttach, kDetach, kClear };
  Action action = Action::kShow;
  std::string backend;  // kAttach: "file" or "redis"; kDetach, kClear: one of them, or "" for all
  RedisServer redis;    // of kAttach "redis"
};

// One storage that is attached.
struct StorageReport {
  std::string backend;
  std::string problem;  // why it cannot be used now; "": it can
};

// Does what is requested, and returns what is attached then. Blocks: attaching opens files or
// connects, detaching stores what is on its way. kFailedPrecondition without tiers, and for a
// backend that is attached already or is not; kInvalidArgument for an unknown one; else failures
// are those of opening. `tiers`: null where there are none. Thread-safe.
Result<std::vector<StorageReport>> control_storage(KvTiers* tiers, const TierSettings& settings,
                                                   const StorageRequest& request);

}  // namespace espalier
