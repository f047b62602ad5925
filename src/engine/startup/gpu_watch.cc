#include "engine/startup/gpu_watch.h"

#include "base/log.h"
#include "base/thread.h"

namespace espalier {

GpuWatch::GpuWatch(std::function<Read()> open, Duration age_max)
    : age_max_(age_max), thread_([this, open = std::move(open)] { run(open); }) {}

GpuWatch::~GpuWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::vector<cuda::GpuFigures> GpuWatch::figures() {
  const std::lock_guard lock(mutex_);
  if (SteadyClock().now() - read_at_ > age_max_) {
    wanted_ = true;
    changed_.notify_one();
  }
  return last_;
}

void GpuWatch::run(const std::function<Read()>& open) {
  set_thread_name("esp-gpus");
  const Read read = open();
  if (!read) return;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return wanted_ || stopped_; });
    if (stopped_) return;
    lock.unlock();
    std::vector<cuda::GpuFigures> now = read();
    lock.lock();
    last_ = std::move(now);
    read_at_ = SteadyClock().now();
    wanted_ = false;
  }
}

std::unique_ptr<GpuWatch> watch_gpus(const EngineConfig& config) {
  if (config.compute.device != "cuda") return nullptr;
  return std::make_unique<GpuWatch>([]() -> GpuWatch::Read {
    auto opened = cuda::Nvml::open();
    if (!opened) {
      log_info("/metrics has no figures of GPUs reason=\"{}\"", opened.error().message());
      return {};
    }
    // Shared: functions are copied.
    return [nvml = std::make_shared<const cuda::Nvml>(std::move(*opened))] { return nvml->read(); };
  });
}

}  // namespace espalier
