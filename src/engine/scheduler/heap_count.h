// For tests: how often the heap was asked for memory. Linking heap_count.cc replaces the program's
// operator new; it stands in a file of its own so that no caller sees what it is.
#pragma once

#include <cstdint>

namespace espalier {

int64_t num_heap_allocations();  // since the program began, over all threads

}  // namespace espalier
