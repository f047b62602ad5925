// Page tables that live on the GPU: each step brings what is new.
#pragma once

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

// tables[begin + i] = pages[source + i] for i in [0, count).
struct PageTableRun {
  int64_t begin = 0;
  int32_t source = 0;
  int32_t count = 0;
};

struct UpdatePageTablesArgs {
  const PageTableRun* runs = nullptr;  // [*num_runs], none touches what another does
  const int32_t* num_runs = nullptr;   // on the device: a graph runs any number
  const int32_t* pages = nullptr;
  int32_t* tables = nullptr;
};
Status update_page_tables(const UpdatePageTablesArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
