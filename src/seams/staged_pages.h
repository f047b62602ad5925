// Copies of computed pages in staging memory, which another process of the same host maps and
// reads: how keys and values leave a prefill server without a network. The cache's own pages are
// free for other prompts as soon as a copy of them has been begun.
//
// Staging memory is divided into blocks. In a block of n pages the planes lie one behind the other,
// each as its n pages, so that neighbours in the cache and in a block move in one copy of rows:
//
//   block + n * (bytes of a page in the planes before p) + i * (bytes of a page in plane p)
//
// is page i of plane p. Planes are counted as PageCopier orders a page's bytes: layer by layer, K,
// then V.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "seams/kv_view.h"

namespace espalier {

// What a process needs to map the staging memory of another one. Plain data.
struct StagingHandle {
  std::string kind;   // "memfd": the host's memory, "cuda-ipc": a GPU's; empty: there is none
  std::string bytes;  // what the kind opens
  // Lies at the start of the memory, so that the process that maps it can check that it is this
  // one.
  std::array<uint8_t, 16> nonce{};
};

// Pages [first, first + num_pages) of a block of block_pages.
struct StagedPart {
  int64_t block = 0;  // bytes from the start of the staging memory
  int32_t block_pages = 0;
  int32_t first = 0, num_pages = 0;
};

struct PlaneRange {
  int32_t begin = 0, end = 0;
};

// Copies of some pages of a prompt, one behind the other in blocks. Its end gives the blocks back.
// For one thread at a time.
class StagedPages {
 public:
  virtual ~StagedPages() = default;

  virtual std::span<const StagedPart> parts() const = 0;  // in the order of the pages
  // Copies come plane by plane: the ranges, in order, are those that wait() returns.
  virtual int32_t num_ranges() const { return 1; }
  // Waits until the planes of a range have been copied. An error: the copy has failed.
  virtual Result<PlaneRange> wait(int32_t range) = 0;
  // Page `page` of a part as PageCopier's bytes. REQUIRES that all ranges were waited for.
  virtual Status read(const StagedPart& part, int32_t page, std::span<std::byte> to) = 0;

  int32_t num_pages() const {
    int32_t count = 0;
    for (const StagedPart& part : parts()) count += part.num_pages;
    return count;
  }
};

// The staging memory of this process. Thread-safe, as far as methods state nothing else.
class PageStaging {
 public:
  virtual ~PageStaging() = default;

  virtual const StagingHandle& handle() const = 0;
  // Begins to copy computed pages of the cache: as many leading ones as there are free blocks for,
  // or null. No page may be written, but by steps that are launched later. For the executor's
  // thread.
  virtual std::unique_ptr<StagedPages> stage(std::span<const PageId> pages) = 0;
  // The same of pages that are complete when the next step has run: each layer is copied as soon as
  // the step has computed it. Null also where this device does not do so. For the executor's
  // thread, which launches the step next.
  virtual std::unique_ptr<StagedPages> stage_next_step(std::span<const PageId> pages) {
    static_cast<void>(pages);
    return nullptr;
  }
};

// The staging memory of another process, mapped into this one while the object lives. Thread-safe.
class MappedStaging {
 public:
  virtual ~MappedStaging() = default;

  // Copies planes of staged pages to pages of the cache, and waits for that. kInvalidArgument where
  // a part does not lie in the memory. REQUIRES as many pages as all parts have.
  virtual Status take(std::span<const StagedPart> parts, PlaneRange planes,
                      std::span<const PageId> pages) = 0;
};

}  // namespace espalier
