#include "tiers/disk_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace espalier {

namespace {
constexpr int32_t kIoThreads = 8;  // where there is no io_uring
}

Result<DiskFile> DiskFile::open(const DiskFileConfig& config) {
  DiskFile file;
  file.path_ = config.path;
  const int flags = O_RDWR | O_CREAT | O_CLOEXEC;
  if (config.use_direct_io) file.fd_ = ::open(config.path.c_str(), flags | O_DIRECT, 0600);
  file.is_direct_ = file.fd_ >= 0;
  if (file.fd_ < 0) file.fd_ = ::open(config.path.c_str(), flags, 0600);
  struct stat info {};
  const bool is_sized =
      file.fd_ >= 0 && fstat(file.fd_, &info) == 0 &&
      (info.st_size == config.size_bytes || ftruncate(file.fd_, config.size_bytes) == 0);
  if (!is_sized)
    return fail(error(StatusCode::kUnavailable, "{}: cannot make a file of {} bytes: {}",
                      config.path.string(), config.size_bytes, std::strerror(errno)));
  if (config.use_uring) {
    auto io = make_uring_io(file.fd_, config.depth);
    if (io) file.io_ = std::move(*io);
  }
  if (file.io_ == nullptr)
    file.io_ = make_thread_io(file.fd_, std::min(kIoThreads, config.depth), config.depth);
  return file;
}

DiskFile::DiskFile(DiskFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      is_direct_(other.is_direct_),
      io_(std::move(other.io_)) {}

DiskFile::~DiskFile() {
  io_.reset();
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace espalier
