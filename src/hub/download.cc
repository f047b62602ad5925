#include "hub/download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "hub/checksum.h"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;

constexpr int kAttempts = 6;

struct RemoteFile {
  std::string path, etag;
  int64_t size_bytes = 0;
};

// The failure that ends all transfers of a call, and the bytes that have come.
class Shared {
 public:
  Shared(const HubOptions& options, bool with_progress)
      : options_(options), with_progress_(with_progress) {}

  bool failed() const { return failed_; }
  void fail_with(const Status& status) {
    std::lock_guard lock(mutex_);
    if (!failed_.exchange(true)) status_ = status;
  }
  Status status() const { return status_; }

  void expect(int64_t bytes) { total_ = bytes; }
  void add(int64_t bytes) {
    if (!with_progress_ || !options_.progress) return;
    std::lock_guard lock(mutex_);
    done_ += bytes;
    options_.progress(done_, total_);
  }

 private:
  const HubOptions& options_;
  const bool with_progress_;
  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  Status status_;
  int64_t done_ = 0, total_ = 0;
};

// The beginning of a blob on the disk, with the checksum of what it holds.
class PartialBlob {
 public:
  PartialBlob(fs::path path, const RemoteFile& file)
      : path_(std::move(path)), file_(file), checksum_(file.etag, file.size_bytes) {}
  ~PartialBlob() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  int64_t size_bytes() const { return size_bytes_; }

  Status open() {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) return failure();
    struct stat info {};
    if (::fstat(descriptor_, &info) != 0) return failure();
    if (info.st_size > file_.size_bytes) return restart();
    return sum_what_is_there(info.st_size);
  }

  Status restart() {
    if (::ftruncate(descriptor_, 0) != 0 || ::lseek(descriptor_, 0, SEEK_SET) != 0)
      return failure();
    size_bytes_ = 0;
    checksum_ = Checksum(file_.etag, file_.size_bytes);
    return {};
  }

  Status append(std::string_view bytes) {
    checksum_.add(bytes);
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return failure();
      size_bytes_ += written;
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return {};
  }

  // Makes it the blob. kDataLoss where the checksum differs: it then starts anew.
  Status finish(const fs::path& blob) {
    if (!checksum_.matches()) {
      ESP_RETURN_IF_ERROR(restart());
      return error(StatusCode::kDataLoss, "{} does not match its checksum {}", file_.path,
                   file_.etag);
    }
    if (::fsync(descriptor_) != 0) return failure();
    return ::rename(path_.c_str(), blob.c_str()) == 0 ? Status() : failure();
  }

 private:
  Status failure() const {
    const int why = errno;
    if (why == ENOSPC || why == EDQUOT)
      return error(
          StatusCode::kResourceExhausted,
          "the disk is full: {} holds {} of {} bytes; free some space and start again (the "
          "transfer goes on there), or name another folder by --download-dir or "
          "HF_HUB_CACHE",
          path_.string(), size_bytes_, file_.size_bytes);
    return error(StatusCode::kFailedPrecondition, "cannot write {}: {}", path_.string(),
                 std::strerror(why));
  }

  Status sum_what_is_there(int64_t length_bytes) {
    std::string buffer(1 << 20, '\0');
    while (size_bytes_ < length_bytes) {
      const auto wanted = std::min<int64_t>(std::ssize(buffer), length_bytes - size_bytes_);
      const ssize_t got = ::read(descriptor_, buffer.data(), static_cast<size_t>(wanted));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return failure();
      checksum_.add({buffer.data(), static_cast<size_t>(got)});
      size_bytes_ += got;
    }
    return {};
  }

  const fs::path path_;
  const RemoteFile& file_;
  Checksum checksum_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
};

std::string without_quotes(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  return etag;
}

bool is_safe_name(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos;
}

std::string resolve_path(const CommitFiles& from, const std::string& path) {
  return fmt::format("/{}/resolve/{}/{}", from.reference.repo, from.commit, url_path(path));
}

