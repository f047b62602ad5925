#include "apps/bench/runner.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "apps/progress.h"
#include "base/clock.h"
#include "base/rng.h"
#include "base/thread.h"

namespace espalier::apps {
namespace {

// Seconds after the start at which each conversation begins: exponential gaps.
std::vector<double> arrivals(size_t count, const RunnerOptions& options) {
  std::vector<double> out(count, 0.0);
  if (options.request_rate <= 0) return out;
  Rng rng(options.seed);
  double now = 0;
  for (double& arrival : out) {
    arrival = now;
    now += -std::log(1.0 - rng.uniform()) / options.request_rate;
  }
  return out;
}

size_t count_turns(const std::vector<Conversation>& workload) {
  size_t turns = 0;
  for (const Conversation& conversation : workload) turns += conversation.turns.size();
  return turns;
}

}  // namespace

double now_seconds() { return to_seconds(SteadyClock().now().time_since_epoch()); }

RunResult run_workload(const std::vector<Conversation>& workload, const RunnerOptions& options,
                       const SenderFactory& make_sender) {
  RunResult result;
  const std::vector<double> begins = arrivals(workload.size(), options);
  size_t workers = workload.size();
  if (options.max_concurrency > 0)
    workers = std::min(workers, static_cast<size_t>(options.max_concurrency));

  ProgressBar progress("requests", static_cast<int64_t>(count_turns(workload)));
  std::atomic<size_t> next{0};
  std::mutex mutex;  // guards result.records
  const TimePoint start = SteadyClock().now();
  const auto work = [&] {
    set_thread_name("bench");
    const std::unique_ptr<Sender> sender = make_sender();
    for (size_t index = next++; index < workload.size(); index = next++) {
      std::this_thread::sleep_until(start + std::chrono::duration_cast<Duration>(
                                                std::chrono::duration<double>(begins[index])));
      ConversationState state;
      for (const Turn& turn : workload[index].turns) {
        const double started = to_seconds(SteadyClock().now() - start);
        RequestRecord record = sender->send(turn, state);
        record.started = started;
        const bool ok = record.ok;
        {
          std::lock_guard lock(mutex);
          result.records.push_back(std::move(record));
        }
        progress.advance();
        if (!ok) break;  // the rest of a conversation needs its beginning
      }
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < workers; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  result.seconds = to_seconds(SteadyClock().now() - start);
  return result;
}

void TokenTimer::tokens(double now, int32_t total) {
  if (total <= count_) return;
  if (first_ < 0) {
    first_ = now;
  } else {
    const auto gap = static_cast<float>((now - last_) / (total - count_));
    gaps_.insert(gaps_.end(), static_cast<size_t>(total - count_), gap);
  }
  count_ = total;
  last_ = now;
}

void TokenTimer::finish(double now, RequestRecord& record) {
  record.output_tokens = count_;
  record.time_to_first_token = (first_ < 0 ? now : first_) - started_;
  record.latency = (count_ > 0 ? last_ : now) - started_;
  record.gaps = std::move(gaps_);
}

}  // namespace espalier::apps
