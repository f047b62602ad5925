// What this system, or the container around this process, has to give.
#pragma once

#include <cstdint>
#include <filesystem>

namespace espalier {

struct SystemInfo {
  int64_t available_bytes = 0;  // memory that can be had without swapping; a GPU's own
  int32_t num_cpus = 1;         // processors that this process may run on
  // Defaults of settings: the share of memory to use (other programs need the rest), and prompt
  // tokens of one step (enough rows for GEMMs to reach their rate, and a step short enough that
  // running requests do not stall behind a long prompt).
  double mem_fraction = 0.6;
  int32_t prefill_chunk = 512;
  // A step with prompts and running requests to the same step without prompts, at most, by how many
  // wait for their prompts; 0: no bound.
  double mixed_step_ratio = 2, mixed_step_ratio_most = 8;
  // Threads that fill the masks of a step: where processors compute the step there are none to
  // spare for it.
  int32_t mask_threads = 1;
  // Threads that read pictures: beside a GPU as many as one batch of its encoder has pictures.
  int32_t image_threads = 4;
};

// The least of what the system says is available and what each control group (v1 and v2) above this
// process has left, its reclaimable file cache counted as free. `root` is "/" but in tests, which
// put proc/ and sys/ elsewhere.
SystemInfo read_system_info(const std::filesystem::path& root = "/");

}  // namespace espalier
