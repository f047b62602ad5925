#include "tiers/page_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace espalier {
namespace {

struct FileHeader {
  static constexpr uint64_t kMagic = 0x3173656761707365;
  static constexpr uint32_t kVersion = 1;
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t scope_bytes = 0;
  uint64_t page_bytes = 0;
  ScopeDigest checksum{};  // of what stands before it, and of the scope
};
static_assert(sizeof(FileHeader) == 40);

struct FileEnd {
  static constexpr uint64_t kMagic = 0x3164656c69667365;
  uint64_t magic = kMagic;
  uint64_t num_pages = 0;
  ScopeDigest digest{};  // of all slots' checksums
};
static_assert(sizeof(FileEnd) == 32 && sizeof(FileEnd) <= kSlotHeaderBytes);

constexpr size_t kScopeBytesMax = 64 << 10;

std::string_view text_of_bytes(const void* bytes, size_t size) {
  return {static_cast<const char*>(bytes), size};
}

ScopeDigest header_checksum(const FileHeader& header, std::string_view scope) {
  std::string text(text_of_bytes(&header, offsetof(FileHeader, checksum)));
  return digest_of_scope(text.append(scope));
}

// The digest of all checksums up to one more.
ScopeDigest digest_with(const ScopeDigest& digest, std::span<const std::byte> slot) {
  std::string text(text_of_bytes(digest.data(), digest.size()));
  text += text_of_bytes(slot.data() + offsetof(SlotHeader, checksum), sizeof(SlotHeader::checksum));
  return digest_of_scope(text);
}

Status disk_failure(const std::filesystem::path& path, int error_number) {
  return error(StatusCode::kUnavailable, "{}: {}", path.string(),
               std::generic_category().message(error_number));
}

// A name is on the disk when its folder is. Some file systems cannot sync folders, and need not.
Status sync_folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return disk_failure(folder, errno);
  const int failure = ::fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  ::close(fd);
  return failure == 0 ? Status() : disk_failure(folder, failure);
}

// The first line of each that the other does not have.
std::pair<std::string_view, std::string_view> difference(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    const std::string_view line_a = a.substr(0, a.find('\n')), line_b = b.substr(0, b.find('\n'));
    if (line_a != line_b) return {line_a, line_b};
    a.remove_prefix(std::min(a.size(), line_a.size() + 1));
    b.remove_prefix(std::min(b.size(), line_b.size() + 1));
  }
  return {a, b};
}

}  // namespace

PageFileWriter::PageFileWriter(std::filesystem::path path, const ScopeDigest& scope,
                               int64_t page_bytes)
    : path_(std::move(path)),
      partial_(fmt::format("{}.{}.partial", path_.string(), ::getpid())),
      scope_(scope),
      page_bytes_(page_bytes),
      slot_(static_cast<size_t>(kSlotHeaderBytes + page_bytes)) {}

PageFileWriter::~PageFileWriter() {
  if (file_ != nullptr) ::unlink(partial_.c_str());
}

Result<std::unique_ptr<PageFileWriter>> PageFileWriter::create(const std::filesystem::path& path,
                                                               std::string_view scope,
                                                               int64_t page_bytes) {
  ESP_CHECK(scope.size() <= kScopeBytesMax && page_bytes > 0);
  std::unique_ptr<PageFileWriter> writer(
      new PageFileWriter(path, digest_of_scope(scope), page_bytes));
  ::unlink(writer->partial_.c_str());  // of a process that was killed
  const int fd = ::open(writer->partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return fail(disk_failure(writer->partial_, errno));
  writer->file_.reset(::fdopen(fd, "wb"));
  ESP_CHECK(writer->file_ != nullptr);
  FileHeader header{.scope_bytes = static_cast<uint32_t>(scope.size()),
                    .page_bytes = static_cast<uint64_t>(page_bytes)};
  header.checksum = header_checksum(header, scope);
  ESP_RETURN_IF_ERROR(writer->write(&header, sizeof(header)));
  ESP_RETURN_IF_ERROR(writer->write(scope.data(), scope.size()));
  return writer;
}

Status PageFileWriter::write(const void* bytes, size_t size) {
  if (std::fwrite(bytes, 1, size, file_.get()) != size) return disk_failure(partial_, errno);
  num_bytes_ += static_cast<int64_t>(size);
  return {};
}

Status PageFileWriter::add(const PageName& name, std::span<const std::byte> bytes) {
  ESP_CHECK(std::ssize(bytes) == page_bytes_ && !name.empty());
  std::memcpy(slot_.data() + kSlotHeaderBytes, bytes.data(), bytes.size());
  seal_slot(slot_, page_bytes_, name, scope_);
  digest_ = digest_with(digest_, slot_);
  ++num_pages_;
  return write(slot_.data(), slot_.size());
}

Status PageFileWriter::finish() {
  const FileEnd end{.num_pages = static_cast<uint64_t>(num_pages_), .digest = digest_};
  ESP_RETURN_IF_ERROR(write(&end, sizeof(end)));
  if (std::fflush(file_.get()) != 0 || ::fsync(::fileno(file_.get())) != 0 ||
      ::rename(partial_.c_str(), path_.c_str()) != 0)
    return disk_failure(path_, errno);
  file_.reset();
  return sync_folder_of(path_);
}

PageFileReader::PageFileReader(std::filesystem::path path, const ScopeDigest& scope,
                               int64_t page_bytes)
    : path_(std::move(path)),
      scope_(scope),
      page_bytes_(page_bytes),
      slot_(static_cast<size_t>(kSlotHeaderBytes + page_bytes)) {}

Status PageFileReader::damaged(std::string_view what) const {
  return error(StatusCode::kDataLoss,
               "{} {}: nothing of it is used; export it again (espalier cache export)",
               path_.string(), what);
}

Result<std::unique_ptr<PageFileReader>> PageFileReader::open(const std::filesystem::path& path,
                                                             std::string_view scope,
                                                             int64_t page_bytes) {
  std::unique_ptr<PageFileReader> reader(
      new PageFileReader(path, digest_of_scope(scope), page_bytes));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno != ENOENT) return fail(disk_failure(path, errno));
    return fail(error(StatusCode::kNotFound, "there is no file {}", path.string()));
  }
  reader->file_.reset(::fdopen(fd, "rb"));
  ESP_CHECK(reader->file_ != nullptr);
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
    return fail(reader->damaged("is no file of pages"));
  reader->num_bytes_ = info.st_size;
  ESP_RETURN_IF_ERROR(reader->check_header(scope));
  reader->first_page_ = std::ftell(reader->file_.get());
  return reader;
}

