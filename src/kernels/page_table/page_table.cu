// bring_inputs: a step's inputs and new page-table entries from pinned host memory to the GPU. The
// kernel reads the host over the bus itself, so the stream waits for no separate copy.
// Parallel: some blocks copy 16-byte words, others write table entries; each thread issues its
// first reads before wait_for_previous(). A decode step has one page-table entry a sequence and
// reads its run and page at once; a prefill has runs of many entries, which all blocks share
// through shared memory.
// Roof: latency of the bus at decode (a kilobyte for 16 entries: 2.7 us on an H200), its bandwidth
// at prefill (some 100 KB). History: docs/notes/elementwise.md.
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/page_table/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kInputThreads = 256;
constexpr int kMaxBlocks = 64;    // for words, and as many for tables
constexpr int kRunsAtOnce = 512;  // in shared memory

struct WordCopy {
  const uint4* from;
  uint4* to;
};

// The copy of word `index` of all ranges together.
__device__ WordCopy word_at(const BringInputsArgs& args, int index) {
  int r = 0;
  while (index >= args.ranges[r].count) index -= args.ranges[r++].count;
  const int at = args.ranges[r].begin + index;
  return {static_cast<const uint4*>(args.host) + at, static_cast<uint4*>(args.device) + at};
}

__device__ void copy_ranges(const BringInputsArgs& args, int num_words, int blocks) {
  int i = static_cast<int>(blockIdx.x) * kInputThreads + static_cast<int>(threadIdx.x);
  WordCopy copy{};
  uint4 word{};
  if (i < num_words) {
    copy = word_at(args, i);
    word = __ldcv(copy.from);
  }
  wait_for_previous();
  if (i < num_words) *copy.to = word;
  for (i += blocks * kInputThreads; i < num_words; i += blocks * kInputThreads) {
    copy = word_at(args, i);
    *copy.to = __ldcv(copy.from);
  }
}

__device__ PageTableRun load_run(const PageTableRun* from) {
  const int4 words = __ldcv(reinterpret_cast<const int4*>(from));
  const auto low = static_cast<uint32_t>(words.x), high = static_cast<uint32_t>(words.y);
  return {.begin = static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low),
          .source = words.z,
          .count = words.w};
}

// Writes runs of one entry each: run i has pages[i].
__device__ void write_single_entries(const BringInputsArgs& args, int block, int blocks) {
  const int first = block * kInputThreads + static_cast<int>(threadIdx.x);
  PageTableRun run;
  int32_t page = 0;
  if (first < args.num_runs) {
    run = load_run(args.runs + first);
    page = __ldcv(args.pages + first);
  }
  wait_for_previous();
  if (first < args.num_runs) args.tables[run.begin] = page;
  for (int i = first + blocks * kInputThreads; i < args.num_runs; i += blocks * kInputThreads)
    args.tables[load_run(args.runs + i).begin] = __ldcv(args.pages + i);
}

__device__ void write_runs(const BringInputsArgs& args, int block, int blocks) {
  __shared__ PageTableRun runs[kRunsAtOnce];
  wait_for_previous();
  for (int base = 0; base < args.num_runs; base += kRunsAtOnce) {
    const int count = min(kRunsAtOnce, args.num_runs - base);
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kInputThreads)
      runs[i] = load_run(args.runs + base + i);
    __syncthreads();
    const int end = runs[count - 1].source + runs[count - 1].count;
#pragma unroll 4
    for (int i = runs[0].source + block * kInputThreads + static_cast<int>(threadIdx.x); i < end;
         i += blocks * kInputThreads) {
      const int32_t page = __ldcv(args.pages + i);
      int low = 0, high = count - 1;  // the last run whose source is at most i
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

__global__ void __launch_bounds__(kInputThreads)
    bring_inputs_kernel(const __grid_constant__ BringInputsArgs args, int num_words,
                        int word_blocks) {
  const int block = static_cast<int>(blockIdx.x) - word_blocks;
  const int table_blocks = static_cast<int>(gridDim.x) - word_blocks;
  if (block < 0)
    copy_ranges(args, num_words, word_blocks);
  else if (args.num_runs == args.num_pages)
    write_single_entries(args, block, table_blocks);
  else
    write_runs(args, block, table_blocks);
}

int blocks_for(int64_t count) {
  return static_cast<int>(
      std::min<int64_t>(kMaxBlocks, (count + kInputThreads - 1) / kInputThreads));
}

}  // namespace

Status bring_inputs(const BringInputsArgs& args, const LaunchOptions& launch) {
  if (args.num_ranges < 0 || args.num_ranges > kMaxInputRanges || args.num_runs < 0 ||
      args.num_pages < args.num_runs || !aligned(args.host, 16) || !aligned(args.device, 16) ||
      !aligned(args.runs, 16))
    return invalid_argument("bring_inputs: {} ranges, {} runs of {} pages", args.num_ranges,
                            args.num_runs, args.num_pages);
  int64_t num_words = 0;
  for (int i = 0; i < args.num_ranges; ++i) num_words += args.ranges[i].count;
  const int word_blocks = blocks_for(num_words), table_blocks = blocks_for(args.num_pages);
  if (word_blocks + table_blocks == 0) return {};
  return launch_kernel("bring_inputs", bring_inputs_kernel,
                       dim3(static_cast<unsigned>(word_blocks + table_blocks)), kInputThreads, 0,
                       launch, args, static_cast<int>(num_words), word_blocks);
}

}  // namespace espalier::kernels::cuda
