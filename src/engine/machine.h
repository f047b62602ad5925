// What this machine, or the container around this process, has to give.
#pragma once

#include <cstdint>
#include <filesystem>

namespace espalier {

struct MachineInfo {
  int64_t available_bytes = 0;  // memory that can be had without swapping
  int32_t num_cpus = 1;         // processors that this process may run on
};

// The least of what the system says is available and what each control group (v1 and v2) above this
// process has left, its reclaimable file cache counted as free. `root` is "/" but in tests, which
// put proc/ and sys/ elsewhere.
MachineInfo read_machine(const std::filesystem::path& root = "/");

}  // namespace espalier
