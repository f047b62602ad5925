// The signals that end a server: the first one lets it drain, a second one ends it at once.
#pragma once

#include <signal.h>

#include <functional>
#include <memory>

namespace espalier::apps {

// SIGTERM, SIGINT and SIGHUP, to be taken by sigwait; every thread made later inherits the mask. A
// SIGINT that was ignored when the process began stays so: a shell's background job is not meant by
// Ctrl-C.
// reloads: whether SIGHUP has files to read again; else it ends the process, as its default is.
sigset_t block_signals(bool reloads);

// Receives the signals in a thread of its own. While a model is loading, which may take
// minutes, there is nothing to drain, so the first signal ends the process. Later the first signal
// wakes wait() and a second one ends the process. SIGHUP runs what on_reload() has set.
class ServeSignals {
 public:
  explicit ServeSignals(sigset_t signals);

  // From here on the first signal is for wait(). Does not return when one has come before.
  void begin_serving();
  // Null: SIGHUP is ignored, as before the first call.
  void on_reload(std::function<void()> reload);
  int wait();  // for the first signal; its number

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared: the thread may outlive this object
};

}  // namespace espalier::apps
