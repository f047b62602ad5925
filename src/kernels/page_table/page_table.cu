// A few blocks read pinned memory; what a thread reads first it has asked for before it waits for
// the kernel before.
//
// A decode step of 16 entries brings a kilobyte: one way over the bus and back, 2.7 us on an H200,
// and no copy that the stream would have to wait for between two steps (one of the whole block, 200
// KB, took 6.5 us and as much again until the next kernel began). Its page tables get one entry a
// entry, each with its run, which is asked for at the same time. A prefill brings some 100 KB, and
// runs of many entries: all blocks take their share, with the runs in shared memory.
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/page_table/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 64;    // of either kind of work
constexpr int kRunsAtOnce = 512;  // in shared memory

struct Units {
  const uint4* from;
  uint4* to;
};

// Unit `index` of all ranges together.
__device__ Units unit_at(const BringInputsArgs& args, int index) {
  int r = 0;
  while (index >= args.ranges[r].count) index -= args.ranges[r++].count;
  const int at = args.ranges[r].begin + index;
  return {static_cast<const uint4*>(args.host) + at, static_cast<uint4*>(args.device) + at};
}

__device__ void bring_ranges(const BringInputsArgs& args, int units, int blocks) {
  int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  Units unit{};
  uint4 words{};
  if (i < units) {
    unit = unit_at(args, i);
    words = __ldcv(unit.from);
  }
  wait_for_previous();
  if (i < units) *unit.to = words;
  for (i += blocks * kThreads; i < units; i += blocks * kThreads) {
    unit = unit_at(args, i);
    *unit.to = __ldcv(unit.from);
  }
}

__device__ PageTableRun load_run(const PageTableRun* from) {
  const int4 words = __ldcv(reinterpret_cast<const int4*>(from));
  const auto low = static_cast<uint32_t>(words.x), high = static_cast<uint32_t>(words.y);
  return {.begin = static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low),
          .source = words.z,
          .count = words.w};
}

// Runs of one entry each: run i has pages[i].
__device__ void bring_entries(const BringInputsArgs& args, int block, int blocks) {
  const int first = block * kThreads + static_cast<int>(threadIdx.x);
  PageTableRun run;
  int32_t page = 0;
  if (first < args.num_runs) {
    run = load_run(args.runs + first);
    page = __ldcv(args.pages + first);
  }
  wait_for_previous();
  if (first < args.num_runs) args.tables[run.begin] = page;
  for (int i = first + blocks * kThreads; i < args.num_runs; i += blocks * kThreads)
    args.tables[load_run(args.runs + i).begin] = __ldcv(args.pages + i);
}

__device__ void bring_runs(const BringInputsArgs& args, int block, int blocks) {
  __shared__ PageTableRun runs[kRunsAtOnce];
  wait_for_previous();
  for (int base = 0; base < args.num_runs; base += kRunsAtOnce) {
    const int count = min(kRunsAtOnce, args.num_runs - base);
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kThreads) runs[i] = load_run(args.runs + base + i);
    __syncthreads();
    const int end = runs[count - 1].source + runs[count - 1].count;
#pragma unroll 4
    for (int i = runs[0].source + block * kThreads + static_cast<int>(threadIdx.x); i < end;
         i += blocks * kThreads) {
      const int32_t page = __ldcv(args.pages + i);
      int low = 0, high = count - 1;  // the last run whose source is not behind i
      while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (runs[middle].source <= i)
          low = middle;
        else
          high = middle - 1;
      }
      args.tables[runs[low].begin + (i - runs[low].source)] = page;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    bring_inputs_kernel(const __grid_constant__ BringInputsArgs args, int units, int unit_blocks) {
  const int block = static_cast<int>(blockIdx.x) - unit_blocks;
  const int table_blocks = static_cast<int>(gridDim.x) - unit_blocks;
  if (block < 0)
    bring_ranges(args, units, unit_blocks);
  else if (args.num_runs == args.num_pages)
    bring_entries(args, block, table_blocks);
  else
    bring_runs(args, block, table_blocks);
}

int blocks_for(int64_t count) {
  return static_cast<int>(std::min<int64_t>(kMaxBlocks, (count + kThreads - 1) / kThreads));
}

}  // namespace

Status bring_inputs(const BringInputsArgs& args, const LaunchOptions& launch) {
  if (args.num_ranges < 0 || args.num_ranges > kMaxInputRanges || args.num_runs < 0 ||
      args.num_pages < args.num_runs || !aligned(args.host, 16) || !aligned(args.device, 16) ||
      !aligned(args.runs, 16))
    return invalid_argument("bring_inputs: {} ranges, {} runs of {} pages", args.num_ranges,
                            args.num_runs, args.num_pages);
  int64_t units = 0;
  for (int i = 0; i < args.num_ranges; ++i) units += args.ranges[i].count;
  const int unit_blocks = blocks_for(units), table_blocks = blocks_for(args.num_pages);
  if (unit_blocks + table_blocks == 0) return {};
  return launch_kernel("bring_inputs", bring_inputs_kernel,
                       dim3(static_cast<unsigned>(unit_blocks + table_blocks)), kThreads, 0, launch,
                       args, static_cast<int>(units), unit_blocks);
}

}  // namespace espalier::kernels::cuda
