#include "kernels/linear/tuning_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <utility>

namespace espalier::kernels {
namespace {

constexpr std::string_view kHeader = "espalier tuning 1: ";
constexpr std::string_view kEnd = "end ";
constexpr std::string_view kBetween = " = ";
// A writer holds the lock for as long as it takes to write some kilobytes.
constexpr std::chrono::seconds kLockTimeout{2};

// FNV-1a.
uint64_t digest(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// One writer at a time. The lock is a file of its own, since the file of entries is replaced, not
// written.
class Lock {
 public:
  explicit Lock(const std::filesystem::path& path)
      : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    const auto end = std::chrono::steady_clock::now() + kLockTimeout;
    while (fd_ >= 0 && !(held_ = ::flock(fd_, LOCK_EX | LOCK_NB) == 0) &&
           std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool held() const { return held_; }

 private:
  int fd_;
  bool held_ = false;
};

std::string body_of(std::string_view system, const TuningFile::Entries& entries) {
  std::string text = fmt::format("{}{}\n", kHeader, system);
  for (const auto& [key, value] : entries) text += fmt::format("{}{}{}\n", key, kBetween, value);
  return text;
}

// Returns nothing where the text is not a whole file of this system.
std::optional<TuningFile::Entries> parse(std::string_view text, std::string_view system) {
  const size_t end = text.rfind(fmt::format("\n{}", kEnd));
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view body = text.substr(0, end + 1);
  if (text.substr(end + 1) != fmt::format("{}{:016x}\n", kEnd, digest(body))) return std::nullopt;
  if (!body.starts_with(fmt::format("{}{}\n", kHeader, system))) return std::nullopt;
  TuningFile::Entries entries;
  for (size_t at = body.find('\n') + 1; at < body.size();) {
    const size_t line_end = body.find('\n', at);
    const std::string_view line = body.substr(at, line_end - at);
    const size_t between = line.find(kBetween);
    if (between == std::string_view::npos || between == 0) return std::nullopt;
    entries.emplace(line.substr(0, between), line.substr(between + kBetween.size()));
    at = line_end + 1;
  }
  return entries;
}

}  // namespace

TuningFile::TuningFile(const std::filesystem::path& folder, std::string name, std::string system)
    : path_(folder.empty() ? std::filesystem::path() : folder / std::move(name)),
      system_(std::move(system)) {}

TuningFile::Entries TuningFile::read() const {
  if (path_.empty()) return {};
  std::ifstream in(path_, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  return parse(text, system_).value_or(Entries());
}

TuningFile::Entries TuningFile::add(const Entries& measured) const {
  if (path_.empty()) return measured;
  std::error_code ignored;
  std::filesystem::create_directories(path_.parent_path(), ignored);
  std::filesystem::path lock_path = path_;
  lock_path += ".lock";
  const Lock lock(lock_path);
  Entries entries = read();
  const size_t known = entries.size();
  entries.insert(measured.begin(), measured.end());
  if (lock.held() && entries.size() > known) static_cast<void>(write(entries));
  return entries;
}

// Writes beside the file under a unique name and renames it into place: a reader finds the old file
// or the new one, whole, and a process that ends meanwhile leaves the old one.
bool TuningFile::write(const Entries& entries) const {
  const std::string body = body_of(system_, entries);
  std::filesystem::path part = path_;
  part += fmt::format(".{}-{:08x}.part", ::getpid(), std::random_device{}());
  std::ofstream file(part, std::ios::binary);
  file << body << fmt::format("{}{:016x}\n", kEnd, digest(body));
  file.close();
  std::error_code failed;
  if (file) std::filesystem::rename(part, path_, failed);
  if (file && !failed) return true;
  std::filesystem::remove(part, failed);
  return false;
}

}  // namespace espalier::kernels
