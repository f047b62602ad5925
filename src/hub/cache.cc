#include "hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "hub/reference.h"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;

Status cannot(std::string_view what, const fs::path& path, const std::string& why) {
  return error(StatusCode::kFailedPrecondition,
               "cannot {} {}: {}; HF_HUB_CACHE or --download-dir names another folder", what,
               path.string(), why);
}

std::string folder_name(std::string_view repo) {
  std::string out = "models--";
  for (char c : repo) c == '/' ? out += "--" : out += c;
  return out;
}

Status make_folder(const fs::path& path) {
  std::error_code problem;
  fs::create_directories(path, problem);
  return problem ? cannot("make the folder", path, problem.message()) : Status();
}

}  // namespace

BlobLock::~BlobLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

RepoCache::RepoCache(const fs::path& hub, std::string_view repo)
    : folder_(hub / folder_name(repo)), locks_(hub / ".locks" / folder_name(repo)) {}

std::optional<std::string> RepoCache::commit_of(const std::string& revision) const {
  if (is_commit(revision)) return revision;
  std::ifstream file(folder_ / "refs" / revision);
  std::string commit;
  if (!(file >> commit) || !is_commit(commit)) return std::nullopt;
  return commit;
}

std::vector<std::string> RepoCache::files(std::string_view commit) const {
  std::vector<std::string> out;
  std::error_code problem;
  const fs::path root = snapshot(commit);
  for (fs::recursive_directory_iterator at(root, problem), end; !problem && at != end;
       at.increment(problem)) {
    std::error_code dangling;
    if (fs::is_regular_file(at->path(), dangling))
      out.push_back(at->path().lexically_relative(root).string());
  }
  std::ranges::sort(out);
  return out;
}

Status RepoCache::create() const {
  for (const fs::path& path : {folder_ / "blobs", folder_ / "refs", folder_ / "snapshots", locks_})
    ESP_RETURN_IF_ERROR(make_folder(path));
  return {};
}

Status RepoCache::set_commit(const std::string& revision, const std::string& commit) const {
  if (is_commit(revision)) return {};
  const fs::path path = folder_ / "refs" / revision;
  ESP_RETURN_IF_ERROR(make_folder(path.parent_path()));  // a branch may be "refs/pr/1"
  std::ofstream file(path, std::ios::trunc);
  file << commit;
  file.close();
  return file ? Status() : cannot("write", path, std::strerror(errno));
}

Status RepoCache::link(const std::string& commit, const std::string& path,
                       const std::string& etag) const {
  const fs::path pointer = snapshot(commit) / path;
  ESP_RETURN_IF_ERROR(make_folder(pointer.parent_path()));
  const fs::path target = blob(etag).lexically_relative(pointer.parent_path());
  std::error_code problem;
  if (fs::read_symlink(pointer, problem) == target) return {};
  // A rename replaces an older link at once, so other processes never miss the file.
  const fs::path made = pointer.string() + "." + std::to_string(::getpid());
  fs::remove(made, problem);
  fs::create_symlink(target, made, problem);
  if (!problem) fs::rename(made, pointer, problem);
  return problem ? cannot("link", pointer, problem.message()) : Status();
}

Result<BlobLock> RepoCache::lock(const std::string& etag) const {
  const fs::path path = locks_ / (etag + ".lock");
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) return fail(cannot("open", path, std::strerror(errno)));
  BlobLock held(descriptor);
  while (::flock(descriptor, LOCK_EX) != 0)
    if (errno != EINTR) return fail(cannot("lock", path, std::strerror(errno)));
  return held;
}

}  // namespace espalier::hub
