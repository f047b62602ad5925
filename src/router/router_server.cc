#include "router/router_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/memory_account.h"
#include "net/http_server.h"
#include "router/admin_routes.h"
#include "router/error_bodies.h"
#include "tenants/api_key.h"
#include "tenants/tenants.h"

namespace espalier::router {

namespace {

std::string_view key_of(const net::HttpRequest& head) {
  return api_key_of(head.header("Authorization"), head.header("X-Api-Key"));
}

// Null where everyone may pass. tenants: whose keys open it too (or where `for_admin`, are refused
// with 403); null: there are none.
net::Admission admission(std::vector<std::string> keys, const Tenants* tenants, bool for_admin,
                         ErrorStyle errors) {
  std::erase(keys, "");
  if (keys.empty() && tenants == nullptr) return nullptr;
  return [keys = std::move(keys), tenants, for_admin,
          errors](const net::HttpRequest& head) -> std::optional<net::HttpResponse> {
    const std::string_view given = key_of(head);
    bool known = false;
    for (const std::string& key : keys) known = same_key(given, key) || known;
    const bool is_tenant = tenants != nullptr && tenants->find(given) != nullptr;
    if (known || (is_tenant && !for_admin)) return std::nullopt;
    if (is_tenant)
      return error_answer(errors, 403, "this needs the administrator's key (--admin-api-key)");
    return error_answer(errors, 401,
                        "this needs a key of this router: send Authorization: Bearer KEY");
  };
}

// Null without --api-keys-file.
Result<std::unique_ptr<Tenants>> read_tenants(const RouterConfig& config) {
  if (config.api_keys_file.empty()) return nullptr;
  auto read = Tenants::read(config.api_keys_file);
  if (!read) return fail(read.error().with_context("--api-keys-file"));
  return read;
}

void raise_limit_of_descriptors(int max_connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = static_cast<rlim_t>(max_connections) * 2 + 256;  // a worker's for each
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted)
    log_warning("open files are limited to {}; {} connections were to be served", limit.rlim_cur,
                max_connections);
}

net::HttpServerConfig server_config(const RouterConfig& config) {
  net::HttpServerConfig out;
  out.host = config.host;
  out.port = config.port;
  out.num_threads = config.io_threads;
  out.max_connections = config.max_connections;
  out.max_body_bytes = config.max_body_bytes;
  out.bodies =
      std::make_shared<MemoryAccount>("bodies", static_cast<int64_t>(config.max_bodies_bytes));
  out.outputs =
      std::make_shared<MemoryAccount>("outputs", static_cast<int64_t>(config.max_outputs_bytes));
  out.make_error = [](int status, std::string_view message) {
    return error_answer(ErrorStyle::kOpenAi, status, message);
  };
  return out;
}

}  // namespace

struct RouterServer::Impl {
  explicit Impl(RouterConfig c) : config(std::move(c)) {}

  RouterConfig config;
  SteadyClock clock;
  std::unique_ptr<Tenants> tenants;  // null without --api-keys-file
  std::unique_ptr<Dispatcher> dispatcher;
  std::unique_ptr<Proxy> proxy;
  std::unique_ptr<WorkerSources> sources;
  std::unique_ptr<HealthChecker> health;
  std::unique_ptr<KvFeed> kv_feed;    // null without --kv-events
  std::unique_ptr<ExtProc> ext_proc;  // null without --ext-proc
  std::unique_ptr<CacheHandover> handover;
  std::unique_ptr<net::HttpServer> server;  // last: it is stopped first

  Status add_routes(net::Router& router);
  Status start_ext_proc(std::shared_ptr<MemoryAccount> bodies);
  std::vector<std::string> client_keys() const;
};

std::vector<std::string> RouterServer::Impl::client_keys() const {
  std::vector<std::string> keys = {config.api_key};
  if (tenants != nullptr)  // as a server's opens everything
    keys.push_back(config.admin_api_key.empty() ? config.api_key : config.admin_api_key);
  return keys;
}

Status RouterServer::Impl::start_ext_proc(std::shared_ptr<MemoryAccount> bodies) {
  ExtProcConfig picker = config.ext_proc;
  if (picker.port < 0) return {};
  if (config.proxy.pairs)
    return invalid_argument(
        "--ext-proc picks one worker for a request, so it does not go with --prefill: let clients "
        "speak to the router itself");
  picker.num_threads = config.io_threads;
  picker.max_body_bytes = config.max_body_bytes;
  picker.bodies = std::move(bodies);
  ESP_ASSIGN_OR_RETURN(picker.tls, net::read_tls(config.tls, net::TlsProtocol::kHttp2));
  picker.admission = [this](ErrorStyle errors) {
    return admission(client_keys(), tenants.get(), false, errors);
  };
  auto address = net::BoundAddress::bind(config.host, picker.port);
  if (!address) return address.error().with_context("--ext-proc");
  auto started = ExtProc::start(std::move(picker), config.proxy, *dispatcher, std::move(*address));
  if (!started) return started.error().with_context("--ext-proc");
  ext_proc = std::move(*started);
  return {};
}

