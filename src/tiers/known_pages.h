// Which pages a store elsewhere probably has: what it was seen to have, with the time. A table of
// fixed size, where the entry that was seen least recently gives way within its bucket.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "seams/page_name.h"

namespace espalier {

class KnownPages {
 public:
  // Room for about `num_pages_max` names.
  explicit KnownPages(size_t num_pages_max);

  void add(const PageName& name, TimePoint seen);
  void remove(const PageName& name);
  void clear();

  // When the page was last seen; none where it is not known.
  std::optional<TimePoint> find(const PageName& name) const;

 private:
  static constexpr size_t kWays = 8;
  struct Entry {
    PageName name;  // empty: free
    TimePoint seen{};
  };
  Entry* bucket_of(const PageName& name);

  std::vector<Entry> entries_;  // [a power of two of buckets][kWays]
};

}  // namespace espalier
