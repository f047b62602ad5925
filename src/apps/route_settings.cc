#include "apps/route_settings.h"

#include <algorithm>
#include <array>
#include <utility>

#include "apps/config.h"
#include "base/log.h"

namespace espalier::apps {

namespace {

constexpr int64_t kThresholdMax = 2147483647;

void add_address_rows(SettingTable& table, RouteConfig& config) {
  router::RouterConfig& router = config.router;
  table.group("Router");
  table.text("host", router.host, "ADDRESS", "address to listen on; 0.0.0.0 for every interface");
  table.integer("port", router.port, 0, 65535, "port to listen on; 0: any that is free");
  refuse_empty_key(
      table.text("api-key", router.api_key, "KEY", "that clients must send as a bearer token"));
  Setting& admin_key = table.text("admin-api-key", router.admin_api_key, "KEY",
                                  "the same, for /workers and its like");
  refuse_empty_key(admin_key);
  admin_key.default_text = "api-key";
  table.text("api-keys-file", router.api_keys_file, "FILE",
             "keys with names and limits a minute (JSON); SIGHUP reads it again");
  add_tls_rows(table, router.tls);
  table.integer("io-threads", router.io_threads, 1, 256, "threads that serve sockets");
  table.integer("max-connections", router.max_connections, 1, 1000000, "of clients, open at once");
  table.integer("max-body-bytes", router.max_body_bytes, 1024, int64_t{1} << 40, "of a request");
  table.integer("max-bodies-bytes", router.max_bodies_bytes, 1024, int64_t{1} << 50,
                "of the bodies of all requests; beyond, a request gets 503");
  table.integer("max-outputs-bytes", router.max_outputs_bytes, 1024, int64_t{1} << 50,
                "of all answers that their clients have not read; beyond, the client whose answer "
                "grows is dropped");
  table.seconds("drain-timeout", config.drain_timeout,
                "for requests under way when the router is stopped");
  table.custom("log-level", "debug|info|warning|error|off", "least important lines that are logged",
               config.log_level, [&config](std::string_view value) -> Status {
                 ESP_ASSIGN_OR_RETURN([[maybe_unused]] const LogLevel level,
                                      parse_log_level(value));
                 config.log_level = value;
                 return {};
               });
}

void add_kubernetes_rows(SettingTable& table, router::KubernetesConfig& kubernetes) {
  table.toggle("service-discovery", kubernetes.enabled,
               "workers are pods of a Kubernetes cluster, found by their labels");
  Setting& selector = table.list("selector", kubernetes.selector, "KEY=VALUE",
                                 "service-discovery: a label of the pods; all that are given hold");
  selector.takes_several = true;
  table.integer("service-discovery-port", kubernetes.port, 1, 65535,
                "service-discovery: of each worker");
  table
      .text("service-discovery-namespace", kubernetes.name_space, "NAME",
            "service-discovery: of the pods")
      .default_text = "all";
  table
      .text("service-discovery-api", kubernetes.api, "URL",
            "service-discovery: of the API server, as kubectl proxy serves it")
      .default_text = "of the pod's cluster";
  table.path("service-discovery-credentials", kubernetes.credentials,
             "service-discovery: folder with the files token and ca.crt");
}

void add_worker_rows(SettingTable& table, router::RouterConfig& router) {
  table.group("Workers");
  Setting& urls =
      table.list("worker", router.sources.urls, "URL",
                 "a worker, http://HOST:PORT or https; each use adds one, or several behind it");
  urls.takes_several = true;
  urls.aliases = {"worker-urls", "decode"};
  Setting& prefill =
      table.list("prefill", router.sources.prefill, "URL [PORT]",
                 "a prefill worker and its bootstrap port (8998): it computes the prompts of "
                 "requests whose answers the workers of decode generate");
  prefill.takes_several = true;
  table.toggle("pd-disaggregation", router.sources.pairs,
               "prefill and decode workers answer requests in pairs; so it is wherever prefill "
               "names a worker");
  table.path("worker-file", router.sources.file,
             "file of one worker url a line; it is read again when it changes");
  table.list("worker-dns", router.sources.dns, "HOST:PORT",
             "every address of the host is a worker; it is looked up again and again");
  table.seconds("worker-dns-interval", router.sources.dns_poll, "between two look-ups");
  add_kubernetes_rows(table, router.sources.kubernetes);
  table.text("worker-api-key", router.proxy.worker_api_key, "KEY",
             "sent to workers in place of the client's key; with api-keys-file clients' keys are "
             "never passed on");
  table
      .text("worker-ssl-ca-certs", router.worker_tls.ca, "FILE",
            "certificates in PEM that signed those of workers of https; without it the system's")
      .default_text = "the system's";
  table.text("worker-ssl-certfile", router.worker_tls.certificate, "FILE",
             "the router's own certificate in PEM, for workers that ask for one (--ssl-ca-certs)");
  table.text("worker-ssl-keyfile", router.worker_tls.key, "FILE",
             "its private key; without it, in the same file");
  table.text("health-check-endpoint", router.health.path, "PATH", "that a healthy worker answers");
  table.seconds("health-check-interval-secs", router.health.interval,
                "between two checks of a worker; after one that failed the next follows at once");
  table.seconds("health-check-timeout-secs", router.health.timeout,
                "within which a check is answered");
  table.integer("health-failure-threshold", router.workers.health_failure_threshold, 1, 1000,
                "checks in a row that fail before a worker is broken");
  table.integer("health-success-threshold", router.workers.health_success_threshold, 1, 1000,
                "checks in a row that pass before a broken worker is healthy");
  table.seconds("slow-start", router.workers.slow_start,
                "over which a worker that became healthy gets its whole share");
  router::BreakerOptions& breaker = router.workers.breaker;
  table.integer("cb-failure-threshold", breaker.failure_threshold, 1, kThresholdMax,
                "requests in a row that fail before a worker's circuit opens");
  table.integer("cb-success-threshold", breaker.success_threshold, 1, kThresholdMax,
                "trials that succeed before it closes");
  table.seconds("cb-timeout-duration-secs", breaker.open_for,
                "before an open circuit lets a trial through");
}

void add_request_rows(SettingTable& table, router::ProxyConfig& proxy) {
  table.group("Requests");
  table.integer("retry-max-retries", proxy.max_retries, 0, 100,
                "of one request, as long as its client has seen nothing of an answer");
  table.seconds("retry-initial-backoff", proxy.retry_backoff,
                "before the second retry; the first goes out at once; it doubles each time");
  table.seconds("retry-max-backoff", proxy.retry_backoff_max, "at most, between two retries");
  table.number("retry-ratio", proxy.retry_ratio, 0, 1,
               "retries of all requests together, in a part of their number");
  table.integer("retry-reserve", proxy.retry_reserve, 0, 1000000,
                "retries that may come at once, saved up while there are none");
  table.seconds("connect-timeout-secs", proxy.upstream.connect_timeout,
                "for a connection to a worker");
  table.seconds("request-timeout-secs", proxy.upstream.head_timeout,
                "until a worker begins to answer");
  table.seconds("stream-idle-timeout", proxy.upstream.idle_timeout,
                "between two parts of a worker's answer");
  table.toggle("tenant-isolation", proxy.tenant_isolation,
               "prompts of different API keys are not taken for shared");
}

void add_ext_proc_rows(SettingTable& table, router::ExtProcConfig& ext_proc) {
  table.group("Envoy");
  table
      .integer("ext-proc", ext_proc.port, -1, 65535,
               "port on which Envoy asks which worker gets a request, by its filter ext_proc "
               "(gRPC), as the endpoint picker of a gateway; 0: any that is free")
      .default_text = "there is none";
  table.integer("ext-proc-fallbacks", ext_proc.fallbacks, 0, 16,
                "ext-proc: other workers that are named behind the picked one, for Envoy's retries "
                "(load balancing policy override_host)");
}

void add_kv_event_rows(SettingTable& table, RouteConfig& config) {
  router::KvFeedConfig& feed = config.router.kv_feed;
  table.toggle("kv-events", feed.enabled,
               "cache_aware: read the events that workers publish of their caches over ZeroMQ (as "
               "vLLM does; a worker of Espalier with --kv-events-config and the publisher zmq), so "
               "that what they hold decides, not what they were sent; for prompts whose tokens are "
               "known");
  table.integer("kv-events-port", feed.port, 0, 65535,
                "kv-events: of workers whose /server_info does not state where they publish; 0: "
                "those have none");
  table.integer("kv-events-replay-port", feed.replay_port, 0, 65535,
                "kv-events: of the same workers, for batches that were missed; 0: there is none");
  table.text("tokenizer-path", config.tokenizer.path, "PATH",
             "kv-events, send-token-ids: of the workers' model, a folder or a GGUF: its tokenizer "
             "and chat template make tokens of prompts; without it those of token ids alone are "
             "known");
  table.text("chat-template", config.tokenizer.chat_template, "PATH",
             "kv-events, send-token-ids: in place of the model's own, as the workers have it");
  table.toggle("send-token-ids", config.router.proxy.sends_ids,
               "prompts of /generate, /v1/completions and /v1/chat/completions go to workers as "
               "token ids; a worker whose /tokenize answers otherwise than the router's tokenizer "
               "(of chats: than its chat template) gets text");
}

}  // namespace

Status check_tokens(const RouteConfig& config) {
  if (config.router.kv_feed.enabled && config.router.policy.name != "cache_aware")
    return invalid_argument(
        "--kv-events needs --policy cache_aware: {} does not ask what caches hold",
        config.router.policy.name);
  if (config.router.proxy.sends_ids && config.tokenizer.path.empty())
    return invalid_argument(
        "--send-token-ids needs --tokenizer-path: the folder or GGUF of the workers' model");
  return {};
}

PrefixTree::Options tree_options(size_t max_tree_size) {
  const size_t blocks = std::max<size_t>(64, max_tree_size / kBlockBytes);
  return {.max_blocks = blocks, .max_nodes = std::max<size_t>(64, blocks / 4)};
}

void add_policy_option_rows(SettingTable& table, router::PolicyOptions& policy,
                            size_t& max_tree_size) {
  table.number("cache-threshold", policy.cache_threshold, 0, 1,
               "cache_aware: part of a prompt that a worker was sent before, from which on it gets "
               "the prompt; a conversation that goes on needs none");
  table.integer("balance-abs-threshold", policy.balance_abs_threshold, 0, kThresholdMax,
                "cache_aware: the only worker that holds a prefix is passed over if it has so many "
                "requests more than the mean, and by the next factor; of N that hold it, a part in "
                "N of that");
  table.number("balance-rel-threshold", policy.balance_rel_threshold, 1, 1000,
               "cache_aware: the factor");
  table.integer("max-tree-size", max_tree_size, 4096, int64_t{1} << 40,
                "cache_aware: bytes of prompts that are remembered, for all workers; a byte in 16 "
                "is kept");
  const std::array<std::pair<const char*, const char*>, 3> memories = {
      {{"host-load-cost", "host memory"},
       {"disk-load-cost", "disk"},
       {"remote-load-cost", "a remote store"}}};
  for (size_t i = 0; i < memories.size(); ++i)
    table.number(
        memories[i].first, policy.load_costs[i + 1], 0, 1,
        fmt::format("cache_aware with kv-events: time to load a token from {}, in parts of the "
                    "time to compute it",
                    memories[i].second));
  table.integer("prefix-token-count", policy.prefix_token_count, 1, kThresholdMax,
                "prefix_hash: tokens of the prompt's begin that are hashed");
  table.number("prefix-hash-load-factor", policy.prefix_hash_load_factor, 1, 1000,
               "prefix_hash: requests that a worker may have, in a multiple of the mean");
}

void add_route_settings(SettingTable& table, RouteConfig& config) {
  add_address_rows(table, config);
  add_worker_rows(table, config.router);
  table.group("Policy");
  table.choice("policy", config.router.policy.name, router::policy_names(),
               "which worker gets a request: in turn; any; the less loaded of two drawn ones; the "
               "one with the fewest prompt tokens in flight; by a hash of the prompt's begin; the "
               "one that was sent the longest prefix of the prompt");
  add_policy_option_rows(table, config.router.policy, config.max_tree_size);
  add_kv_event_rows(table, config);
  add_request_rows(table, config.router.proxy);
  add_ext_proc_rows(table, config.router.ext_proc);
}

std::string route_settings_markdown() {
  RouteConfig config;
  SettingTable table;
  add_route_settings(table, config);
  return "# Settings of the router\n\nEvery setting is a flag of `espalier route`, and may stand "
         "in "
         "a file or in the environment\nas those of [the server](flags.md) may. "
         "[router.md](router.md) says what the router does.\n" +
         rows_markdown(table);
}

}  // namespace espalier::apps
