// A tier in the host's memory: one arena of slots, the least recently used page gives way. All
// memory is allocated at the start; then nothing is, but by a watch. Pages are trusted as the cache
// on the device is: nothing but this object writes the arena, so they bear no checksums.
//
// Thread-safe. put() copies on the caller's thread; get() on the store's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/status.h"
#include "tiers/page_store.h"

namespace espalier {

// Changes of a store for its watch: several of a kind are reported together, at the latest where a
// call ends. Under the store's lock.
class PageChanges {
 public:
  void watch(PageWatch watch);
  void add(const PageName& name, bool stored);
  void report();

 private:
  static constexpr size_t kNamesMax = 256;
  PageWatch watch_;  // null: nobody watches
  std::vector<PageName> names_;
  bool are_stored_ = false;  // or removed: all of them
};

struct HostPageStoreConfig {
  int64_t size_bytes = 0;  // of the arena
  int64_t page_bytes = 0;
  int32_t num_gets_max = 256;  // batches that wait; more are refused
};

class HostPageStore final : public PageStore {
 public:
  // kInvalidArgument when not one page fits; kResourceExhausted when the system has no memory.
  static Result<std::unique_ptr<HostPageStore>> create(const HostPageStoreConfig& config);
  ~HostPageStore() override;  // answers what waits as absent

  std::string_view kind() const override { return "host"; }
  int64_t page_bytes() const override { return config_.page_bytes; }
  void get(std::span<const PageName> names, std::shared_ptr<PageSink> sink) override;
  size_t put(std::span<const PageName> names, const FillPage& fill) override;
  size_t num_leading(std::span<const PageName> names) const override;
  void erase(std::span<const PageName> names) override;
  void clear() override;
  void watch(PageWatch watch) override;
  void flush() override {}  // a page is stored when put() returns
  PageStoreStats stats() const override;

  // All memory of pages, which stays where it is, and how many bytes of it have borders both of
  // pages and of the system's pages: parts of a multiple of this size can be pinned one by one.
  std::span<std::byte> arena() const;
  int64_t part_bytes() const;

  // Aborts (ESP_CHECK) unless every slot is free, listed by age or being filled, and the look-up
  // finds exactly the listed ones.
  void check_invariants() const;

 private:
  static constexpr int32_t kNone = -1;

  // A slot is free, being filled (by one put), or stored: then it is in the look-up and in the list
  // by age. A slot that is read has a pin, and keeps its bytes until the last pin is gone.
  enum class SlotState : uint8_t { kFree, kFilling, kStored, kErasedWhileRead };
  struct Slot {
    PageName name;
    SlotState state = SlotState::kFree;
    int32_t pins = 0;
    int32_t newer = kNone, older = kNone;  // list by age
    int32_t next = kNone;                  // chain of a bucket, or list of free slots
  };
  struct Get {
    std::vector<PageName> names;
    std::shared_ptr<PageSink> sink;
  };
  // Pages that a sink has at a time: a device copies one while the next one is begun.
  static constexpr size_t kPagesShown = 4;
  struct Shown {
    size_t index = 0;
    int32_t slot = kNone;
  };

  HostPageStore(const HostPageStoreConfig& config, std::byte* arena, int64_t num_slots);
  std::byte* bytes_of(int32_t slot) const;
  int32_t& bucket_of(const PageName& name);
  int32_t find(const PageName& name) const;
  int32_t take_slot();
  void insert(int32_t slot);
  void remove(int32_t slot);  // from look-up and list
  void release(int32_t slot);
  void push_newest(int32_t slot);
  void unlink(int32_t slot);
  bool put_one(std::span<const PageName> names, size_t index, const FillPage& fill,
               std::unique_lock<std::mutex>& lock);
  void erase_slot(int32_t slot);
  void run();
  void answer(const Get& get);
  void unpin(int32_t slot);

  const HostPageStoreConfig config_;
  std::byte* const arena_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::vector<int32_t> buckets_;  // [power of two]: first slot of the chain
  int32_t newest_ = kNone, oldest_ = kNone, free_ = kNone;
  std::vector<Get> gets_;  // ring; entries keep their capacity
  size_t first_get_ = 0, num_gets_ = 0;
  bool stopped_ = false;
  PageStoreStats stats_;
  PageChanges changes_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace espalier