Status ask_about(Session& session, const CommitFiles& from, RemoteFile& file) {
  ESP_ASSIGN_OR_RETURN(const HubResponse answer, session.head(resolve_path(from, file.path)));
  ESP_RETURN_IF_ERROR(check_answer(answer, from.reference, from.options, file.path));
  const auto either = [&](const char* linked, const char* plain) {
    const std::string value = answer.header(linked);
    return value.empty() ? answer.header(plain) : value;
  };
  file.etag = without_quotes(either("x-linked-etag", "etag"));
  const std::string size = either("x-linked-size", "content-length");
  char* end = nullptr;
  file.size_bytes = std::strtoll(size.c_str(), &end, 10);
  if (!is_safe_name(file.etag) || size.empty() || *end != '\0' || file.size_bytes < 0)
    return error(StatusCode::kUnavailable,
                 "{} states no etag and size of {}: is HF_ENDPOINT a Hugging Face hub?",
                 from.options.endpoint, file.path);
  return {};
}

bool is_cached(const RepoCache& cache, const RemoteFile& file) {
  std::error_code problem;
  const auto size = fs::file_size(cache.blob(file.etag), problem);
  return !problem && static_cast<int64_t>(size) == file.size_bytes;
}

// One request for what is missing.
Status transfer(Session& session, const CommitFiles& from, const RemoteFile& file,
                PartialBlob& blob, Shared& shared) {
  if (blob.size_bytes() == file.size_bytes) return {};
  Status written;
  const auto sink = [&](std::string_view bytes, bool restart) {
    if (restart) {
      shared.add(-blob.size_bytes());
      written = blob.restart();
    }
    if (written.ok()) written = blob.append(bytes);
    shared.add(static_cast<int64_t>(bytes.size()));
    return written.ok() && !shared.failed() && blob.size_bytes() <= file.size_bytes;
  };
  const auto answer = session.download(resolve_path(from, file.path), blob.size_bytes(), sink);
  if (!written.ok()) return written;
  if (blob.size_bytes() > file.size_bytes) {
    shared.add(-blob.size_bytes());
    ESP_RETURN_IF_ERROR(blob.restart());
    return error(StatusCode::kUnavailable, "{} is longer than it was said to be", file.path);
  }
  if (!answer) return answer.error();
  ESP_RETURN_IF_ERROR(check_answer(*answer, from.reference, from.options, file.path));
  if (blob.size_bytes() == file.size_bytes) return {};
  return error(StatusCode::kUnavailable, "{} broke off after {} of {} bytes", file.path,
               blob.size_bytes(), file.size_bytes);
}

// A broken connection is tried again, a wrong checksum once.
Status fetch_blob(Session& session, const CommitFiles& from, const RemoteFile& file,
                  Shared& shared) {
  ESP_ASSIGN_OR_RETURN(const BlobLock lock, from.cache.lock(file.etag));
  const fs::path target = from.cache.blob(file.etag);
  if (is_cached(from.cache, file)) {
    shared.add(file.size_bytes);
    return {};
  }
  PartialBlob blob(target.string() + ".incomplete", file);
  ESP_RETURN_IF_ERROR(blob.open());
  shared.add(blob.size_bytes());
  Duration delay = from.options.retry_delay;
  bool checked = false;
  for (int attempt = 1;; ++attempt) {
    Status status = transfer(session, from, file, blob, shared);
    if (status.ok()) status = blob.finish(target);
    if (status.ok()) return status;
    const bool lost = status.code() == StatusCode::kDataLoss;
    if (lost) shared.add(-file.size_bytes);
    const bool again = lost ? !checked : status.code() == StatusCode::kUnavailable;
    if (!again || shared.failed() || attempt == kAttempts) return status;
    checked = checked || lost;
    log_warning("{}; trying again", status.message());
    std::this_thread::sleep_for(delay);
    delay *= 2;
  }
}

