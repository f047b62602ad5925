// Files of cached pages (tiers/page_file.h): what the device's cache has is exported from the tiers
// to a file, and imported into the tiers of another server of the same model, whose requests load
// it from there as if it had been computed.
#pragma once

#include <filesystem>
#include <span>

#include "base/status.h"
#include "engine/tiers/storage_control.h"

namespace espalier {

class KvTiers;

// Writes the pages of the prefixes that the filter selects, each once. Pages that no tier has are
// counted as missing, with those behind them. kFailedPrecondition where the tiers do not have every
// page of the cache (--hicache-write-policy). Blocks.
Result<StorageReport> export_pages(KvTiers& all, const StorageRequest& request);

// Checks the whole file, then stores its pages in every tier; the host's memory takes no more of
// them than it has room for. kDataLoss and kFailedPrecondition are those of PageFileReader, and
// then no page is stored. Blocks.
Result<StorageReport> import_pages(KvTiers& all, const std::filesystem::path& file);

}  // namespace espalier
