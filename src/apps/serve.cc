// espalier serve: an engine behind HTTP until it is told to stop.
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "apps/commands.h"
#include "apps/session.h"
#include "base/log.h"
#include "base/thread.h"
#include "server/server.h"

namespace espalier::apps {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

// SIGTERM and SIGINT, taken by sigwait in one thread; every thread made later inherits the mask. A
// SIGINT that was ignored when the process began stays so: a shell's background job is not meant by
// Ctrl-C.
sigset_t block_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  struct sigaction inherited {};
  sigaction(SIGINT, nullptr, &inherited);
  if (inherited.sa_handler != SIG_IGN) sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signals;
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

// Waits for a signal to stop, then drains; a second signal ends the process at once.
void serve_until_signal(Server& server, const sigset_t& signals, Duration drain_timeout) {
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  log_info("stopping signal={} drain_timeout_s={:.1f}", strsignal(signal_number),
           to_seconds(drain_timeout));
  std::thread([signals] {
    set_thread_name("signals");
    int again = 0;
    sigwait(&signals, &again);
    _exit(kExitOk);
  }).detach();
  server.stop(drain_timeout);
}

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
      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;

  // What is wrong with these is told at once: a model may take minutes to load.
  Result<net::BoundAddress> address = Server::reserve(config.server);
  if (!address) return report(address.error(), kExitFailure);
  const sigset_t signals = block_stop_signals();
  signal(SIGPIPE, SIG_IGN);
  Result<std::unique_ptr<Engine>> engine = start_engine(config);
  if (!engine) return report(engine.error(), kExitFailure);
  log_plan(**engine);
  config.server.extra_info = {
      {"vocab_size", fmt::format("{}", (*engine)->model_info().vocab_size)},
      {"log_level", config.log_level},
      {"drain_timeout", fmt::format("{}", to_seconds(config.drain_timeout))}};
  Result<std::unique_ptr<Server>> server =
      Server::create(config.server, **engine, std::move(*address));
  if (!server) return report(server.error(), kExitFailure);
  if (Status status = (*server)->start(); !status.ok()) return report(status, kExitFailure);
  log_info("ready url=http://{}:{} startup_ms={:.0f}", config.server.host, (*server)->port(),
           to_seconds(SteadyClock().now() - started) * 1e3);
  serve_until_signal(**server, signals, config.drain_timeout);
  server->reset();
  engine->reset();
  log_info("stopped");
  return kExitOk;
}

}  // namespace espalier::apps
