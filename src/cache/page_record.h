// What a node of the radix tree stores for each of its pages.
#pragma once

#include <cstdint>

namespace espalier {

// The memory that has a page's keys and values.
enum class PageHome : uint8_t { kDevice, kHost, kDisk, kRemote, kInTransit };

enum class PageState : uint8_t {
  kReady,    // the keys and values of all its tokens are there
  kPending,  // a transfer writes them now
  kFailed,   // the transfer failed: the page has no contents and can only be removed
};

// Plain data, 8 bytes. `page` counts within its home; of kInTransit it is the page on the device
// that the transfer reads or writes. Computed pages enter the tree as {page, kDevice, kReady}.
struct PageRecord {
  int32_t page = -1;
  PageHome home = PageHome::kDevice;
  PageState state = PageState::kReady;

  // Whether attention can read the page in the next step.
  bool resident() const { return home == PageHome::kDevice && state == PageState::kReady; }
  friend bool operator==(const PageRecord&, const PageRecord&) = default;
};
static_assert(sizeof(PageRecord) == 2 * sizeof(int32_t) && alignof(PageRecord) == alignof(int32_t));

}  // namespace espalier
