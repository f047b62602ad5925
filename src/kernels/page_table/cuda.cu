#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/page_table/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kBlocks = 64, kThreads = 128;

// A decode step has a run of one entry for each lane that begins a page, a prefill a few long ones.
__global__ void update_kernel(UpdatePageTablesArgs args) {
  wait_for_previous();
  const int32_t num_runs = *args.num_runs;
  for (int32_t r = blockIdx.x; r < num_runs; r += gridDim.x) {
    const PageTableRun run = args.runs[r];
    for (int32_t i = threadIdx.x; i < run.count; i += blockDim.x) {
      args.tables[run.begin + i] = args.pages[run.source + i];
    }
  }
}

}  // namespace

Status update_page_tables(const UpdatePageTablesArgs& args, const LaunchOptions& launch) {
  return launch_kernel("update page tables", update_kernel, kBlocks, kThreads, 0, launch, args);
}

}  // namespace espalier::kernels::cuda
