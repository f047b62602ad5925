#include "engine/startup/system_info.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "base/thread.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// The number after the word `key` in a file of "key value" lines; with no key the file's first.
std::optional<int64_t> read_number(const fs::path& path, std::string_view key = {}) {
  std::ifstream file(path);
  std::string word;
  while (!key.empty() && file >> word && word != key) {
  }
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // no such file, no such key, or "max"
}

struct GroupFiles {
  const char *limit, *usage, *reclaimable;  // the last a key of memory.stat
};
constexpr GroupFiles kV2{"memory.max", "memory.current", "inactive_file"};
constexpr GroupFiles kV1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

int64_t left_in(const fs::path& group, const GroupFiles& files) {
  const auto limit = read_number(group / files.limit);
  const auto usage = read_number(group / files.usage);
  if (!limit || !usage) return kUnlimited;
  const int64_t reclaimable = read_number(group / "memory.stat", files.reclaimable).value_or(0);
  return std::max<int64_t>(0, *limit - *usage + reclaimable);
}

// The group and every one above it, up to the mount.
int64_t left_up_from(const fs::path& mount, fs::path group, const GroupFiles& files) {
  int64_t left = left_in(mount, files);
  for (; group.has_relative_path(); group = group.parent_path())
    left = std::min(left, left_in(mount / group.relative_path(), files));
  return left;
}

// /proc/self/cgroup: "0::/path" for v2, "4:memory:/path" for v1's memory controller.
int64_t left_in_groups(const fs::path& root) {
  const fs::path mount = root / "sys/fs/cgroup";
  std::ifstream file(root / "proc/self/cgroup");
  int64_t left = kUnlimited;
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const auto controllers =
        fmt::format(",{},", std::string_view(line).substr(first + 1, second - first - 1));
    const fs::path group = line.substr(second + 1);
    if (controllers == ",,")
      left = std::min(left, left_up_from(mount, group, kV2));
    else if (controllers.find(",memory,") != std::string::npos)
      left = std::min(left, left_up_from(mount / "memory", group, kV1));
  }
  return left;
}

}  // namespace

SystemInfo read_system_info(const fs::path& root) {
  const auto available_kib = read_number(root / "proc/meminfo", "MemAvailable:");
  const int64_t available = available_kib ? *available_kib * 1024 : kUnlimited;
  int64_t least = std::min(available, left_in_groups(root));
  if (least == kUnlimited) least = int64_t{4} << 30;  // nothing is known: modest
  return {.available_bytes = least, .num_cpus = static_cast<int32_t>(usable_cpus().size())};
}

}  // namespace espalier