// Runs work(session, i) for each i below `count` on several threads, each with its connection.
template <typename Work>
Status on_connections(const CommitFiles& from, size_t count, Shared& shared, const Work& work) {
  std::atomic<size_t> next{0};
  const auto run = [&] {
    Result<Session> session = Session::create(session_config(from.options));
    if (!session) return shared.fail_with(session.error());
    for (size_t i = next++; i < count && !shared.failed(); i = next++)
      if (Status status = work(*session, i); !status.ok()) shared.fail_with(status);
  };
  {
    std::vector<std::jthread> threads;
    const auto wanted = static_cast<size_t>(std::max(1, from.options.connections));
    for (size_t i = 0; i < std::min(count, wanted); ++i) threads.emplace_back(run);
  }
  return shared.status();
}

Status check_space(const CommitFiles& from, const std::vector<RemoteFile>& files) {
  int64_t needed = 0;
  for (const RemoteFile& file : files) {
    if (is_cached(from.cache, file)) continue;
    std::error_code problem;
    const auto begun = fs::file_size(from.cache.blob(file.etag).string() + ".incomplete", problem);
    needed += file.size_bytes - (problem ? 0 : static_cast<int64_t>(begun));
  }
  std::error_code problem;
  const fs::space_info space = fs::space(from.cache.folder(), problem);
  if (problem || needed <= static_cast<int64_t>(space.available)) return {};
  return error(StatusCode::kResourceExhausted,
               "{} needs {:.2f} GB more and {} has {:.2f} GB: free some space, or name another "
               "folder by --download-dir or HF_HUB_CACHE",
               from.reference.repo, static_cast<double>(needed) / 1e9, from.cache.folder().string(),
               static_cast<double>(space.available) / 1e9);
}

}  // namespace

SessionConfig session_config(const HubOptions& options) {
  return {options.endpoint, options.token, options.ca_file};
}

Status check_answer(const HubResponse& response, const HubReference& reference,
                    const HubOptions& options, const std::string& what) {
  const long status = response.status;
  const std::string& repo = reference.repo;
  const std::string code = response.header("x-error-code");
  if (status < 400) return {};
  if (code == "GatedRepo" || status == 403)
    return error(
        StatusCode::kPermissionDenied,
        "{} is gated: accept its terms at {}/{} with an account, and set HF_TOKEN to a token "
        "of that account ({}/settings/tokens){}",
        repo, options.endpoint, repo, options.endpoint,
        options.token.empty() ? "" : "; the token that is set has no access");
  if (code == "RevisionNotFound")
    return error(StatusCode::kNotFound, "{} has no revision '{}' at {}; --revision names it", repo,
                 reference.revision, options.endpoint);
  if (code == "EntryNotFound")
    return error(StatusCode::kNotFound, "{} has no file {} at {}", repo, what, options.endpoint);
  if (status == 401 || status == 404)
    return error(StatusCode::kNotFound, "'{}' is neither a path here nor a model at {}{}", repo,
                 options.endpoint,
                 options.token.empty() ? "; a private one needs HF_TOKEN"
                                       : " that the token in HF_TOKEN may read");
  return error(status == 429 || status >= 500 || status == 416 ? StatusCode::kUnavailable
                                                               : StatusCode::kFailedPrecondition,
               "{} answers {} for {} of {}", options.endpoint, status, what, repo);
}

Status download_files(const CommitFiles& from, const std::vector<std::string>& paths,
                      bool with_progress) {
  std::vector<RemoteFile> files;
  for (const std::string& path : paths) files.push_back({path, "", 0});
  Shared shared(from.options, with_progress);
  ESP_RETURN_IF_ERROR(on_connections(from, files.size(), shared, [&](Session& session, size_t i) {
    return ask_about(session, from, files[i]);
  }));
  ESP_RETURN_IF_ERROR(check_space(from, files));
  int64_t total = 0;
  for (const RemoteFile& file : files) total += file.size_bytes;
  shared.expect(total);
  return on_connections(from, files.size(), shared, [&](Session& session, size_t i) -> Status {
    ESP_RETURN_IF_ERROR(fetch_blob(session, from, files[i], shared));
    return from.cache.link(from.commit, files[i].path, files[i].etag);
  });
}

}  // namespace espalier::hub
