// A tier on disk: files in a folder (disk_format.h), shared by all processes of the host that
// serve the same model with the same layout, and found again after a restart.
//
// One thread moves pages between buffers and slots, by direct I/O with io_uring where the system
// has them, else with threads. put() copies into a buffer and returns; checksums are computed on
// the store's thread. Every page is checked when it is read.
//
// Thread-safe. Owns its files' descriptors, never their contents: other processes may change them
// at any time, and a page that is not as it should be is absent.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "tiers/disk_file.h"
#include "tiers/disk_index.h"
#include "tiers/page_store.h"

namespace espalier {

struct DiskPageStoreConfig {
  std::filesystem::path folder;  // made where there is none, for its owner alone
  // What decides the bytes of a page besides its name's contents: model, layout, kind of processor.
  // Pages of another scope are never found.
  std::string scope;
  int64_t page_bytes = 0;
  int64_t size_bytes = 0;                 // of this scope's files
  int64_t write_buffer_bytes = 64 << 20;  // pages on their way to the disk
  int32_t depth = 32;                     // reads at once; half as many writes
  int32_t num_reads_max = 1 << 16;        // pages that wait to be read; more are refused
  bool use_uring = true;
  bool use_direct_io = true;
};

// Deleter of memory from mmap().
struct UnmapBytes {
  size_t size = 0;
  void operator()(std::byte* bytes) const;
};

class DiskPageStore final : public PageStore {
 public:
  // Files of other scopes in the folder stay as they are. kInvalidArgument for a size with room for
  // less than DiskIndex::kWays pages; kUnavailable where the system refuses files or memory.
  static Result<std::unique_ptr<DiskPageStore>> open(const DiskPageStoreConfig& config);
  ~DiskPageStore() override;  // stores what put() has taken; answers waiting reads as absent

  std::string_view kind() const override { return "disk"; }
  int64_t page_bytes() const override { return config_.page_bytes; }
  void get(std::span<const PageName> names, std::shared_ptr<PageSink> sink) override;
  size_t put(std::span<const PageName> names, const FillPage& fill) override;
  size_t num_leading(std::span<const PageName> names) const override;
  void erase(std::span<const PageName> names) override;
  void clear() override;
  void flush() override;
  PageStoreStats stats() const override;

  const DiskFile& file() const { return file_; }

 private:
  struct Batch {  // of one get()
    std::shared_ptr<PageSink> sink;
    size_t num_left = 0;
  };
  struct Read {
    PageName name;
    std::shared_ptr<Batch> batch;  // shared by the pages of the batch
    size_t index = 0;
  };
  // One buffer of a slot's size, and what it is used for. The first `depth` are for reads.
  struct Transfer {
    BlockOp op;
    PageName name;
    int64_t slot = 0;
    Read read;
  };
  struct NameHash {
    size_t operator()(const PageName& name) const { return name.prefix64(); }
  };
  DiskPageStore(const DiskPageStoreConfig& config, DiskIndex index, DiskFile file);
  Status allocate_buffers();
  void run();
  bool take_work(std::vector<Transfer*>& taken, std::vector<Read>& absent);
  void start(Transfer& transfer);
  void finish_read(Transfer& transfer);
  void finish_write(Transfer& transfer);
  void answer(const Read& read, std::span<const std::byte> bytes);
  std::span<std::byte> page_in(const Transfer& transfer) const;

  const DiskPageStoreConfig config_;
  const ScopeDigest scope_;
  const int64_t slot_bytes_;
  DiskIndex index_;
  DiskFile file_;
  std::unique_ptr<std::byte, UnmapBytes> arena_;  // of all transfers' buffers
  std::vector<Transfer> transfers_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_, written_;
  std::deque<Read> waiting_reads_;
  std::deque<Transfer*> waiting_writes_;
  std::vector<Transfer*> free_reads_, free_writes_;
  std::unordered_set<PageName, NameHash> on_their_way_;  // put, and not written
  int32_t num_writing_ = 0;                              // writes in flight
  bool stopped_ = false;
  mutable PageStoreStats stats_;
  mutable TimePoint count_again_at_{};

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace espalier
