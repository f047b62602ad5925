// Brings the files of one commit into the cache. Internal to the room.
#pragma once

#include <string>
#include <vector>

#include "hub/cache.h"
#include "hub/hub.h"
#include "hub/session.h"

namespace espalier::hub {

struct CommitFiles {
  const HubReference& reference;
  const HubOptions& options;
  const RepoCache& cache;
  std::string commit;
};

SessionConfig session_config(const HubOptions& options);

// What an HTTP status of the hub means for the user: ok for 2xx and 3xx.
Status check_answer(const HubResponse& response, const HubReference& reference,
                    const HubOptions& options, const std::string& what);

// Fetches what the cache lacks, several at once, and links all into the snapshot. The first
// failure ends the others.
Status download_files(const CommitFiles& from, const std::vector<std::string>& paths,
                      bool with_progress);

}  // namespace espalier::hub
