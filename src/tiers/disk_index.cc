#include "tiers/disk_index.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "tiers/block_io.h"

namespace espalier {

// The first block of the file.
struct DiskIndex::Header {
  static constexpr uint64_t kMagic = 0x3178646e71736531;
  static constexpr uint32_t kVersion = 1;
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t ways = kWays;
  int64_t slot_bytes = 0;
  int64_t num_buckets = 0;
  ScopeDigest scope{};
  std::atomic<uint64_t> clock{1};
  char scope_text[3072] = {};  // for people who look at the file

  bool same_kind(const DiskIndexConfig& config) const {
    return magic == kMagic && version == kVersion && ways == kWays &&
           slot_bytes == config.slot_bytes && num_buckets > 0 && scope == config.digest;
  }
};

namespace {

constexpr int64_t kHeaderBytes = kBlockAlignment;
constexpr int64_t kBucketBytes = int64_t{DiskIndex::kWays} * 3 * sizeof(uint64_t);

int64_t index_bytes(int64_t num_buckets) { return kHeaderBytes + num_buckets * kBucketBytes; }

uint64_t half(const PageName& name, size_t begin) {
  uint64_t value = 0;
  std::memcpy(&value, name.bytes.data() + begin, sizeof(value));
  return value;
}

Status system_error(const std::filesystem::path& path, const char* what) {
  return error(StatusCode::kUnavailable, "{}: cannot {}: {}", path.string(), what,
               std::strerror(errno));
}

}  // namespace

Result<DiskIndex> DiskIndex::open(const DiskIndexConfig& config) {
  static_assert(sizeof(Header) <= kHeaderBytes && sizeof(Bucket) == kBucketBytes);
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  DiskIndex index;
  ESP_ASSIGN_OR_RETURN(index.fd_, open_file(config));
  ESP_RETURN_IF_ERROR(index.map(config));
  return index;
}

// The descriptor of a file of the right kind, with a shared lock. Callers exclude each other
// (DiskPageStore::open), so only processes that already use the file hold locks.
Result<int> DiskIndex::open_file(const DiskIndexConfig& config) {
  const int64_t num_buckets =
      (config.size_bytes - kHeaderBytes) / (kWays * config.slot_bytes + kBucketBytes);
  if (num_buckets < 1)
    return fail(invalid_argument(
        "the disk tier has {} bytes, but {} pages of keys and values take {}: raise "
        "--hicache-disk-size",
        config.size_bytes, kWays, index_bytes(1) + kWays * config.slot_bytes));
  for (bool made = false;; made = true) {
    const int fd = ::open(config.path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0 && (errno != ENOENT || made)) return fail(system_error(config.path, "open it"));
    if (fd >= 0) {
      Header header;
      struct stat info {};
      const bool same_kind = pread(fd, static_cast<void*>(&header), sizeof(header), 0) ==
                                 static_cast<ssize_t>(sizeof(header)) &&
                             header.same_kind(config) && fstat(fd, &info) == 0 &&
                             header.num_buckets <= info.st_size / kBucketBytes &&
                             info.st_size == index_bytes(header.num_buckets);
      const bool in_use = flock(fd, LOCK_EX | LOCK_NB) != 0;
      if (same_kind && (in_use || header.num_buckets == num_buckets)) {
        if (header.num_buckets != num_buckets)
          log_warning("disk tier in use by another process keeps its size path={} slots={}",
                      config.path.string(), header.num_buckets * kWays);
        if (flock(fd, LOCK_SH) == 0) return fd;
      }
      ::close(fd);
      if (in_use)
        return fail(error(StatusCode::kUnavailable,
                          "{}: another process uses it with a format that this one does not know; "
                          "choose another --hicache-storage-path",
                          config.path.string()));
    }
    ESP_RETURN_IF_ERROR(create_file(config, num_buckets));
  }
}

// The file appears complete or not at all. Its space is allocated now, for a write to a mapped file
// on a full disk would end the process.
Status DiskIndex::create_file(const DiskIndexConfig& config, int64_t num_buckets) {
  const std::filesystem::path temporary = config.path.string() + ".new";
  const int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return system_error(temporary, "create it");
  Header header;
  header.slot_bytes = config.slot_bytes;
  header.num_buckets = num_buckets;
  header.scope = config.digest;
  std::copy_n(config.scope.begin(), std::min(config.scope.size(), sizeof(header.scope_text) - 1),
              header.scope_text);
  errno = posix_fallocate(fd, 0, index_bytes(num_buckets));
  const bool written = errno == 0 && pwrite(fd, static_cast<const void*>(&header), sizeof(header),
                                            0) == static_cast<ssize_t>(sizeof(header));
  const Status status = written ? Status() : system_error(temporary, "write it");
  ::close(fd);
  ESP_RETURN_IF_ERROR(status);
  if (std::rename(temporary.c_str(), config.path.c_str()) != 0)
    return system_error(config.path, "create it");
  return {};
}

Status DiskIndex::map(const DiskIndexConfig& config) {
  struct stat info {};
  if (fstat(fd_, &info) != 0) return system_error(config.path, "read its size");
  size_bytes_ = info.st_size;
  void* const data =
      mmap(nullptr, static_cast<size_t>(size_bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (data == MAP_FAILED) return system_error(config.path, "map it");
  data_ = static_cast<std::byte*>(data);
  header_ = reinterpret_cast<Header*>(data_);
  buckets_ = reinterpret_cast<Bucket*>(data_ + kHeaderBytes);
  num_buckets_ = header_->num_buckets;
  return {};
}

DiskIndex::DiskIndex(DiskIndex&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(other.size_bytes_),
      num_buckets_(other.num_buckets_),
      header_(other.header_),
      buckets_(other.buckets_) {}

DiskIndex::~DiskIndex() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_bytes_));
  if (fd_ >= 0) ::close(fd_);
}

DiskIndex::Bucket& DiskIndex::bucket_of(const PageName& name) const {
  return buckets_[half(name, 0) % static_cast<uint64_t>(num_buckets_)];
}

uint64_t DiskIndex::tick() const { return header_->clock.fetch_add(1, std::memory_order_relaxed); }

int64_t DiskIndex::find(const PageName& name) const {
  const uint64_t low = half(name, 0), high = half(name, 8);
  const Bucket& bucket = bucket_of(name);
  for (int32_t way = 0; way < kWays; ++way)
    if (bucket.low[way].load(std::memory_order_acquire) == low &&
        bucket.high[way].load(std::memory_order_acquire) == high)
      return (&bucket - buckets_) * kWays + way;
  return kNotFound;
}

void DiskIndex::touch(int64_t slot) {
  bucket_of_slot(slot).used[slot % kWays].store(tick(), std::memory_order_relaxed);
}

// The exchange of the time of last use makes two writers choose different slots.
int64_t DiskIndex::take(const PageName& name, bool& evicted) {
  Bucket& bucket = bucket_of(name);
  while (true) {
    int32_t oldest = 0;
    uint64_t oldest_use = ~0ull;
    for (int32_t way = 0; way < kWays; ++way) {
      const uint64_t use = bucket.used[way].load(std::memory_order_relaxed);
      if (use < oldest_use) oldest = way, oldest_use = use;
    }
    if (!bucket.used[oldest].compare_exchange_strong(oldest_use, tick())) continue;
    evicted = bucket.low[oldest].exchange(0) != 0;
    bucket.high[oldest].store(0, std::memory_order_release);
    return (&bucket - buckets_) * kWays + oldest;
  }
}

void DiskIndex::publish(int64_t slot, const PageName& name) {
  Bucket& bucket = bucket_of_slot(slot);
  bucket.high[slot % kWays].store(half(name, 8), std::memory_order_release);
  bucket.low[slot % kWays].store(half(name, 0), std::memory_order_release);
}

void DiskIndex::erase(const PageName& name) {
  for (int64_t slot = find(name); slot != kNotFound; slot = find(name)) erase_slot(slot, name);
}

// Time 0 makes the slot the next to be taken.
void DiskIndex::erase_slot(int64_t slot, const PageName& name) {
  Bucket& bucket = bucket_of_slot(slot);
  uint64_t low = half(name, 0);
  if (bucket.high[slot % kWays].load(std::memory_order_acquire) != half(name, 8)) return;
  if (!bucket.low[slot % kWays].compare_exchange_strong(low, 0)) return;
  bucket.high[slot % kWays].store(0, std::memory_order_release);
  bucket.used[slot % kWays].store(0, std::memory_order_relaxed);
}

void DiskIndex::clear() {
  for (int64_t i = 0; i < num_buckets_; ++i)
    for (int32_t way = 0; way < kWays; ++way) {
      buckets_[i].low[way].store(0, std::memory_order_release);
      buckets_[i].high[way].store(0, std::memory_order_release);
      buckets_[i].used[way].store(0, std::memory_order_relaxed);
    }
}

int64_t DiskIndex::count() const {
  int64_t count = 0;
  for (int64_t i = 0; i < num_buckets_; ++i)
    for (const auto& low : buckets_[i].low)
      count += low.load(std::memory_order_relaxed) != 0 ? 1 : 0;
  return count;
}

}  // namespace espalier
