#include "apps/node.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/signals.h"
#include "base/fatal_exit.h"
#include "base/log.h"
#include "engine/nodes/follower.h"

namespace espalier::apps {

int run_follower(AppConfig& config) {
  ServeSignals signals(block_signals(false));
  signal(SIGPIPE, SIG_IGN);
  auto path = resolve_model_path(config.engine.model.model_path, config.hub);
  if (!path) return report(path.error(), kExitFailure);
  config.engine.model.model_path = *std::move(path);
  auto follower = Follower::start(config.engine, config.nodes);
  if (!follower) return report(follower.error(), kExitFailure);
  signals.begin_serving();
  Status ended;
  std::atomic<bool> is_awake = false;
  std::thread computing([&] {
    ended = (*follower)->run();
    if (!is_awake.exchange(true)) kill(getpid(), SIGTERM);  // which the wait below takes
  });
  const int signal_number = signals.wait();
  is_awake = true;
  (*follower)->stop();
  computing.join();
  if (!ended.ok()) {
    report(ended, kExitFailure);
    return kExitCannotGoOn;
  }
  log_info("stopped node_rank={} signal={}", config.nodes.node_rank, strsignal(signal_number));
  return kExitOk;
}

}  // namespace espalier::apps
