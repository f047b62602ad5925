// Estimates of the memory that containers hold, for the accounts of compiled grammars.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace espalier::grammar {

// Returns the resident bytes of an allocation of `capacity` bytes whose first `used` bytes have
// been written. Large allocations come from the system page by page, so their unused end is not
// resident.
inline size_t resident_bytes(size_t used, size_t capacity) {
  constexpr size_t kOwnPages = size_t{128} << 10;  // glibc's threshold for mapping
  constexpr size_t kPage = 4096, kOverhead = 16;   // of an allocation from the heap
  if (capacity == 0) return 0;
  if (capacity < kOwnPages) return capacity + kOverhead;
  return std::min((used + kPage - 1) / kPage * kPage, capacity);
}

template <typename T>
size_t held_bytes(const std::vector<T>& list) {
  return resident_bytes(list.size() * sizeof(T), list.capacity() * sizeof(T));
}

// Returns the bytes of the nodes and buckets of a hash map, without what its values point to.
template <typename Map>
size_t held_bytes_of_map(const Map& map) {
  constexpr size_t kNodeOverhead = 32;  // the next node, the hash, and the allocation's own
  return map.size() * (sizeof(typename Map::value_type) + kNodeOverhead) +
         map.bucket_count() * sizeof(void*);
}

}  // namespace espalier::grammar
