#include "apps/signals.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <semaphore>
#include <thread>
#include <utility>

#include "apps/command_line.h"
#include "base/log.h"
#include "base/thread.h"

namespace espalier::apps {

namespace {

enum class Phase { kLoading, kServing, kEnding };

}  // namespace

struct ServeSignals::State {
  std::atomic<Phase> phase{Phase::kLoading};
  std::binary_semaphore came{0};
  int number = 0;
  std::mutex mutex;
  std::function<void()> reload;  // guarded by mutex

  // Waits for a signal that stops, and reloads for each SIGHUP before it.
  int next_stop(const sigset_t& signals) {
    for (int next = 0;;) {
      sigwait(&signals, &next);
      if (next != SIGHUP) return next;
      std::lock_guard lock(mutex);
      if (reload != nullptr) reload();
    }
  }
};

sigset_t block_signals(bool reloads) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  if (reloads) sigaddset(&signals, SIGHUP);
  struct sigaction inherited {};
  sigaction(SIGINT, nullptr, &inherited);
  if (inherited.sa_handler != SIG_IGN) sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
}

ServeSignals::ServeSignals(sigset_t signals) : state_(std::make_shared<State>()) {
  std::thread([signals, state = state_] {
    set_thread_name("signals");
    const int number = state->next_stop(signals);
    Phase loading = Phase::kLoading;
    if (state->phase.compare_exchange_strong(loading, Phase::kEnding)) {
      log_info("stopped signal={} while the model was loaded", strsignal(number));
      _exit(kExitOk);
    }
    state->number = number;
    state->came.release();
    state->next_stop(signals);
    _exit(kExitOk);
  }).detach();
}

void ServeSignals::begin_serving() {
  Phase loading = Phase::kLoading;
  if (state_->phase.compare_exchange_strong(loading, Phase::kServing)) return;
  while (true) pause();
}

void ServeSignals::on_reload(std::function<void()> reload) {
  std::lock_guard lock(state_->mutex);
  state_->reload = std::move(reload);
}

int ServeSignals::wait() {
  state_->came.acquire();
  return state_->number;
}

}  // namespace espalier::apps
