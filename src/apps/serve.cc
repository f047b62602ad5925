// espalier serve: an engine behind HTTP until a signal stops it.
#include <signal.h>

#include <cstring>
#include <memory>

#include "apps/commands.h"
#include "apps/node.h"
#include "apps/served_models_file.h"
#include "apps/session.h"
#include "apps/signals.h"
#include "apps/warm_prompts.h"
#include "base/log.h"
#include "server/server.h"

namespace espalier::apps {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

void log_plan(const Engine& engine) {
  const EngineConfig& config = engine.config();
  const EngineStats stats = engine.stats();
  log_info(
      "plan model={} architecture={} parameters={:.1f}M weights_mib={:.1f} kv_tokens={} "
      "kv_mib={:.1f} "
      "context={} threads={} max_running={} chunk={} policy={} radix_cache={}",
      config.model.model_path.string(), engine.model_info().architecture,
      static_cast<double>(engine.model_info().num_parameters) / 1e6,
      static_cast<double>(stats.memory.weight_bytes) / kMiB, config.cache.max_total_tokens,
      static_cast<double>(stats.memory.kv_bytes) / kMiB, engine.context_length(),
      config.compute.num_threads, config.schedule.max_running_requests,
      config.schedule.chunked_prefill_size, config.schedule.schedule_policy,
      config.cache.disable_radix_cache ? "off" : "on");
}

// In /server_info, beside the settings of engine and server.
void show_settings(AppConfig& config) {
  config.server.private_paths = {{"download_dir", config.hub.download_dir.string()},
                                 {"warm_prompts", config.warm_prompts.string()},
                                 {"served_models", config.served_models.string()},
                                 {"dist_init_addr", config.nodes.dist_init_addr}};
  config.server.extra_info = {
      {"log_level", config.log_level},
      {"revision", config.hub.revision},
      {"drain_timeout", fmt::format("{}", to_seconds(config.drain_timeout))},
      {"nnodes", fmt::format("{}", config.nodes.nnodes)},
      {"node_rank", fmt::format("{}", config.nodes.node_rank)},
      {"dist_timeout", fmt::format("{}", config.nodes.dist_timeout)},
      {"dist_heartbeat_timeout", fmt::format("{}", config.nodes.dist_heartbeat_timeout)}};
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
      {},
      true};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;

  if (const Status status = check_served_models(table, config); !status.ok())
    return report(status, kExitUsage);
  config.nodes.version = ESPALIER_VERSION;
  if (config.nodes.node_rank > 0) return run_follower(config);
  // Errors in these are reported before the model is loaded, which may take minutes.
  Result<net::BoundAddress> address = Server::reserve(config.server);
  if (!address) return report(address.error(), kExitFailure);
  Result<ServedModels> served_models = ServedModels();
  if (!config.served_models.empty()) {
    served_models = read_served_models(config);
    if (!served_models) return report(served_models.error(), kExitUsage);
  }
  std::vector<GenerateRequest> warm_prompts;
  if (!config.warm_prompts.empty()) {
    auto read = read_warm_prompts(config.warm_prompts);
    if (!read) return report(read.error(), kExitUsage);
    warm_prompts = *std::move(read);
  }
  const bool is_https = !config.server.access.tls.certificate.empty();
  ServeSignals signals(block_signals(is_https || !config.server.access.api_keys_file.empty()));
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a log file at its largest size ends no requests
  config.engine.disaggregation.disaggregation_host = config.server.host;
  std::unique_ptr<Engine> engine;  // of one model; a server of several has its own
  if (config.served_models.empty()) {
    Result<std::unique_ptr<Engine>> started_engine = start_engine(config);
    if (!started_engine) return report(started_engine.error(), kExitFailure);
    engine = *std::move(started_engine);
    if (!warm_prompts.empty()) compute_warm_prompts(*engine, std::move(warm_prompts));
    log_plan(*engine);
  }
  signals.begin_serving();
  show_settings(config);
  Result<std::unique_ptr<Server>> server =
      engine != nullptr
          ? Server::create(config.server, *engine, std::move(*address))
          : Server::create(config.server, *std::move(served_models), std::move(*address));
  if (!server) return report(server.error(), kExitFailure);
  if (Status status = (*server)->start(); !status.ok()) return report(status, kExitFailure);
  log_info("ready url={}://{}:{} startup_ms={:.0f}", is_https ? "https" : "http",
           url_host(config.server.host), (*server)->port(),
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
  engine = nullptr;
  log_info("stopped");
  return kExitOk;
}

}  // namespace espalier::apps