Status PageFileReader::read(std::span<std::byte> to) {
  if (std::fread(to.data(), 1, to.size(), file_.get()) == to.size()) return {};
  if (std::ferror(file_.get()) != 0) return disk_failure(path_, errno);
  return damaged("is cut");
}

Status PageFileReader::check_header(std::string_view scope) {
  FileHeader header;
  ESP_RETURN_IF_ERROR(read(std::as_writable_bytes(std::span(&header, 1))));
  if (header.magic != FileHeader::kMagic) return damaged("is no file of pages");
  if (header.version != FileHeader::kVersion)
    return error(StatusCode::kFailedPrecondition,
                 "{} has version {} of the format, and this release reads version {}: export it by "
                 "the same release",
                 path_.string(), header.version, FileHeader::kVersion);
  std::string of_file(std::min<size_t>(header.scope_bytes, kScopeBytesMax), '\0');
  ESP_RETURN_IF_ERROR(read(std::as_writable_bytes(std::span(of_file))));
  if (header.checksum != header_checksum(header, of_file)) return damaged("is damaged");
  if (of_file != scope) {
    const auto [theirs, ours] = difference(of_file, scope);
    return error(
        StatusCode::kFailedPrecondition,
        "{} has pages of another model or layout, or that were computed otherwise (\"{}\", "
        "but this server has \"{}\"): import it where the same model runs in the same way",
        path_.string(), theirs, ours);
  }
  return header.page_bytes == static_cast<uint64_t>(page_bytes_) ? Status() : damaged("is damaged");
}

Result<std::optional<PageFileReader::Page>> PageFileReader::next() {
  const std::span<std::byte> slot(slot_);
  ESP_RETURN_IF_ERROR(read(slot.first(sizeof(FileEnd))));
  uint64_t magic = 0;
  std::memcpy(&magic, slot.data(), sizeof(magic));
  if (magic == FileEnd::kMagic) {
    ESP_RETURN_IF_ERROR(check_end(slot.first(sizeof(FileEnd))));
    return std::nullopt;
  }
  ESP_RETURN_IF_ERROR(read(slot.subspan(sizeof(FileEnd))));
  SlotHeader header;
  std::memcpy(&header, slot.data(), sizeof(header));
  if (header.name.empty() || !slot_holds(slot, page_bytes_, header.name, scope_))
    return fail(damaged(fmt::format("is damaged in page {}", num_pages_)));
  digest_ = digest_with(digest_, slot);
  ++num_pages_;
  return Page{header.name, slot.subspan(kSlotHeaderBytes)};
}

Status PageFileReader::check_end(std::span<const std::byte> bytes) {
  FileEnd end;
  std::memcpy(&end, bytes.data(), sizeof(end));
  const bool is_last = std::fgetc(file_.get()) == EOF;
  if (end.num_pages != static_cast<uint64_t>(num_pages_) || end.digest != digest_ || !is_last)
    return damaged("is damaged at its end");
  return {};
}

Status PageFileReader::rewind() {
  if (std::fseek(file_.get(), first_page_, SEEK_SET) != 0) return disk_failure(path_, errno);
  digest_ = {};
  num_pages_ = 0;
  return {};
}

}  // namespace espalier
