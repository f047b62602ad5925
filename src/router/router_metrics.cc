// GET /metrics of a router.
#include <fmt/format.h>

#include <array>
#include <string>

#include "router/admin_routes.h"

namespace espalier::router {

namespace {

class MetricsText {
 public:
  void begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    out_ += fmt::format("# HELP espalier:router_{} {}\n# TYPE espalier:router_{} {}\n", name, help,
                        name, type);
  }
  void value(int64_t value, std::string_view labels = "") {
    out_ += fmt::format("espalier:router_{}{} {}\n", name_, labels, value);
  }
  void one(std::string_view name, std::string_view type, std::string_view help, int64_t v) {
    begin(name, type, help);
    value(v);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string name_, out_;
};

// A url needs no escapes: it is a host and a port.
std::string worker_label(const WorkerInfo& worker) {
  return fmt::format("{{worker=\"{}\"}}", worker.url);
}

// A tenant's name is printable ASCII, in which quotes and backslashes need escapes.
std::string tenant_label(const Tenant& tenant) {
  std::string name;
  for (const char c : tenant.name()) {
    if (c == '"' || c == '\\') name += '\\';
    name += c;
  }
  return fmt::format("{{tenant=\"{}\"}}", name);
}

struct TenantMetric {
  std::string_view name, help;
  int64_t (*read)(const Tenant::Counts&);
};

constexpr std::array<TenantMetric, 3> kTenantMetrics = {{
    {"tenant_requests_total", "requests that the limits of a key admitted",
     [](const Tenant::Counts& c) { return c.requests; }},
    {"tenant_tokens_total", "tokens that those requests used which ended, about",
     [](const Tenant::Counts& c) { return c.tokens; }},
    {"tenant_rate_limited_total", "requests that the limits of a key refused",
     [](const Tenant::Counts& c) { return c.refused; }},
}};

struct WorkerMetric {
  std::string_view name, type, help;
  int64_t (*read)(const WorkerInfo&);
};

constexpr std::array<WorkerMetric, 7> kWorkerMetrics = {{
    {"worker_healthy", "gauge", "whether the worker gets requests",
     [](const WorkerInfo& w) -> int64_t { return w.state == WorkerState::kHealthy ? 1 : 0; }},
    {"worker_requests_in_flight", "gauge", "requests that the worker has",
     [](const WorkerInfo& w) -> int64_t { return w.requests_in_flight; }},
    {"worker_requests_total", "counter", "requests that were sent to the worker",
     [](const WorkerInfo& w) -> int64_t { return w.counts.requests; }},
    {"worker_failures_total", "counter", "of those, failed ones",
     [](const WorkerInfo& w) -> int64_t { return w.counts.failures; }},
    {"worker_busy_total", "counter", "of those, answered with 429 or 503",
     [](const WorkerInfo& w) -> int64_t { return w.counts.busy; }},
    {"worker_prompt_tokens_total", "counter", "tokens of their prompts, about",
     [](const WorkerInfo& w) -> int64_t { return w.counts.tokens; }},
    {"worker_prompt_tokens_shared_total", "counter",
     "of those, tokens that the policy expected in the worker's cache",
     [](const WorkerInfo& w) -> int64_t { return w.counts.tokens_shared; }},
}};

}  // namespace

std::string metrics_text(const AdminContext& context) {
  MetricsText text;
  const ProxyStats stats = context.proxy.stats();
  text.one("requests_total", "counter", "requests to be passed on", stats.requests);
  text.one("retries_total", "counter", "attempts beyond the first", stats.retries);
  text.one("refused_total", "counter", "requests that no worker answered", stats.refused);
  text.one("cut_total", "counter", "answers that a worker did not complete", stats.cut);
  text.one("clients_gone_total", "counter", "requests whose clients left", stats.clients_gone);
  text.one("requests_in_flight", "gauge", "requests under way", stats.streams_open);
  text.one("connects_total", "counter", "connections made to workers", stats.connects);
  const int64_t by_envoy = context.ext_proc == nullptr ? 0 : context.ext_proc->stats().ids_sent;
  text.one("ids_sent_total", "counter",
           "attempts whose prompts went out as token ids in place of text",
           stats.ids_sent + by_envoy);
  text.begin("policy", "gauge", "the policy that chooses workers");
  text.value(1, fmt::format("{{policy=\"{}\"}}", context.dispatcher.policy_name()));
  if (const auto tree = context.dispatcher.tree_stats()) {
    text.one("tree_nodes", "gauge", "nodes of the tree of prefixes",
             static_cast<int64_t>(tree->num_nodes));
    text.one("tree_blocks", "gauge", "blocks of 64 bytes of prompts in it",
             static_cast<int64_t>(tree->num_blocks));
    text.one("tree_evicted_total", "counter", "leaves that were removed for others",
             static_cast<int64_t>(tree->num_evicted_total));
    text.one("cached_blocks", "gauge", "different blocks that workers hold, by their events",
             static_cast<int64_t>(tree->num_cached_blocks));
  }
  if (context.kv_feed != nullptr) {
    const KvFeedStats feed = context.kv_feed->stats();
    text.one("kv_event_workers", "gauge", "workers whose caches' events are read",
             feed.num_workers);
    text.one("kv_event_batches_total", "counter", "batches of events that were taken",
             feed.num_batches);
    text.one("kv_event_losses_total", "counter",
             "times that batches were lost, so that what was known of a cache was void",
             feed.num_lost);
    text.one("kv_event_malformed_total", "counter", "messages that are no batches of events",
             feed.num_malformed);
  }
  if (context.ext_proc != nullptr) {
    const ExtProcStats picker = context.ext_proc->stats();
    text.one("ext_proc_requests_total", "counter", "requests that Envoy asked a worker for",
             picker.requests);
    text.one("ext_proc_picks_total", "counter", "of those, requests that got one", picker.picks);
    text.one("ext_proc_refused_total", "counter", "of those, requests that got an error",
             picker.refused);
    text.one("ext_proc_requests_in_flight", "gauge", "requests that Envoy has under way",
             picker.calls_open);
  }
  if (context.tenants != nullptr) {
    const auto tenants = context.tenants->all();
    for (const TenantMetric& metric : kTenantMetrics) {
      text.begin(metric.name, "counter", metric.help);
      for (const TenantPtr& tenant : tenants)
        text.value(metric.read(tenant->counts()), tenant_label(*tenant));
    }
  }
  const auto workers = context.dispatcher.workers();
  for (const WorkerMetric& metric : kWorkerMetrics) {
    text.begin(metric.name, metric.type, metric.help);
    for (const WorkerInfo& worker : workers) text.value(metric.read(worker), worker_label(worker));
  }
  return text.take();
}

}  // namespace espalier::router
