// Files of a checkpoint that stay open while their tensors are read, each opened once. One thread
// opens; descriptors may be read by any thread while this lives.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/status.h"

namespace espalier {

class OpenFiles {
 public:
  OpenFiles() = default;
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;
  ~OpenFiles() {
    for (const auto& [path, fd] : open_) ::close(fd);
  }
  Result<int> open(const std::filesystem::path& path) {
    if (const auto it = open_.find(path); it != open_.end()) return it->second;
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      return fail(error(StatusCode::kNotFound, "{}: {}", path.string(), std::strerror(errno)));
    }
    open_.emplace(path, fd);
    return fd;
  }

 private:
  std::map<std::filesystem::path, int> open_;
};

}  // namespace espalier
