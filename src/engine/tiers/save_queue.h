// Pages of the device that wait to be saved in stores, and the thread that saves them, so that the
// scheduler waits for no copy. The exception is a page that is being read when it is about to be
// used for something else: take_back() waits for the end of that copy.
//
// A page is in the queue once, so the queue is bounded by the device's pages and allocates nothing.
//
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "cache/page_copier.h"
#include "seams/page_name.h"
#include "tiers/page_store.h"

namespace espalier {

class SaveQueue {
 public:
  // Borrows the copier and the stores, from the nearest on.
  SaveQueue(PageCopier& copier, std::vector<PageStore*> stores, int32_t num_device_pages);
  ~SaveQueue();  // saves what waits

  // Appends pages, but for those that are in the queue, being saved or saved. Their contents stay
  // as they are until take_back().
  using NameOf = std::function<const PageName&(PageId)>;
  void add(std::span<const PageId> pages, const NameOf& name_of);

  // Takes pages out of the queue and waits for those that are being read. From here on they count
  // as not saved, and may be written.
  void take_back(std::span<const PageId> pages);

  // Saves pages on the caller's thread, in their order. Returns how many leading ones all stores
  // have. REQUIRES that they were taken back.
  size_t save_now(std::span<const PageId> pages, std::span<const PageName> names) const;

  // Waits until what was added is saved or refused.
  void flush();

  bool is_saved(PageId page) const;

  // Aborts (ESP_CHECK) unless exactly the queued pages are linked, in both directions.
  void check_invariants() const;

 private:
  static constexpr PageId kNone = -1;
  static constexpr size_t kBatch = 8;  // pages; what take_back() may have to wait for

  enum class State : uint8_t { kIdle, kQueued, kReading, kSaved };
  struct Page {
    PageName name;
    State state = State::kIdle;
    PageId previous = kNone, next = kNone;
  };
  Page& at(PageId page) { return pages_[static_cast<size_t>(page)]; }
  void append(PageId page);
  void unlink(PageId page);
  void run();

  PageCopier& copier_;
  const std::vector<PageStore*> stores_;
  mutable std::mutex mutex_;
  std::condition_variable added_, ended_;
  std::vector<Page> pages_;  // [pages of the device]
  PageId first_ = kNone, last_ = kNone;
  bool is_reading_ = false;
  bool stopped_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace espalier
