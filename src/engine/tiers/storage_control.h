// Storage of an engine's tiers that is shown, attached, detached or emptied while the engine runs,
// and files to which cached pages are exported and from which they are imported (page_export.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/config.h"
#include "engine/tiers/cached_prefixes.h"
#include "seams/cache_nodes.h"

namespace espalier {

class KvTiers;

struct StorageRequest {
  enum class Action { kShow, kAttach, kDetach, kClear, kExport, kImport };
  Action action = Action::kShow;
  std::string
      backend;  // kAttach: "file", "redis" or "s3"; kDetach, kClear: one of them, or "" for all
  RedisServer redis;             // of kAttach "redis"
  S3Server s3;                   // of kAttach "s3"
  std::filesystem::path file;    // of kExport and kImport
  std::vector<CacheNode> nodes;  // of kExport: the cache's, with all their tokens
  PrefixFilter filter;           // of kExport: which prefixes of these
};

// One storage that is attached; or, of kExport and kImport, the file.
struct StorageReport {
  std::string backend;      // "" of a file
  std::string problem;      // why it cannot be used now; "": it can
  int64_t num_pages = 0;    // exported, or imported; of a file, as all below
  int64_t num_tokens = 0;   // of these pages
  int64_t num_missing = 0;  // pages that no tier has, or has taken
  int64_t num_bytes = 0;    // of the file
};

// Does what is requested, and returns what is attached then. Blocks: attaching opens files or
// connects, detaching stores what is on its way, exports and imports read and write all their
// pages. kFailedPrecondition without tiers, and for a
// backend that is attached already or is not; kInvalidArgument for an unknown one; else failures
// are those of opening. `tiers`: null where there are none. Thread-safe.
Result<std::vector<StorageReport>> control_storage(KvTiers* tiers, const TierSettings& settings,
                                                   const StorageRequest& request);

}  // namespace espalier
