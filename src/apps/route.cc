// espalier route: several servers behind one address until a signal stops it.
#include <signal.h>

#include <cstring>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/config.h"
#include "apps/route_settings.h"
#include "apps/signals.h"
#include "base/log.h"

namespace espalier::apps {

int run_route(const std::vector<std::string>& args) {
  RouteConfig config;
  SettingTable table;
  add_route_settings(table, config);
  CommandLine command{
      "espalier route",
      "Passes requests on to several servers until SIGTERM or Ctrl-C.",
      "Example:\n  espalier route --worker http://10.0.0.1:30000 http://10.0.0.2:30000 --port 8000",
      "",
      {}};
  AppConfig unused;
  SettingTable elsewhere;  // one file may serve `serve` and `route`
  add_server_settings(elsewhere, unused);
  add_engine_settings(elsewhere, unused);
  if (const auto exit_code = parse_command_line(command, table, elsewhere, args)) return *exit_code;
  if (const Result<LogLevel> level = parse_log_level(config.log_level)) set_log_level(*level);
  router::RouterConfig& router = config.router;
  if (router.sources.urls.empty() && router.sources.file.empty() && router.sources.dns.empty() &&
      !router.sources.kubernetes.enabled)
    log_warning(
        "there is no worker yet: POST /workers adds one (or --worker, --worker-file, "
        "--worker-dns)");
  router.policy.tree = tree_options(config.max_tree_size);
  router.health.api_key = router.kv_feed.api_key = router.proxy.worker_api_key;
  if (const Status status = check_tokens(config); !status.ok()) return report(status, kExitUsage);
  if (router.kv_feed.enabled || router.proxy.sends_ids) {
    auto tokenize = make_prompt_tokenizer(config.tokenizer);
    if (!tokenize) return report(tokenize.error(), kExitUsage);
    router.proxy.tokenize = std::move(*tokenize);
  } else if (!config.tokenizer.path.empty()) {  // as a file that is the server's too may have it
    log_warning("tokenizer-path has no effect here without --kv-events or --send-token-ids");
  }

  const bool is_https = !router.tls.certificate.empty();
  ServeSignals signals(block_signals(is_https || !router.api_keys_file.empty()));
  signal(SIGPIPE, SIG_IGN);
  Result<std::unique_ptr<router::RouterServer>> server = router::RouterServer::start(router);
  if (!server) {
    const bool usage = server.error().code() == StatusCode::kInvalidArgument;
    return report(server.error(), usage ? kExitUsage : kExitFailure);
  }
  signals.begin_serving();
  if (const int port = (*server)->ext_proc_port(); port != 0)
    log_info("endpoint picker ready address={}:{}", url_host(router.host), port);
  log_info("ready url={}://{}:{} policy={}", is_https ? "https" : "http", url_host(router.host),
           (*server)->port(), router.policy.name);
  signals.on_reload([&] {
    if (const Status read = (*server)->reload(); !read.ok())
      log_error("nothing was reloaded: {}", read.message());
  });
  const int number = signals.wait();
  signals.on_reload(nullptr);
  log_info("stopping signal={} drain_timeout_s={:.1f}", strsignal(number),
           to_seconds(config.drain_timeout));
  (*server)->stop(config.drain_timeout);
  server->reset();
  log_info("stopped");
  return kExitOk;
}

}  // namespace espalier::apps