Status RouterServer::Impl::add_routes(net::Router& router) {
  const std::string& admin_key =
      config.admin_api_key.empty() ? config.api_key : config.admin_api_key;
  const Tenants* const keys = tenants.get();
  ESP_RETURN_IF_ERROR(add_admin_routes(
      router, {*dispatcher, *sources, *proxy, kv_feed.get(), keys, ext_proc.get(), handover.get()},
      admission({admin_key}, keys, true, ErrorStyle::kOpenAi),
      admission(client_keys(), keys, false, ErrorStyle::kOpenAi)));
  for (const PassedRoute& route : passed_routes()) {
    const net::Admission admit = admission(client_keys(), keys, false, route.errors);
    ESP_RETURN_IF_ERROR(router.add(
        route.method, route.pattern,
        [this, &route, admit](net::HttpRequest&& request, net::ResponsePtr response) {
          // Again, for the file of keys may have been read anew while the body came.
          if (tenants != nullptr)
            if (auto refused = admit(request)) return response->send(std::move(*refused));
          proxy->forward(route, std::move(request), std::move(response));
        },
        admit));
  }
  return {};
}

Result<std::unique_ptr<RouterServer>> RouterServer::start(RouterConfig config) {
  raise_limit_of_descriptors(config.max_connections);
  auto worker_tls = net::read_client_tls(config.worker_tls);
  if (!worker_tls)
    return fail(worker_tls.error().with_context("--worker-ssl-ca-certs and its like"));
  config.proxy.upstream.tls = config.health.tls = *worker_tls;
  config.kv_feed.ca_file = config.worker_tls.ca;
  config.proxy.needs_tokens = config.kv_feed.enabled;
  if (config.proxy.sends_ids && config.proxy.tokenize)
    config.health.probe = make_token_probe(config.proxy.tokenize);
  auto impl = std::make_unique<Impl>(std::move(config));
  ESP_ASSIGN_OR_RETURN(impl->tenants, read_tenants(impl->config));
  impl->config.proxy.tenants = impl->tenants.get();
  impl->config.proxy.pairs = !impl->config.sources.prefill.empty();
  const RouterConfig& c = impl->config;
  ESP_ASSIGN_OR_RETURN(net::BoundAddress address, net::BoundAddress::bind(c.host, c.port));
  ESP_ASSIGN_OR_RETURN(impl->dispatcher, Dispatcher::create(c.policy, c.workers, impl->clock));
  impl->proxy = std::make_unique<Proxy>(c.proxy, *impl->dispatcher);
  impl->dispatcher->on_broken(
      [proxy = impl->proxy.get()](uint64_t generation) { proxy->abandon_worker(generation); });
  if (c.kv_feed.enabled) {
    auto feed = KvFeed::start(c.kv_feed, *impl->dispatcher);
    if (!feed) return fail(feed.error().with_context("--kv-events"));
    impl->kv_feed = std::move(*feed);
  }
  ESP_ASSIGN_OR_RETURN(impl->sources, WorkerSources::start(c.sources, *impl->dispatcher));
  impl->handover = std::make_unique<CacheHandover>(
      CacheHandoverConfig{.api_key = c.proxy.worker_api_key, .ca_file = c.worker_tls.ca},
      *impl->dispatcher);
  net::HttpServerConfig http = server_config(c);
  ESP_RETURN_IF_ERROR(impl->start_ext_proc(http.bodies));
  net::Router router;
  ESP_RETURN_IF_ERROR(impl->add_routes(router));
  ESP_ASSIGN_OR_RETURN(http.tls, net::read_tls(c.tls));
  ESP_ASSIGN_OR_RETURN(
      impl->server, net::HttpServer::start(std::move(http), std::move(router), std::move(address)));
  impl->health = std::make_unique<HealthChecker>(c.health, *impl->dispatcher);
  return std::unique_ptr<RouterServer>(new RouterServer(std::move(impl)));
}

RouterServer::RouterServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RouterServer::~RouterServer() { stop(Duration::zero()); }

int RouterServer::port() const { return impl_->server->port(); }
Dispatcher& RouterServer::dispatcher() { return *impl_->dispatcher; }

Status RouterServer::reload() {
  ESP_ASSIGN_OR_RETURN(auto tls, net::read_tls(impl_->config.tls));
  ESP_ASSIGN_OR_RETURN(auto picker_tls, net::read_tls(impl_->config.tls, net::TlsProtocol::kHttp2));
  if (Tenants* const tenants = impl_->tenants.get()) {
    ESP_RETURN_IF_ERROR(tenants->reload().with_context("--api-keys-file"));
    log_info("the keys of {} were read again: {} tenants", impl_->config.api_keys_file,
             tenants->all().size());
  }
  if (tls == nullptr) return {};
  impl_->server->set_tls(std::move(tls));
  if (impl_->ext_proc != nullptr) impl_->ext_proc->set_tls(std::move(picker_tls));
  log_info("the certificate {} was read again", impl_->config.tls.certificate);
  return {};
}

int RouterServer::ext_proc_port() const {
  return impl_->ext_proc == nullptr ? 0 : impl_->ext_proc->port();
}

void RouterServer::stop(Duration timeout) {
  const TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  ExtProc* const picker = impl_->ext_proc.get();
  if (picker != nullptr) picker->begin_stop();  // both end what is under way at the same time
  if (impl_->handover != nullptr) impl_->handover->begin_stop();
  impl_->server->stop(timeout);
  if (picker != nullptr)
    picker->stop(std::max(Duration::zero(), deadline - std::chrono::steady_clock::now()));
}

}  // namespace espalier::router
