// PageStore: what a tier of memory beyond the device implements. It keeps pages of keys and values
// by their stable names (seams/page_name.h) for as long as it has room: it is a cache, so every
// page may be absent at any time, and a page that is found has exactly the bytes that were put
// under its name.
//
// Batches. A call takes the names of pages in the order of their tokens, so pages behind one that
// is missing are useless, and a store may stop there.
// Threads. All methods are thread-safe and return without waiting for a device or a network; only
// flush() and the destructor wait. Results come on the store's own threads.
// Buffers. The store owns them all: put() lets the caller write into the store's buffer, and get()
// shows the bytes to a sink while they lie in it. So no page is copied twice, and nothing of a
// caller is written after a transfer has been given up.
// Errors. A page that cannot be read, or whose contents are not provably those of its name, is
// absent; a page that cannot be written is dropped. Both are counted in stats(). No call fails.
// Bounds. The memory of queues and buffers is fixed at the start: pages beyond them are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "seams/page_name.h"

namespace espalier {

// Receives the pages of one get(). The store calls it on its own threads, from inside get() for
// pages that it refuses.
class PageSink {
 public:
  virtual ~PageSink() = default;

  // The page names[index] of the batch: page_bytes() bytes, or none where it is absent. Called once
  // for each index, in any order, by one thread at a time.
  virtual void on_page(size_t index, std::span<const std::byte> bytes) = 0;

  // The bytes of on_page(index) are valid until this call, which follows once for each page that
  // has some, has returned; other pages may come before it, so that a sink can read several at a
  // time.
  virtual void on_release(size_t) {}

  // No further call follows.
  virtual void on_done() = 0;
};

// Writes the page_bytes() bytes of the page names[index]. Called inside put(), on its thread.
// False: they cannot be had, and the page is refused.
using FillPage = std::function<bool(size_t index, std::span<std::byte> bytes)>;

// Pages that a store has come to hold, or holds no more.
using PageWatch = std::function<void(std::span<const PageName> names, bool stored)>;

// Totals since the start, but for num_pages.
struct PageStoreStats {
  int64_t num_pages = 0;      // stored now
  int64_t num_pages_max = 0;  // for which there is room; 0: not known
  int64_t found = 0, absent = 0;
  int64_t stored = 0;   // pages put, without those that were there already
  int64_t refused = 0;  // for want of a buffer, of room in a queue or of the bytes
  int64_t errors = 0;   // reads and writes that failed
  int64_t corrupt = 0;  // read, and not what the name stands for
  int64_t evicted = 0;
  int64_t bytes_read = 0, bytes_written = 0;
  int64_t cut_offs = 0;     // how often a remote store was cut off (remote_page_store.h)
  bool is_cut_off = false;  // now
};

class PageStore {
 public:
  virtual ~PageStore() = default;

  virtual std::string_view kind() const = 0;  // as metrics show it: "host", "disk"
  virtual int64_t page_bytes() const = 0;     // of every page

  // Starts to read pages into `sink`, which is kept until its on_done(). Reading a page counts as
  // use of it. `names` is copied.
  virtual void get(std::span<const PageName> names, std::shared_ptr<PageSink> sink) = 0;

  // Starts to store pages; `fill` is called for those that are not there already. Returns how many
  // leading pages are stored or on their way; the page behind them was refused. A page on its way
  // is found once flush() has returned, perhaps earlier. REQUIRES that no name is empty().
  virtual size_t put(std::span<const PageName> names, const FillPage& fill) = 0;

  // How many leading pages get() would probably find: a hint, answered without reading them.
  virtual size_t num_leading(std::span<const PageName> names) const = 0;

  // Of a store that cannot know its pages without a network: asks which leading pages are there,
  // and calls `done` when num_leading() knows, on the store's thread, or inside where nothing has
  // to be asked. `names` is copied.
  virtual void look_up(std::span<const PageName> /*names*/, std::function<void()> done) { done(); }
  // Whether num_leading() knows pages that others have put only after look_up().
  virtual bool needs_look_up() const { return false; }

  // Removes pages; those of a put() that is not flushed may come after it. Other processes that
  // share the store lose them, too.
  virtual void erase(std::span<const PageName> names) = 0;
  virtual void clear() = 0;  // the same of all pages

  // `watch` is called from now on when pages come and go, in the order in which they do, on any
  // thread that uses the store and under its lock. A store whose pages others remove too calls
  // nothing.
  virtual void watch(PageWatch /*watch*/) {}

  // Waits until all pages that put() has taken are stored or dropped.
  virtual void flush() = 0;

  virtual PageStoreStats stats() const = 0;
  // Why a remote store is cut off now; "" when it is not.
  virtual std::string problem() const { return ""; }
};

}  // namespace espalier
