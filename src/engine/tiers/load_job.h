// One load: pages that stores bring into the device's pages of a waiting sequence. Copies of
// several pages run at a time, as many as a store shows. It outlives its caller, for a store may
// still hold it when the load has been given up.
//
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"
#include "cache/page_copier.h"
#include "seams/forward_batch.h"
#include "tiers/page_store.h"

namespace espalier {

class LoadJob : public std::enable_shared_from_this<LoadJob> {
 public:
  enum class Source : uint8_t { kNone, kHost, kStorage };
  // Called when the last page has been answered, on a store's thread; not after cancel().
  using Ended = std::function<void()>;

  LoadJob(SequenceId id, PageCopier& copier, std::span<const PageId> pages, Ended ended);

  SequenceId id() const { return id_; }
  size_t num_pages() const { return written_.size(); }

  // Pages [first, first + names.size()) come from `store`. Pages that are loaded from elsewhere are
  // also put into `keep`, unless it is null. Called before begin().
  void add(PageStore& store, Source source, size_t first, std::span<const PageName> names,
           PageStore* keep);
  void begin();  // starts all transfers that were added; `ended` may be called inside

  // No page is written any more once it has returned; waits for those that are being written.
  void cancel();

  // Of the pages, how many leading ones have been written, by where they came from. REQUIRES that
  // the job has ended or is cancelled.
  struct Written {
    int32_t host = 0, storage = 0;
    int32_t total() const { return host + storage; }
  };
  Written written() const;

 private:
  class Sink;
  struct Part {
    PageStore* store = nullptr;
    PageStore* keep = nullptr;
    Source source = Source::kNone;
    size_t first = 0;
    std::vector<PageName> names;
  };
  void begin_page(const Part& part, size_t index, std::span<const std::byte> bytes);
  void end_page(const Part& part, size_t index);
  void end_part();

  const SequenceId id_;
  PageCopier& copier_;
  const Ended ended_;
  std::vector<Part> parts_;  // unchanged from begin() on
  mutable std::mutex mutex_;
  std::condition_variable copied_;
  const std::vector<PageId> pages_;
  struct Copy {
    PageCopier::Transfer transfer = 0;
    bool has_begun = false;
  };
  std::vector<Copy> copies_;     // [pages]; each belongs to its store's thread
  std::vector<Source> written_;  // [pages]
  size_t num_copying_ = 0, num_parts_left_ = 0;
  bool is_cancelled_ = false;
};

}  // namespace espalier
