#include "tiers/disk_page_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thread.h"

namespace espalier {
namespace {

// Pages are counted by reading the whole index, for other processes change it, too: seldom where it
// is large.
constexpr int64_t kSlotsCountedAlways = 1 << 16;
constexpr Duration kCountInterval = std::chrono::seconds(10);

// Processes that open a folder's files exclude each other with this lock; the system drops it when
// a process dies.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder)
      : fd_(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    holds_ = fd_ >= 0 && flock(fd_, LOCK_EX) == 0;
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool holds() const { return holds_; }

 private:
  const int fd_;
  bool holds_ = false;
};

Status make_folder(const std::filesystem::path& folder) {
  std::error_code failed;
  // Keys and values reveal prompts, so nobody else may read them.
  if (std::filesystem::create_directories(folder, failed))
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, failed);
  if (!failed && std::filesystem::is_directory(folder, failed)) return {};
  return error(StatusCode::kUnavailable,
               "{}: cannot make this folder for the disk tier ({}): give another "
               "--hicache-storage-path",
               folder.string(), failed ? failed.message() : "there is a file of this name");
}

}  // namespace

Result<std::unique_ptr<DiskPageStore>> DiskPageStore::open(const DiskPageStoreConfig& config) {
  ESP_CHECK(config.page_bytes > 0 && config.depth > 1);
  ESP_RETURN_IF_ERROR(make_folder(config.folder));
  const FolderLock lock(config.folder);
  if (!lock.holds())
    return fail(error(StatusCode::kUnavailable,
                      "{}: cannot lock a file in this folder ({}): give another "
                      "--hicache-storage-path",
                      config.folder.string(), std::strerror(errno)));
  const ScopeDigest digest = digest_of_scope(config.scope);
  const std::filesystem::path base = config.folder / scope_file_name(digest);
  const int64_t slot_bytes = slot_bytes_for(config.page_bytes);
  ESP_ASSIGN_OR_RETURN(DiskIndex index, DiskIndex::open({.path = base.string() + ".index",
                                                         .scope = config.scope,
                                                         .digest = digest,
                                                         .slot_bytes = slot_bytes,
                                                         .size_bytes = config.size_bytes}));
  ESP_ASSIGN_OR_RETURN(DiskFile file, DiskFile::open({.path = base.string() + ".pages",
                                                      .size_bytes = index.num_slots() * slot_bytes,
                                                      .depth = config.depth + config.depth / 2,
                                                      .use_uring = config.use_uring,
                                                      .use_direct_io = config.use_direct_io}));
  std::unique_ptr<DiskPageStore> store(
      new DiskPageStore(config, std::move(index), std::move(file)));
  ESP_RETURN_IF_ERROR(store->allocate_buffers());
  store->thread_ = std::thread([&store = *store] { store.run(); });
  return store;
}

DiskPageStore::DiskPageStore(const DiskPageStoreConfig& config, DiskIndex index, DiskFile file)
    : config_(config),
      scope_(digest_of_scope(config.scope)),
      slot_bytes_(slot_bytes_for(config.page_bytes)),
      index_(std::move(index)),
      file_(std::move(file)) {
  stats_.num_pages_max = index_.num_slots();
}

void UnmapBytes::operator()(std::byte* bytes) const { munmap(bytes, size); }

Status DiskPageStore::allocate_buffers() {
  const auto num_reads = static_cast<size_t>(config_.depth);
  const auto num_writes =
      static_cast<size_t>(std::max<int64_t>(config_.write_buffer_bytes / slot_bytes_, 2));
  const size_t size = (num_reads + num_writes) * static_cast<size_t>(slot_bytes_);
  void* const arena = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED)
    return error(StatusCode::kUnavailable,
                 "cannot reserve {} bytes for the disk tier's buffers: {}", size,
                 std::strerror(errno));
  arena_ = {static_cast<std::byte*>(arena), UnmapBytes{size}};
  transfers_.resize(num_reads + num_writes);
  for (size_t i = 0; i < transfers_.size(); ++i) {
    transfers_[i].op = {.is_write = i >= num_reads,
                        .buffer = arena_.get() + i * static_cast<size_t>(slot_bytes_),
                        .size = slot_bytes_};
    (i < num_reads ? free_reads_ : free_writes_).push_back(&transfers_[i]);
  }
  return {};
}

