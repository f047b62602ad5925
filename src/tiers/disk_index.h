// The index of the disk tier: which page should lie in which slot of the file of pages. A file that
// is mapped into every process that has the tier open, so that what one process stores the others
// find; it is a hint, and slots are checked when they are read (disk_format.h).
//
// A page's name determines its bucket of kWays slots, in which the least recently used page gives
// way; so there is no list, no lock and nothing to repair. Each entry is three atomic words, which
// different processes may read half old and half new: a wrong hint costs one read.
//
// Thread-safe, and safe among processes of one host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"
#include "seams/page_name.h"
#include "tiers/disk_format.h"

namespace espalier {

struct DiskIndexConfig {
  std::filesystem::path path;
  std::string scope;
  ScopeDigest digest{};
  int64_t slot_bytes = 0;
  int64_t size_bytes = 0;  // of the index and of all its slots together
};

class DiskIndex {
 public:
  static constexpr int32_t kWays = 16;
  static constexpr int64_t kNotFound = -1;

  // Opens the file, or makes it where there is none or where it is of another version or geometry
  // and no process has it open. A file in use keeps its geometry, whatever size_bytes states; the
  // log has it. kInvalidArgument for a size with room for less than one bucket; kUnavailable for a
  // file in use that cannot be used here.
  static Result<DiskIndex> open(const DiskIndexConfig& config);
  DiskIndex(DiskIndex&& other) noexcept;
  DiskIndex& operator=(DiskIndex&&) = delete;
  ~DiskIndex();

  int64_t num_slots() const { return num_buckets_ * kWays; }
  int64_t size_bytes() const { return size_bytes_; }  // of the file

  // The slot in which the page should lie.
  int64_t find(const PageName& name) const;
  void touch(int64_t slot);  // it is used now

  // Takes a slot for a page: a free one, else that of the least recently used page, which is found
  // no more (`evicted`). The page is found in it from publish() on.
  int64_t take(const PageName& name, bool& evicted);
  void publish(int64_t slot, const PageName& name);

  void erase(const PageName& name);
  // The same, where the slot still stands for this name.
  void erase_slot(int64_t slot, const PageName& name);
  void clear();
  int64_t count() const;  // pages; reads the whole index

 private:
  struct Header;
  struct Bucket {
    std::atomic<uint64_t> low[kWays], high[kWays];  // halves of the name; both 0: free
    std::atomic<uint64_t> used[kWays];              // the clock at the last use
  };
  DiskIndex() = default;
  static Result<int> open_file(const DiskIndexConfig& config);
  static Status create_file(const DiskIndexConfig& config, int64_t num_buckets);
  Status map(const DiskIndexConfig& config);

  Bucket& bucket_of(const PageName& name) const;
  Bucket& bucket_of_slot(int64_t slot) const { return buckets_[slot / kWays]; }
  uint64_t tick() const;

  int fd_ = -1;  // holds a shared lock on the file while it is open
  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0, num_buckets_ = 0;
  Header* header_ = nullptr;
  Bucket* buckets_ = nullptr;
};

}  // namespace espalier
