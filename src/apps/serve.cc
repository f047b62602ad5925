// espalier serve: an engine behind HTTP until a signal stops it.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <semaphore>
#include <thread>

#include "apps/commands.h"
#include "apps/session.h"
#include "base/log.h"
#include "base/thread.h"
#include "server/server.h"

namespace espalier::apps {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

// SIGTERM, SIGINT and SIGHUP, to be taken by sigwait; every thread made later inherits the mask. A
// SIGINT that was ignored when the process began stays so: a shell's background job is not meant by
// Ctrl-C.
// reloads: whether SIGHUP has files to read again; else it ends the process, as its default is.
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

// An IPv6 address stands in brackets there.
std::string host_in_url(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

void log_plan(const Engine& engine) {
  const EngineConfig& config = engine.config();
  const EngineStats stats = engine.stats();
  log_info(
      "plan model={} architecture={} parameters={:.1f}M weights_mib={:.1f} kv_tokens={} "
      "kv_mib={:.1f} "
      "context={} threads={} max_running={} chunk={} policy={} radix_cache={}",
      config.model_path.string(), engine.model_info().architecture,
      static_cast<double>(engine.model_info().num_parameters) / 1e6,
      static_cast<double>(stats.weight_bytes) / kMiB, config.max_total_tokens,
      static_cast<double>(stats.kv_bytes) / kMiB, engine.context_length(), config.num_threads,
      config.max_running_requests, config.chunked_prefill_size, config.schedule_policy,
      config.disable_radix_cache ? "off" : "on");
}

// Receives the signals in a thread of its own. While a model is loading, which may take
// minutes, there is nothing to drain, so the first signal ends the process. Later the first signal
// wakes wait() and a second one ends the process. SIGHUP runs what on_reload() has set.
class ServeSignals {
 public:
  explicit ServeSignals(sigset_t signals) {
    std::thread([signals, state = state_] {
      set_thread_name("signals");
      int number = next_stop(signals, *state);
      Phase loading = Phase::kLoading;
      if (state->phase.compare_exchange_strong(loading, Phase::kEnding)) {
        log_info("stopped signal={} while the model was loaded", strsignal(number));
        _exit(kExitOk);
      }
      state->number = number;
      state->came.release();
      next_stop(signals, *state);
      _exit(kExitOk);
    }).detach();
  }

  // From here on the first signal is for wait(). Does not return when one has come before.
  void begin_serving() {
    Phase loading = Phase::kLoading;
    if (state_->phase.compare_exchange_strong(loading, Phase::kServing)) return;
    while (true) pause();
  }
  // Null: SIGHUP is ignored, as before the first call.
  void on_reload(std::function<void()> reload) {
    std::lock_guard lock(state_->mutex);
    state_->reload = std::move(reload);
  }
  int wait() {
    state_->came.acquire();
    return state_->number;
  }

 private:
  enum class Phase { kLoading, kServing, kEnding };
  struct State {
    std::atomic<Phase> phase{Phase::kLoading};
    std::binary_semaphore came{0};
    int number = 0;
    std::mutex mutex;
    std::function<void()> reload;  // guarded by mutex
  };
  // Waits for a signal that stops, and reloads for each SIGHUP before it.
  static int next_stop(const sigset_t& signals, State& state) {
    for (int number = 0;;) {
      sigwait(&signals, &number);
      if (number != SIGHUP) return number;
      std::lock_guard lock(state.mutex);
      if (state.reload != nullptr) state.reload();
    }
  }

  // Shared: the thread outlives whoever waits.
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace

int run_serve(const std::vector<std::string>& args) {
  const TimePoint started = SteadyClock().now();
  AppConfig config;
  SettingTable table;
  add_server_settings(table, config);
  CommandLine command{
      "espalier serve",
      "Serves a model over HTTP until SIGTERM or Ctrl-C.",
      "Example:\n  espalier serve --model-path my-model --host 0.0.0.0 --port 30000",
      "",
      {},
      true};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;

  // Errors in these are reported before the model is loaded, which may take minutes.
  Result<net::BoundAddress> address = Server::reserve(config.server);
  if (!address) return report(address.error(), kExitFailure);
  const bool is_https = !config.server.ssl_certfile.empty();
  ServeSignals signals(block_signals(is_https || !config.server.api_keys_file.empty()));
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a log file at its largest size ends no requests
  Result<std::unique_ptr<Engine>> engine = start_engine(config);
  if (!engine) return report(engine.error(), kExitFailure);
  signals.begin_serving();
  log_plan(**engine);
  config.server.private_paths = {{"download_dir", config.hub.download_dir.string()}};
  config.server.extra_info = {
      {"log_level", config.log_level},
      {"revision", config.hub.revision},
      {"drain_timeout", fmt::format("{}", to_seconds(config.drain_timeout))}};
  Result<std::unique_ptr<Server>> server =
      Server::create(config.server, **engine, std::move(*address));
  if (!server) return report(server.error(), kExitFailure);
  if (Status status = (*server)->start(); !status.ok()) return report(status, kExitFailure);
  log_info("ready url={}://{}:{} startup_ms={:.0f}", is_https ? "https" : "http",
           host_in_url(config.server.host), (*server)->port(),
           to_seconds(SteadyClock().now() - started) * 1e3);
  signals.on_reload([&] {
    if (const Status read = (*server)->reload(); !read.ok())
      log_error("nothing was reloaded: {}", read.message());
  });
  const int signal_number = signals.wait();
  signals.on_reload(nullptr);
  log_info("stopping signal={} drain_timeout_s={:.1f}", strsignal(signal_number),
           to_seconds(config.drain_timeout));
  (*server)->stop(config.drain_timeout);
  server->reset();
  engine->reset();
  log_info("stopped");
  return kExitOk;
}

}  // namespace espalier::apps
