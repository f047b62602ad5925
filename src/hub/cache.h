// The folder that huggingface_hub keeps for one model, shared with Python's programs:
//   HUB/models--org--name/refs/REVISION             the commit that a branch or tag had last
//                         blobs/ETAG                a file's content; ETAG.incomplete: its
//                         beginning snapshots/COMMIT/PATH     a relative symbolic link to the blob
//   HUB/.locks/models--org--name/ETAG.lock          held by the process that writes the blob
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier::hub {

// The lock of one blob, by flock as Python's filelock takes it. Move-only; released at its end.
class BlobLock {
 public:
  explicit BlobLock(int descriptor) : descriptor_(descriptor) {}
  BlobLock(BlobLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  BlobLock& operator=(BlobLock&&) = delete;
  ~BlobLock();

 private:
  int descriptor_;
};

// Thread-safe: it holds paths alone, and locks guard blobs.
class RepoCache {
 public:
  RepoCache(const std::filesystem::path& hub, std::string_view repo);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path blob(std::string_view etag) const { return folder_ / "blobs" / etag; }
  std::filesystem::path snapshot(std::string_view commit) const {
    return folder_ / "snapshots" / commit;
  }

  // The commit of a revision: what its ref holds, or the revision where that is a commit.
  std::optional<std::string> commit_of(const std::string& revision) const;
  // Paths of the files in a snapshot whose blobs are there, relative and sorted.
  std::vector<std::string> files(std::string_view commit) const;

  Status create() const;
  Status set_commit(const std::string& revision, const std::string& commit) const;
  // Makes snapshots/COMMIT/PATH mean the blob.
  Status link(const std::string& commit, const std::string& path, const std::string& etag) const;
  // Waits while another process holds it.
  Result<BlobLock> lock(const std::string& etag) const;

 private:
  std::filesystem::path folder_, locks_;
};

}  // namespace espalier::hub
