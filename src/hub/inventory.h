// What the cache that huggingface_hub shares holds, and whether its files are what the hub sent.
// Reads the cache; only probe() speaks to a hub.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/hub.h"

namespace espalier::hub {

struct CachedFile {
  std::string path;            // in the snapshot
  std::filesystem::path blob;  // where its content lies; named by its etag
  int64_t size_bytes = 0;
};

struct CachedSnapshot {
  std::string repo;  // "org/name"
  std::string commit;
  std::vector<std::string> revisions;  // branches and tags that mean it
  std::filesystem::path folder;
  std::vector<CachedFile> files;  // by path
  int64_t size_bytes = 0;
};

// Every snapshot with a file in it, by repository and commit. A folder that is not there holds
// none.
std::vector<CachedSnapshot> list_snapshots(const std::filesystem::path& cache);

// Compares each file with the checksum that its blob is named by. Returns what is wrong, a sentence
// for each file; files whose etag states no checksum are not compared. progress: bytes read so far.
std::vector<std::string> verify(const CachedSnapshot& snapshot,
                                const std::function<void(int64_t done)>& progress);

// Whether a hub answers at the endpoint. kUnavailable says why not.
Status probe(const HubOptions& options);

}  // namespace espalier::hub
