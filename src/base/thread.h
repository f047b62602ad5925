// Naming and placing threads.
#pragma once

#include <string_view>
#include <vector>

namespace espalier {

// At most 15 bytes are kept; what `top -H` and gdb show.
void set_thread_name(std::string_view name);

// The calling thread gives way to the others where processors are short: a third of a share. For
// work that takes long beside what other requests' tokens wait for.
void give_way();

// The processors that this process may run on (its affinity mask, so a container's limit counts),
// hyperthread siblings and NUMA nodes ordered so that the first n are the n to use.
std::vector<int> usable_cpus();

// Binds the calling thread to one processor. False where the system refuses; the thread then
// floats.
bool pin_this_thread(int cpu);

}  // namespace espalier
