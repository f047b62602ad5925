#include "media/source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/base64.h"

namespace espalier {
namespace {

constexpr size_t kShownCharacters = 40;

std::string shown(std::string_view source) {
  if (source.size() <= kShownCharacters) return std::string(source);
  return std::string(source.substr(0, kShownCharacters)) + "...";
}

Status too_large(int64_t bytes_max) {
  return invalid_argument("the picture's file is above the limit of {} bytes: make it smaller",
                          bytes_max);
}

Result<std::string> read_base64(std::string_view digits, int64_t bytes_max) {
  // Four digits are three bytes.
  if (std::ssize(digits) / 4 * 3 > bytes_max + 3) return fail(too_large(bytes_max));
  std::string bytes;
  bytes.reserve(digits.size() / 4 * 3 + 3);
  if (digits.empty() || !decode_base64(digits, bytes)) {
    return fail(invalid_argument(
        "'{}' is no base64: send the picture's bytes as data:image/png;base64,... without line "
        "ends",
        shown(digits)));
  }
  if (std::ssize(bytes) > bytes_max) return fail(too_large(bytes_max));
  return bytes;
}

Result<std::string> read_data_url(std::string_view url, int64_t bytes_max) {
  const size_t comma = url.find(',');
  if (comma == std::string_view::npos || !url.substr(0, comma).ends_with(";base64")) {
    return fail(invalid_argument("the data URL '{}' is not written as data:image/png;base64,DIGITS",
                                 shown(url)));
  }
  return read_base64(url.substr(comma + 1), bytes_max);
}

// Owns a descriptor.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path)
      // Non-blocking, for a pipe would wait for its writer.
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  // Where the file lies, links resolved.
  std::filesystem::path real_path() const {
    std::error_code error;
    return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor_), error);
  }

 private:
  const int descriptor_;
};

bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const auto [at, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return at == folder.end() && rest != path.end();
}

Result<std::string> read_all(const OpenFile& file, int64_t bytes_max) {
  struct stat status;
  if (::fstat(file.descriptor(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return fail(invalid_argument("the local picture is no regular file"));
  }
  if (status.st_size > bytes_max) return fail(too_large(bytes_max));
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::read(file.descriptor(), bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return fail(invalid_argument("the local picture cannot be read"));
    done += static_cast<size_t>(count);
  }
  return bytes;
}

Result<std::string> read_local(std::string_view path, const MediaSourceLimits& limits) {
  if (limits.local_folder.empty()) {
    return fail(error(StatusCode::kPermissionDenied,
                      "local files are not read: send the picture's bytes as a data URL, or start "
                      "the server with --allowed-local-media-path FOLDER"));
  }
  std::error_code code;
  const auto folder = std::filesystem::canonical(limits.local_folder, code);
  if (code) {
    return fail(error(StatusCode::kFailedPrecondition,
                      "the folder of --allowed-local-media-path cannot be read"));
  }
  const OpenFile file{std::filesystem::path(path)};
  // One answer for what is absent and what is elsewhere, so that nobody learns what there is.
  if (!file.is_open() || !lies_in(file.real_path(), folder)) {
    return fail(error(StatusCode::kPermissionDenied,
                      "'{}' is not a file below the folder of --allowed-local-media-path",
                      shown(path)));
  }
  return read_all(file, limits.bytes_max);
}

}  // namespace

Result<std::string> read_media_source(std::string_view source, const MediaSourceLimits& limits) {
  constexpr std::string_view kFile = "file://";
  if (source.starts_with("data:")) return read_data_url(source, limits.bytes_max);
  if (source.starts_with(kFile)) return read_local(source.substr(kFile.size()), limits);
  if (source.starts_with("http://") || source.starts_with("https://")) {
    return fail(error(StatusCode::kUnimplemented,
                      "'{}' is not fetched: send the picture's bytes as "
                      "data:image/png;base64,DIGITS",
                      shown(source)));
  }
  return read_base64(source, limits.bytes_max);
}

}  // namespace espalier
