// Staging memory of a cache in the host's memory: anonymous memory of the system (memfd) that other
// processes of the same user open by this process's entry in /proc. It ends with the processes that
// have it, however they end.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "cache/page_copier.h"
#include "seams/staged_pages.h"

namespace espalier {

// `bytes`: of the memory, backed as it is used. kUnavailable where the system gives none.
Result<std::unique_ptr<PageStaging>> make_host_staging(std::vector<PlaneRun> runs, int64_t bytes);

// kUnavailable where the handle opens nothing here: its process has ended, runs on another host, in
// another container or for another user.
Result<std::unique_ptr<MappedStaging>> map_host_staging(std::vector<PlaneRun> runs,
                                                        const StagingHandle& handle);

}  // namespace espalier
