#include "cache/host_staging.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <regex>
#include <utility>

#include "cache/page_staging.h"

namespace espalier {
namespace {

constexpr int64_t kStagingBlockBytes = 1 << 20;

struct MemfdFile {
  explicit MemfdFile(int f) : fd(f) {}
  MemfdFile(const MemfdFile&) = delete;
  MemfdFile& operator=(const MemfdFile&) = delete;
  ~MemfdFile() {
    if (fd >= 0) close(fd);
  }
  const int fd;
};

class MemfdMapping {
 public:
  MemfdMapping() = default;
  MemfdMapping(void* data, int64_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  MemfdMapping(MemfdMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  MemfdMapping& operator=(MemfdMapping&&) = delete;
  ~MemfdMapping() {
    if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
  }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

Status memfd_error(const char* what) {
  return error(StatusCode::kUnavailable, "{}: {}", what, std::strerror(errno));
}

Result<MemfdMapping> map_memfd(int fd, int64_t bytes, int protection) {
  void* const data = mmap(nullptr, static_cast<size_t>(bytes), protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return fail(memfd_error("staging memory cannot be mapped"));
  return MemfdMapping(data, bytes);
}

enum class StagedDirection : uint8_t { kToStaging, kToPages };

Status copy_staged(const StagedRows& rows, std::byte* staging, StagedDirection direction) {
  for (int64_t i = 0; i < rows.num_rows; ++i) {
    std::byte* const pages = rows.pages + i * rows.pages_pitch;
    std::byte* const staged = staging + rows.staged + i * rows.staged_pitch;
    const auto bytes = static_cast<size_t>(rows.row_bytes);
    if (direction == StagedDirection::kToStaging)
      std::memcpy(staged, pages, bytes);
    else
      std::memcpy(pages, staged, bytes);
  }
  return {};
}

class HostStaging final : public PageStaging {
 public:
  HostStaging(std::vector<PlaneRun> runs, int fd, MemfdMapping memory)
      : runs_(std::move(runs)),
        file_(fd),
        memory_(std::move(memory)),
        blocks_(memory_.bytes(), kStagingBlockBytes, bytes_of_page(runs_)) {
    handle_.kind = "memfd";
    handle_.bytes = fmt::format("/proc/{}/fd/{}", getpid(), fd);
    std::random_device device;
    for (uint8_t& byte : handle_.nonce) byte = static_cast<uint8_t>(device());
    std::memcpy(memory_.data(), handle_.nonce.data(), handle_.nonce.size());
  }

  const StagingHandle& handle() const override { return handle_; }
  std::unique_ptr<StagedPages> stage(std::span<const PageId> pages) override {
    auto staged = std::make_unique<Pages>(*this, blocks_.take(static_cast<int32_t>(pages.size())));
    if (staged->parts().empty()) return nullptr;
    const auto fill = [this](const StagedRows& rows) {
      return copy_staged(rows, memory_.data(), StagedDirection::kToStaging);
    };
    static_cast<void>(copy_parts(runs_, staged->parts(), {0, num_planes(runs_)}, pages, fill));
    return staged;
  }

 private:
  class Pages final : public StagedPages {
   public:
    Pages(HostStaging& staging, std::vector<StagedPart> parts)
        : staging_(staging), parts_(std::move(parts)) {}
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;
    ~Pages() override { staging_.blocks_.give_back(parts_); }
    std::span<const StagedPart> parts() const override { return parts_; }
    Result<PlaneRange> wait(int32_t) override { return PlaneRange{0, num_planes(staging_.runs_)}; }
    Status read(const StagedPart& part, int32_t page, std::span<std::byte> to) override {
      const std::byte* from = staging_.memory_.data() + part.block;
      std::byte* at = to.data();
      for (const PlaneRun& run : staging_.runs_)
        for (int64_t i = 0; i < run.num_planes; ++i) {
          std::memcpy(at, from + page * run.page_bytes, static_cast<size_t>(run.page_bytes));
          at += run.page_bytes;
          from += part.block_pages * run.page_bytes;
        }
      return {};
    }

   private:
    HostStaging& staging_;
    const std::vector<StagedPart> parts_;
  };

  const std::vector<PlaneRun> runs_;
  const MemfdFile file_;
  const MemfdMapping memory_;
  StagingBlocks blocks_;
  StagingHandle handle_;
};

class MappedHostStaging final : public MappedStaging {
 public:
  MappedHostStaging(std::vector<PlaneRun> runs, MemfdMapping memory)
      : runs_(std::move(runs)), page_bytes_(bytes_of_page(runs_)), memory_(std::move(memory)) {}

  Status take(std::span<const StagedPart> parts, PlaneRange planes,
              std::span<const PageId> pages) override {
    ESP_RETURN_IF_ERROR(check_parts(parts, pages.size(), page_bytes_, memory_.bytes()));
    return copy_parts(runs_, parts, planes, pages, [this](const StagedRows& rows) {
      return copy_staged(rows, memory_.data(), StagedDirection::kToPages);
    });
  }

 private:
  const std::vector<PlaneRun> runs_;
  const int64_t page_bytes_;
  const MemfdMapping memory_;
};

}  // namespace

Result<std::unique_ptr<PageStaging>> make_host_staging(std::vector<PlaneRun> runs, int64_t bytes) {
  const int fd = memfd_create("espalier-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return fail(memfd_error("the system gives no staging memory"));
  // A reader's mapping must not lose its end.
  if (ftruncate(fd, bytes) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    const Status status = memfd_error("the system gives no staging memory");
    close(fd);
    return fail(status);
  }
  auto memory = map_memfd(fd, bytes, PROT_READ | PROT_WRITE);
  if (!memory) {
    close(fd);
    return fail(memory.error());
  }
  return std::make_unique<HostStaging>(std::move(runs), fd, *std::move(memory));
}

// The handle comes from another process, so it may name what it likes: nothing but sealed memory
// with the nonce is taken.
Result<std::unique_ptr<MappedStaging>> map_host_staging(std::vector<PlaneRun> runs,
                                                        const StagingHandle& handle) {
  static const std::regex kPath("/proc/[0-9]{1,10}/fd/[0-9]{1,10}");
  if (handle.kind != "memfd" || !std::regex_match(handle.bytes, kPath))
    return fail(invalid_argument("a handle of staging memory names none"));
  const MemfdFile file(open(handle.bytes.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0) return fail(memfd_error("staging memory of the other process cannot be opened"));
  struct stat info {};
  const int seals = fcntl(file.fd, F_GET_SEALS);
  if (fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode) || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0 || info.st_size < kStagingHeadBytes)
    return fail(error(StatusCode::kUnavailable, "a handle of staging memory opens something else"));
  ESP_ASSIGN_OR_RETURN(MemfdMapping memory, map_memfd(file.fd, info.st_size, PROT_READ));
  if (std::memcmp(memory.data(), handle.nonce.data(), handle.nonce.size()) != 0)
    return fail(error(StatusCode::kUnavailable, "a handle of staging memory opens another one"));
  return std::make_unique<MappedHostStaging>(std::move(runs), std::move(memory));
}

}  // namespace espalier
