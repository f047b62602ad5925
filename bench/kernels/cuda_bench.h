// What the benchmarks of CUDA kernels share: memory with random contents, and timed graph replays.
// Not thread-safe; a failing call of CUDA ends the process.
#pragma once

#include <cuda_runtime.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cuda_ceilings.h"
#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

inline void must(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "kernels_cuda_bench: {}\n", status.message());
  std::exit(1);
}
inline void must(cudaError_t code) {
  if (code == cudaSuccess) return;
  fmt::print(stderr, "kernels_cuda_bench: {}\n", cudaGetErrorString(code));
  std::exit(1);
}

class Memory {
 public:
  Memory(size_t bytes, uint32_t seed, float deviation = 1.0f) : bytes_(bytes) {
    must(cudaMalloc(&data_, bytes));
    fill_random(data_, bytes / 2, seed, deviation, nullptr);
    must(cudaStreamSynchronize(nullptr));  // the measuring stream does not wait for this one
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data_); }
  char* get(size_t at = 0) const { return static_cast<char*>(data_) + at; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class Bench {
 public:
  explicit Bench(std::string only) : only_(std::move(only)) {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  Stream stream() const { return stream_; }
  bool wants(const std::string& name) const { return name.find(only_) != std::string::npos; }

  // Seconds of one `work(i)`, i counting calls: the median over replays of a graph of `calls`.
  double time(const std::function<void(int)>& work, int calls, int replays = 7) {
    work(0);
    must(cudaStreamSynchronize(stream_));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) work(i);
    must(cudaStreamEndCapture(stream_, &graph));
    must(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin = nullptr, end = nullptr;
    must(cudaEventCreate(&begin));
    must(cudaEventCreate(&end));
    std::vector<double> seconds;
    for (int i = 0; i < replays + 1; ++i) {
      must(cudaEventRecord(begin, stream_));
      must(cudaGraphLaunch(exec, stream_));
      must(cudaEventRecord(end, stream_));
      must(cudaEventSynchronize(end));
      float ms = 0;
      must(cudaEventElapsedTime(&ms, begin, end));
      if (i > 0) seconds.push_back(ms * 1e-3 / calls);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    std::nth_element(seconds.begin(), seconds.begin() + replays / 2, seconds.end());
    return seconds[static_cast<size_t>(replays / 2)];
  }

  void row(const std::string& name, double seconds, double bytes, double flops) {
    const double predicted =
        std::max(bytes / read_rate, flops / (flop_rate > 0 ? flop_rate : 1e15));
    fmt::print("{:52} {:9.1f} us {:8.2f} TB/s {:7.1f} TFLOP/s  predicted {:8.1f} us  {:5.1f} %\n",
               name, seconds * 1e6, bytes / seconds * 1e-12, flops / seconds * 1e-12,
               predicted * 1e6, 100 * predicted / seconds);
    std::fflush(stdout);
    json += fmt::format(
        "{}{{\"name\": \"{}\", \"us\": {:.2f}, \"bytes\": {:.0f}, \"flops\": {:.0f}, "
        "\"predicted_us\": {:.2f}}}",
        json.empty() ? "" : ",\n", name, seconds * 1e6, bytes, flops, predicted * 1e6);
  }

  double read_rate = 4.2e12, flop_rate = 0;  // measured first
  std::string json;

 private:
  std::string only_;
  cudaStream_t stream_ = nullptr;
};

// Experts of mixture-of-experts models: router scores, permutation and grouped GEMMs.
void experts(Bench& bench);
void coded_experts(Bench& bench);

}  // namespace espalier::kernels::cuda
