#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace espalier {

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: the open of a pipe that nobody writes to would wait for ever.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const auto code = errno == ENOENT   ? StatusCode::kNotFound
                      : errno == EACCES ? StatusCode::kPermissionDenied
                                        : StatusCode::kInternal;
    return fail(error(code, "cannot open {}: {}", path.string(), std::strerror(errno)));
  }
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return fail(invalid_argument("{} is not a regular file", path.string()));
  }
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ > 0) {
    void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
      const int cause = errno;
      ::close(fd);
      return fail(error(StatusCode::kResourceExhausted, "cannot map {} ({} bytes): {}",
                        path.string(), file.size_, std::strerror(cause)));
    }
    file.data_ = static_cast<const std::byte*>(data);
  }
  ::close(fd);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::span<const std::byte> part) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t before = (page - first % page) % page;  // of a page that is only partly its own
  if (part.size() <= before) return;
  const uintptr_t size = (part.size() - before) / page * page;
  if (size > 0) ::madvise(const_cast<std::byte*>(part.data()) + before, size, MADV_DONTNEED);
}

Result<std::string> read_text_file(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return std::string(file.text());
}

}  // namespace espalier
