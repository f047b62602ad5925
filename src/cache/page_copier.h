// Copies single pages between the device's cache and the host's memory: how tiers read and write
// them. As bytes a page is its layers one behind the other, each K, then V, and of several ranks
// one rank's part behind the other's.
//
// A transfer begins at once and runs beside its caller and beside the device's steps, so that
// several may run at a time; finish() waits for it. Thread-safe, for different pages. REQUIRES that
// from begin to finish no step reads a page that is written, or writes one that is read, and that
// the host's bytes are not changed; the cache's locks and the tiers' queues ensure it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "seams/kv_view.h"
#include "seams/staged_pages.h"

namespace espalier {

class PageCopier {
 public:
  using Transfer = uint64_t;  // known to the copier that began it

  virtual ~PageCopier() = default;

  virtual int64_t page_bytes() const = 0;
  // What computes the bytes, where it is not this host's processor: a GPU's name.
  virtual std::string device_name() const { return {}; }

  // REQUIRE spans of page_bytes(), and a finish() for each transfer.
  virtual Transfer begin_read(PageId page, std::span<std::byte> to) = 0;
  virtual Transfer begin_write(PageId page, std::span<const std::byte> from) = 0;
  // After an error the bytes of the destination are undefined.
  virtual Status finish(Transfer transfer) = 0;

  Status read_page(PageId page, std::span<std::byte> to) { return finish(begin_read(page, to)); }
  Status write_page(PageId page, std::span<const std::byte> from) {
    return finish(begin_write(page, from));
  }

  // Pins memory of the host, which makes transfers from and to it fast, until unpin() of the same
  // range; the error where the system refuses. A transfer lies in one pinned range or in none.
  // Transfers of other memory go on meanwhile.
  virtual bool uses_pinned_memory() const { return false; }
  virtual Status pin(std::span<std::byte>) { return {}; }
  virtual void unpin(std::span<std::byte>) {}

  // Staging memory of `bytes` for copies of this cache's pages; null where its device has none. It
  // lives as long as the copier. Called once, before the first step.
  virtual Result<PageStaging*> start_staging(int64_t bytes) {
    static_cast<void>(bytes);
    return nullptr;
  }
  // The StagingHandle::kind that map_staging() takes; empty: none.
  virtual std::string staging_kind() const { return {}; }
  // Maps the staging memory of another process whose pages have the same bytes. kUnavailable where
  // it cannot be mapped from here. Thread-safe.
  virtual Result<std::unique_ptr<MappedStaging>> map_staging(const StagingHandle& handle) {
    return fail(error(StatusCode::kUnavailable, "staging memory of kind '{}' cannot be mapped here",
                      handle.kind));
  }
};

// Planes at equal distances whose pages have the same size, so that a page of all of them is one
// copy of rows.
struct PlaneRun {
  std::byte* first = nullptr;
  int64_t pitch = 0;  // bytes from one plane to the next
  int64_t num_planes = 0;
  int64_t page_bytes = 0;  // of one plane

  std::byte* page_at(PageId page) const { return first + page * page_bytes; }
  int64_t bytes() const { return num_planes * page_bytes; }  // of a page
};

// All planes of the view, in the order of a page's bytes; with more than one plane a run's pitch is
// at most pitch_max. kUnimplemented where layers have pages of their own, states or scales.
Result<std::vector<PlaneRun>> plane_runs(const KvView& view, int64_t pitch_max);

// Of planes in the host's memory, which outlive it; a transfer has ended when it has begun. Fails
// as plane_runs().
Result<std::unique_ptr<PageCopier>> make_host_page_copier(const KvView& view);

}  // namespace espalier
