// run_batch: many programs at once on few threads.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>

#include "base/thread.h"
#include "lang/graph/tracer.h"
#include "lang/interpreter/live_stream.h"
#include "lang/program.h"
#include "lang/waiting.h"

namespace espalier::lang {
namespace {

constexpr int kThreadsMax = 96;         // as SGLang's "auto"
constexpr size_t kPrefixCharsMin = 64;  // what is worth a request of its own, as in SGLang

// One run_batch: threads take programs, and a program has ended when its state is idle.
class Batch {
 public:
  Batch(const Program& program, const std::vector<Arguments>& arguments,
        const BatchOptions& options, Location where)
      : program_(program),
        arguments_(arguments),
        options_(options),
        where_(where),
        states_(arguments.size()),
        num_to_do_(arguments.size()) {}

  std::vector<State> run() {
    const size_t asked =
        static_cast<size_t>(options_.num_threads > 0 ? options_.num_threads : kThreadsMax);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < std::min(asked, arguments_.size()); ++i)
      threads.emplace_back([this] { work(); });
    const auto is_done = [&] { return num_done_ == num_to_do_; };
    {
      std::unique_lock lock(mutex_);
      if (!wait_until(lock, changed_, is_done)) {
        num_to_do_ = num_begun_;  // no more of them begin
        const std::vector<std::optional<State>> begun = states_;
        changed_.notify_all();
        lock.unlock();
        for (std::optional<State> state : begun)
          if (state) state->cancel();
        lock.lock();
        changed_.wait(lock, is_done);
      }
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<State> states;
    for (auto& state : states_) {
      if (!state) {
        state = start(options_.run, where_);
        state->handle()->fail_with(interrupted(), where_);
      }
      states.push_back(std::move(*state));
    }
    return states;
  }

 private:
  void work() {
    set_thread_name("esp-batch");
    while (const std::optional<size_t> index = next()) {
      State state = start(options_.run, where_);
      bool is_broken_off = false;
      {
        std::lock_guard lock(mutex_);
        states_[*index] = state;
        is_broken_off = num_to_do_ < arguments_.size();
      }
      if (is_broken_off) state.cancel();
      const Arguments& arguments = arguments_[*index];
      if (Status status = program_.check(arguments); !status.ok()) {
        state.handle()->fail_with(std::move(status), where_);
      } else {
        try {
          program_(state, arguments);
        } catch (const std::exception& why) {
          internal::program_threw(state, why, where_);
        }
      }
      static_cast<LiveStream&>(*state.handle()).when_idle([this] { ended(); });
    }
  }

  // Waits while as many as may be are in flight.
  std::optional<size_t> next() {
    std::unique_lock lock(mutex_);
    const auto max = static_cast<size_t>(std::max(1, options_.num_in_flight_max));
    changed_.wait(lock, [&] { return num_begun_ == num_to_do_ || num_begun_ - num_done_ < max; });
    if (num_begun_ == num_to_do_) return std::nullopt;
    return num_begun_++;
  }

  void ended() {
    {
      // One at a time, in the order of the counts.
      std::lock_guard progress_lock(progress_mutex_);
      const size_t done = ++num_ended_;
      if (options_.progress) options_.progress(done, arguments_.size());
    }
    std::lock_guard lock(mutex_);
    ++num_done_;
    changed_.notify_all();
  }

  const Program& program_;
  const std::vector<Arguments>& arguments_;
  const BatchOptions& options_;
  const Location where_;
  std::mutex mutex_, progress_mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<State>> states_;
  size_t num_to_do_;  // fewer than there are once the caller has broken off
  size_t num_begun_ = 0, num_done_ = 0, num_ended_ = 0;
};

void prefetch_prefix(const Program& program, const RunOptions& run) {
  const auto backend = run.backend != nullptr ? run.backend : default_backend();
  if (backend == nullptr || !backend->can_prefetch()) return;
  const std::string prefix = constant_prefix(program, *backend);
  if (prefix.size() <= kPrefixCharsMin) return;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  static std::atomic<int64_t> next_id{0};
  backend->prefetch(fmt::format("lang-prefix-{}", next_id++), {.text = prefix},
                    [&](const Status&) {  // a hint: it may fail
                      std::lock_guard lock(mutex);
                      done = true;
                      changed.notify_one();
                    });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });  // not to be broken off: what is asked refers to here
}

}  // namespace

std::vector<State> run_batch(const Program& program, const std::vector<Arguments>& arguments,
                             const BatchOptions& options, Location where) {
  if (options.prefetch_prefix && arguments.size() > 1) prefetch_prefix(program, options.run);
  return Batch(program, arguments, options, where).run();
}

std::function<void(size_t, size_t)> progress_bar(std::string title) {
  return [title = std::move(title)](size_t done, size_t total) {
    constexpr size_t kWidth = 40;
    const size_t filled = total == 0 ? kWidth : done * kWidth / total;
    const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
    const char* const end = done == total ? "\n" : "";
    std::fputs(fmt::format("\r{} [{}] {}/{}{}", title, bar, done, total, end).c_str(), stderr);
    std::fflush(stderr);
  };
}

}  // namespace espalier::lang
