// For tests: what the heap was asked for. Linking heap_count.cc replaces the program's operator new
// and delete; they stand in a file of their own so that no caller sees what they are.
#pragma once

#include <cstdint>

namespace espalier {

int64_t num_heap_allocations();  // since the program began, over all threads

// In bytes, as the heap rounds them.
struct HeapUse {
  int64_t total = 0;  // given since the thread began
  int64_t now = 0;    // given less taken back: what other threads gave may come back here
  int64_t most = 0;   // that `now` has been; a test may set it back
};
HeapUse& heap_use_of_this_thread();

}  // namespace espalier
