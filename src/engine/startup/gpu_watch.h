// The figures of this computer's GPUs, for /metrics. A thread of its own reads them, since the
// driver may take long to answer, and only while figures() is called.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/config.h"
#include "tensor/cuda/nvml.h"

namespace espalier {

// Thread-safe.
class GpuWatch {
 public:
  using Read = std::function<std::vector<cuda::GpuFigures>()>;
  // `open` runs on the thread, once, and returns what reads the figures; null: there is nothing to
  // read. The first reading follows it at once.
  explicit GpuWatch(std::function<Read()> open, Duration age_max = std::chrono::seconds(1));
  ~GpuWatch();  // waits for a reading under way

  // The last reading, at once. Where it is older than age_max another one begins, for the next
  // caller. Empty before the first.
  std::vector<cuda::GpuFigures> figures();

 private:
  void run(const std::function<Read()>& open);

  const Duration age_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<cuda::GpuFigures> last_;
  TimePoint read_at_{};
  bool wanted_ = true, stopped_ = false;
  std::thread thread_;
};

// Of an engine that computes on GPUs; null for one on the processor. All GPUs of the computer that
// NVML shows; the log reports a driver without NVML.
std::unique_ptr<GpuWatch> watch_gpus(const EngineConfig& config);

}  // namespace espalier
