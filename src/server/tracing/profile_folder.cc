#include "server/tracing/profile_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace espalier::server {

namespace fs = std::filesystem;

namespace {

constexpr size_t kNameMax = 100;

bool is_plain_name(const std::string& name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kNameMax && name.front() != '.' &&
         std::ranges::all_of(name, is_plain);
}

bool is_inside(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

Status system_failure(const char* what, const fs::path& path) {
  return error(StatusCode::kFailedPrecondition, "{} {} failed: {}", what, path.string(),
               std::strerror(errno));
}

// Each folder on the way is made for its owner alone.
Status make_folders(const fs::path& folder) {
  std::error_code failed;
  if (folder.empty() || fs::is_directory(folder, failed)) return {};
  ESP_RETURN_IF_ERROR(make_folders(folder.parent_path()));
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return system_failure("making the folder", folder);
  return {};
}

class OpenFile {
 public:
  explicit OpenFile(const fs::path& path)
      : descriptor_(
            ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  bool write(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t n = ::write(descriptor_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return false;
      text.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

 private:
  const int descriptor_;
};

}  // namespace

Result<fs::path> new_trace_path(const fs::path& root, const std::string& output_dir,
                                const std::string& prefix, const std::string& id) {
  for (const auto& [field, name] : {std::pair("profile_prefix", &prefix), {"profile_id", &id}})
    if (!is_plain_name(*name) && !(name == &prefix && name->empty()))
      return fail(invalid_argument(
          "{} is \"{}\", but it is part of a file's name: at most {} letters, digits, '.', '_' and "
          "'-', and no '.' first",
          field, *name, kNameMax));
  ESP_RETURN_IF_ERROR(make_folders(fs::absolute(root)));
  std::error_code failed;
  const fs::path real_root = fs::canonical(root, failed);
  if (failed)
    return fail(invalid_argument("--profile-dir {}: {}", root.string(), failed.message()));
  const auto outside = [&] {
    return fail(invalid_argument(
        "output_dir is \"{}\", but profiles are written inside --profile-dir alone: leave it out, "
        "or name a folder inside it",
        output_dir));
  };
  if (output_dir.find('\0') != std::string::npos) return outside();
  // Symbolic links that lead out are resolved before a folder is made.
  const fs::path folder = fs::weakly_canonical(real_root / output_dir, failed);
  if (failed || !is_inside(folder, real_root)) return outside();
  ESP_RETURN_IF_ERROR(make_folders(folder));
  const fs::path path = folder / ((prefix.empty() ? "" : prefix + "-") + id + "-TP-0.trace.json");
  if (fs::exists(fs::symlink_status(path, failed)) ||
      fs::exists(fs::symlink_status(path.string() + ".part", failed)))
    return fail(invalid_argument("{} is there already: give another profile_id", path.string()));
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    return fail(system_failure("writing to the folder", folder));
  return path;
}

Status write_trace_file(const fs::path& path, const StepProfile& profile, std::string_view model) {
  const fs::path part = path.string() + ".part";
  const OpenFile file(part);
  if (!file.is_open()) return system_failure("writing the trace", part);
  Status status = write_trace(profile, model, [&](std::string_view text) -> Status {
    return file.write(text) ? Status() : system_failure("writing the trace", part);
  });
  if (status.ok() && ::rename(part.c_str(), path.c_str()) != 0)
    status = system_failure("naming the trace", path);
  if (!status.ok()) ::unlink(part.c_str());
  return status;
}

}  // namespace espalier::server