DiskPageStore::~DiskPageStore() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::span<std::byte> DiskPageStore::page_in(const Transfer& transfer) const {
  return {transfer.op.buffer + kSlotHeaderBytes, static_cast<size_t>(config_.page_bytes)};
}

void DiskPageStore::get(std::span<const PageName> names, std::shared_ptr<PageSink> sink) {
  if (names.empty()) return sink->on_done();
  {
    const std::lock_guard lock(mutex_);
    if (waiting_reads_.size() + names.size() <= static_cast<size_t>(config_.num_reads_max)) {
      const auto batch = std::make_shared<Batch>(Batch{std::move(sink), names.size()});
      for (size_t i = 0; i < names.size(); ++i) waiting_reads_.push_back({names[i], batch, i});
      changed_.notify_one();
      return;
    }
    stats_.refused += static_cast<int64_t>(names.size());
  }
  for (size_t i = 0; i < names.size(); ++i) sink->on_page(i, {});
  sink->on_done();
}

size_t DiskPageStore::put(std::span<const PageName> names, const FillPage& fill) {
  for (size_t i = 0; i < names.size(); ++i) {
    ESP_CHECK(!names[i].empty(), "a page without a name");
    if (const int64_t slot = index_.find(names[i]); slot != DiskIndex::kNotFound) {
      index_.touch(slot);
      continue;
    }
    Transfer* transfer = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (on_their_way_.contains(names[i])) continue;
      if (free_writes_.empty()) {
        stats_.refused += static_cast<int64_t>(names.size() - i);
        return i;
      }
      transfer = free_writes_.back();
      free_writes_.pop_back();
      on_their_way_.insert(names[i]);
    }
    transfer->name = names[i];
    const bool filled = fill(i, page_in(*transfer));
    const std::lock_guard lock(mutex_);
    if (!filled) {
      stats_.refused += static_cast<int64_t>(names.size() - i);
      on_their_way_.erase(names[i]);
      free_writes_.push_back(transfer);
      if (on_their_way_.empty()) written_.notify_all();
      return i;
    }
    waiting_writes_.push_back(transfer);
    changed_.notify_one();
  }
  return names.size();
}

// Pages on their way are not counted: they cannot be read yet.
size_t DiskPageStore::num_leading(std::span<const PageName> names) const {
  size_t count = 0;
  while (count < names.size() && index_.find(names[count]) != DiskIndex::kNotFound) ++count;
  return count;
}

void DiskPageStore::erase(std::span<const PageName> names) {
  for (const PageName& name : names) index_.erase(name);
}

void DiskPageStore::clear() { index_.clear(); }

void DiskPageStore::flush() {
  std::unique_lock lock(mutex_);
  written_.wait(lock, [&] { return on_their_way_.empty(); });
}

PageStoreStats DiskPageStore::stats() const {
  const std::lock_guard lock(mutex_);
  const TimePoint now = SteadyClock().now();
  if (index_.num_slots() <= kSlotsCountedAlways || now >= count_again_at_) {
    stats_.num_pages = index_.count();
    count_again_at_ = now + kCountInterval;
  }
  return stats_;
}

// The only thread that uses file_. While transfers are in flight it waits for these alone: new work
// starts when one of them ends.
void DiskPageStore::run() {
  set_thread_name("disk-tier");
  std::vector<Transfer*> taken;
  std::vector<Read> absent;
  int32_t num_in_flight = 0;
  while (true) {
    taken.clear();
    absent.clear();
    if (!take_work(taken, absent) && num_in_flight == 0) return;
    for (const Read& read : absent) answer(read, {});
    for (Transfer* transfer : taken) start(*transfer);
    num_in_flight += static_cast<int32_t>(taken.size());
    if (num_in_flight == 0) continue;
    BlockOp& op = file_.io().wait();
    --num_in_flight;
    Transfer& ended = transfers_[static_cast<size_t>((op.buffer - arena_.get()) / slot_bytes_)];
    op.is_write ? finish_write(ended) : finish_read(ended);
  }
}

