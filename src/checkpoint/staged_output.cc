#include "checkpoint/staged_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace espalier {
namespace {

namespace fs = std::filesystem;

Status no_place(const fs::path& path, const std::error_code& problem) {
  return error(StatusCode::kInternal, "{} cannot be put in its place: {}", path.string(),
               problem.message());
}

}  // namespace

Result<StagedOutput> StagedOutput::create(const fs::path& destination, bool replace) {
  std::error_code problem;
  fs::path whole = fs::absolute(destination, problem).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // "folder/"
  if (!fs::is_directory(whole.parent_path(), problem))
    return fail(error(StatusCode::kNotFound, "{}: there is no folder {}", destination.string(),
                      whole.parent_path().string()));
  if (!replace && fs::exists(fs::symlink_status(whole, problem)))
    return fail(error(StatusCode::kAlreadyExists,
                      "{} is there already: choose another name, or replace it with --force",
                      destination.string()));
  // The extension stays, for readers go by it.
  fs::path path = whole.parent_path() / fmt::format("{}.partial-{}{}", whole.stem().string(),
                                                    ::getpid(), whole.extension().string());
  return StagedOutput(std::move(whole), std::move(path));
}

StagedOutput::StagedOutput(StagedOutput&& other) noexcept
    : destination_(std::move(other.destination_)), path_(std::exchange(other.path_, {})) {}

StagedOutput::~StagedOutput() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

Status StagedOutput::require_space(int64_t bytes) const {
  std::error_code problem;
  const fs::space_info space = fs::space(destination_.parent_path(), problem);
  if (problem || bytes <= static_cast<int64_t>(space.available)) return {};
  return error(StatusCode::kResourceExhausted,
               "{} takes {:.2f} GB, and {:.2f} GB are free there: free some, or name a place on "
               "another disk",
               destination_.string(), static_cast<double>(bytes) / 1e9,
               static_cast<double>(space.available) / 1e9);
}

Status StagedOutput::commit() {
  std::error_code problem;
  // A rename replaces a file, and an empty folder at most, so another folder steps aside first.
  fs::path aside;
  if (fs::is_directory(fs::symlink_status(destination_, problem))) {
    aside = path_;
    aside += ".old";
    fs::rename(destination_, aside, problem);
    if (problem) return no_place(destination_, problem);
  }
  fs::rename(path_, destination_, problem);
  if (problem) {
    std::error_code ignored;
    if (!aside.empty()) fs::rename(aside, destination_, ignored);
    return no_place(destination_, problem);
  }
  path_.clear();
  if (!aside.empty()) fs::remove_all(aside, problem);
  return {};
}

Result<OutputFile> OutputFile::create(const fs::path& path) {
  OutputFile file(path, ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.descriptor_ < 0) return fail(file.failure("cannot be made"));
  return file;
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status OutputFile::failure(std::string_view what) const {
  const int reason = errno;
  const StatusCode code =
      reason == ENOSPC || reason == EDQUOT ? StatusCode::kResourceExhausted : StatusCode::kInternal;
  return error(code, "{} {}: {}", path_.string(), what, std::generic_category().message(reason));
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failure("cannot be written");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

Status OutputFile::write(std::string_view text) {
  return write(std::as_bytes(std::span(text.data(), text.size())));
}

Status OutputFile::finish() {
  const bool synced = ::fsync(descriptor_) == 0 || errno == EINVAL;  // a pipe has nothing to sync
  if (!synced) return failure("cannot be written");
  if (::close(std::exchange(descriptor_, -1)) != 0) return failure("cannot be written");
  return {};
}

}  // namespace espalier
