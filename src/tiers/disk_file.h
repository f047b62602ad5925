// The file of pages of the disk tier, with the way in which its blocks are moved. Not thread-safe,
// as BlockIo.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/status.h"
#include "tiers/block_io.h"

namespace espalier {

struct DiskFileConfig {
  std::filesystem::path path;
  int64_t size_bytes = 0;
  int32_t depth = 0;  // transfers at once
  bool use_uring = true;
  bool use_direct_io = true;
};

class DiskFile {
 public:
  // Makes the file where there is none, for its owner alone, and gives it this size; its space is
  // allocated as blocks are written. Direct I/O and io_uring are used where the system has them.
  // kUnavailable for what the system refuses.
  static Result<DiskFile> open(const DiskFileConfig& config);
  DiskFile(DiskFile&& other) noexcept;
  DiskFile& operator=(DiskFile&&) = delete;
  ~DiskFile();

  const std::filesystem::path& path() const { return path_; }
  BlockIo& io() const { return *io_; }
  bool is_direct() const { return is_direct_; }

 private:
  DiskFile() = default;
  std::filesystem::path path_;
  int fd_ = -1;
  bool is_direct_ = false;
  std::unique_ptr<BlockIo> io_;
};

}  // namespace espalier