// Takes what can start now; waits for work when nothing is in flight. False: stopped, and nothing
// is left to start.
bool DiskPageStore::take_work(std::vector<Transfer*>& taken, std::vector<Read>& absent) {
  std::unique_lock lock(mutex_);
  const auto in_flight = [&] {
    return num_writing_ > 0 || free_reads_.size() < static_cast<size_t>(config_.depth);
  };
  changed_.wait(lock, [&] {
    return stopped_ || in_flight() || !waiting_reads_.empty() || !waiting_writes_.empty();
  });
  while (!waiting_reads_.empty() && (stopped_ || !free_reads_.empty())) {
    Read read = std::move(waiting_reads_.front());
    waiting_reads_.pop_front();
    const int64_t slot = stopped_ ? DiskIndex::kNotFound : index_.find(read.name);
    if (slot == DiskIndex::kNotFound) {
      ++stats_.absent;
      absent.push_back(std::move(read));
      continue;
    }
    Transfer* const transfer = free_reads_.back();
    free_reads_.pop_back();
    transfer->name = read.name;
    transfer->slot = slot;
    transfer->read = std::move(read);
    taken.push_back(transfer);
  }
  for (; !waiting_writes_.empty() && num_writing_ < config_.depth / 2; ++num_writing_) {
    taken.push_back(waiting_writes_.front());
    waiting_writes_.pop_front();
  }
  return !stopped_ || !taken.empty() || !absent.empty();
}

void DiskPageStore::start(Transfer& transfer) {
  if (transfer.op.is_write) {
    bool evicted = false;
    transfer.slot = index_.take(transfer.name, evicted);
    seal_slot({transfer.op.buffer, static_cast<size_t>(slot_bytes_)}, config_.page_bytes,
              transfer.name, scope_);
    if (evicted) {
      const std::lock_guard lock(mutex_);
      ++stats_.evicted;
    }
  }
  transfer.op.offset = transfer.slot * slot_bytes_;
  file_.io().submit(transfer.op);
}

void DiskPageStore::answer(const Read& read, std::span<const std::byte> bytes) {
  read.batch->sink->on_page(read.index, bytes);
  if (!bytes.empty()) read.batch->sink->on_release(read.index);
  if (--read.batch->num_left == 0) read.batch->sink->on_done();
}

// A slot that has got another page since it was looked up is not corrupt.
void DiskPageStore::finish_read(Transfer& transfer) {
  const bool holds =
      transfer.op.ok && slot_holds({transfer.op.buffer, static_cast<size_t>(slot_bytes_)},
                                   config_.page_bytes, transfer.name, scope_);
  const bool listed = index_.find(transfer.name) == transfer.slot;
  if (holds) {
    if (listed) index_.touch(transfer.slot);
  } else {
    index_.erase_slot(transfer.slot, transfer.name);
  }
  {  // before the answer, whose reader may look at the counts
    const std::lock_guard lock(mutex_);
    ++(holds ? stats_.found : stats_.absent);
    if (holds) stats_.bytes_read += config_.page_bytes;
    if (!transfer.op.ok) {
      ++stats_.errors;
    } else if (!holds && listed) {
      ++stats_.corrupt;
    }
  }
  answer(transfer.read, holds ? page_in(transfer) : std::span<std::byte>{});
  transfer.read = {};
  const std::lock_guard lock(mutex_);
  free_reads_.push_back(&transfer);
}

void DiskPageStore::finish_write(Transfer& transfer) {
  if (transfer.op.ok) index_.publish(transfer.slot, transfer.name);
  const std::lock_guard lock(mutex_);
  if (transfer.op.ok) {
    ++stats_.stored;
    stats_.bytes_written += config_.page_bytes;
  } else if (stats_.errors++ == 0) {
    log_warning("disk tier cannot write path={}: is the disk full?", file_.path().string());
  }
  --num_writing_;
  on_their_way_.erase(transfer.name);
  free_writes_.push_back(&transfer);
  if (on_their_way_.empty()) written_.notify_all();
}

}  // namespace espalier
