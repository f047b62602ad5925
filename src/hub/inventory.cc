#include "hub/inventory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "hub/cache.h"
#include "hub/checksum.h"
#include "hub/download.h"
#include "hub/session.h"

namespace espalier::hub {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--";
constexpr size_t kReadBytes = size_t{1} << 20;

// "org/name" of "models--org--name"; empty for another folder.
std::string repo_of(const std::string& folder) {
  if (!folder.starts_with(kPrefix)) return {};
  std::string name = folder.substr(kPrefix.size());
  if (const size_t cut = name.find("--"); cut != std::string::npos) name.replace(cut, 2, "/");
  return name;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code problem;
  for (fs::directory_iterator at(folder, problem), end; !problem && at != end;
       at.increment(problem))
    out.push_back(at->path());
  std::ranges::sort(out);
  return out;
}

// The revisions of a repository that mean a commit.
std::vector<std::string> revisions_of(const fs::path& repo, const std::string& commit) {
  std::vector<std::string> out;
  std::error_code problem;
  const fs::path refs = repo / "refs";
  for (fs::recursive_directory_iterator at(refs, problem), end; !problem && at != end;
       at.increment(problem)) {
    std::string named;
    if (std::ifstream(at->path()) >> named && named == commit)
      out.push_back(at->path().lexically_relative(refs).string());
  }
  std::ranges::sort(out);
  return out;
}

CachedSnapshot read_snapshot(const RepoCache& cache, const std::string& repo,
                             const std::string& commit) {
  CachedSnapshot out{.repo = repo,
                     .commit = commit,
                     .revisions = revisions_of(cache.folder(), commit),
                     .folder = cache.snapshot(commit)};
  for (const std::string& path : cache.files(commit)) {
    std::error_code problem;
    const fs::path blob = fs::canonical(out.folder / path, problem);
    if (problem) continue;
    const auto size = static_cast<int64_t>(fs::file_size(blob, problem));
    out.files.push_back({path, blob, problem ? 0 : size});
    out.size_bytes += out.files.back().size_bytes;
  }
  return out;
}

}  // namespace

std::vector<CachedSnapshot> list_snapshots(const fs::path& cache) {
  std::vector<CachedSnapshot> out;
  for (const fs::path& folder : entries(cache)) {
    const std::string repo = repo_of(folder.filename().string());
    if (repo.empty()) continue;
    for (const fs::path& snapshot : entries(folder / "snapshots")) {
      CachedSnapshot read = read_snapshot(RepoCache(cache, repo), repo, snapshot.filename());
      if (!read.files.empty()) out.push_back(std::move(read));
    }
  }
  return out;
}

std::vector<std::string> verify(const CachedSnapshot& snapshot,
                                const std::function<void(int64_t)>& progress) {
  std::vector<std::string> wrong;
  std::vector<char> bytes(kReadBytes);
  int64_t done = 0;
  for (const CachedFile& file : snapshot.files) {
    std::ifstream in(file.blob, std::ios::binary);
    Checksum checksum(file.blob.filename().string(), file.size_bytes);
    while (in.read(bytes.data(), static_cast<std::streamsize>(bytes.size())), in.gcount() > 0) {
      checksum.add({bytes.data(), static_cast<size_t>(in.gcount())});
      done += in.gcount();
      if (progress) progress(done);
    }
    if (!in.eof())
      wrong.push_back(fmt::format("{}: {} cannot be read", file.path, file.blob.string()));
    else if (!checksum.matches())
      wrong.push_back(fmt::format(
          "{}: the content does not match its checksum; delete {} and fetch the model again",
          file.path, file.blob.string()));
  }
  return wrong;
}

Status probe(const HubOptions& options) {
  ESP_ASSIGN_OR_RETURN(Session session, Session::create(session_config(options)));
  const auto answer = session.head("/");
  return answer ? Status() : answer.error();
}

}  // namespace espalier::hub
