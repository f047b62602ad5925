#include "router/router_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/memory_account.h"
#include "net/http_server.h"
#include "router/admin_routes.h"
#include "router/error_bodies.h"

namespace espalier::router {

namespace {

// In a time that depends on the lengths alone.
bool equal_keys(std::string_view given, std::string_view key) {
  unsigned char differs = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size() && i < key.size(); ++i)
    differs |= static_cast<unsigned char>(given[i] ^ key[i]);
  return differs == 0;
}

std::string_view key_of(const net::HttpRequest& head) {
  if (const std::string* const bearer = head.header("Authorization")) {
    std::string_view text = *bearer;
    if (text.starts_with("Bearer ") || text.starts_with("bearer ")) return text.substr(7);
  }
  const std::string* const key = head.header("X-Api-Key");
  return key == nullptr ? std::string_view() : std::string_view(*key);
}

// Null where everyone may pass.
net::Admission admission(std::vector<std::string> keys, ErrorStyle errors) {
  std::erase(keys, "");
  if (keys.empty()) return nullptr;
  return [keys = std::move(keys),
          errors](const net::HttpRequest& head) -> std::optional<net::HttpResponse> {
    const std::string_view given = key_of(head);
    bool known = false;
    for (const std::string& key : keys) known = equal_keys(given, key) || known;
    if (known) return std::nullopt;
    return error_answer(errors, 401,
                        "this needs a key of this router: send Authorization: Bearer KEY");
  };
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
  std::unique_ptr<Dispatcher> dispatcher;
  std::unique_ptr<Proxy> proxy;
  std::unique_ptr<WorkerSources> sources;
  std::unique_ptr<HealthChecker> health;
  std::unique_ptr<KvFeed> kv_feed;          // null without --kv-events
  std::unique_ptr<net::HttpServer> server;  // last: it is stopped first

  Status add_routes(net::Router& router);
};

Status RouterServer::Impl::add_routes(net::Router& router) {
  const std::string& admin_key =
      config.admin_api_key.empty() ? config.api_key : config.admin_api_key;
  ESP_RETURN_IF_ERROR(add_admin_routes(router, {*dispatcher, *sources, *proxy, kv_feed.get()},
                                       admission({admin_key}, ErrorStyle::kOpenAi),
                                       admission({config.api_key}, ErrorStyle::kOpenAi)));
  for (const PassedRoute& route : passed_routes())
    ESP_RETURN_IF_ERROR(router.add(
        route.method, route.pattern,
        [this, &route](net::HttpRequest&& request, net::ResponsePtr response) {
          proxy->forward(route, std::move(request), std::move(response));
        },
        admission({config.api_key}, route.errors)));
  return {};
}

Result<std::unique_ptr<RouterServer>> RouterServer::start(RouterConfig config) {
  raise_limit_of_descriptors(config.max_connections);
  auto worker_tls = net::read_client_tls(config.worker_tls);
  if (!worker_tls)
    return fail(worker_tls.error().with_context("--worker-ssl-ca-certs and its like"));
  config.proxy.upstream.tls = config.health.tls = *worker_tls;
  config.kv_feed.ca_file = config.worker_tls.ca;
  auto impl = std::make_unique<Impl>(std::move(config));
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
  net::Router router;
  ESP_RETURN_IF_ERROR(impl->add_routes(router));
  net::HttpServerConfig http = server_config(c);
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
  if (tls == nullptr) return {};
  impl_->server->set_tls(std::move(tls));
  log_info("the certificate {} was read again", impl_->config.tls.certificate);
  return {};
}

void RouterServer::stop(Duration timeout) { impl_->server->stop(timeout); }

}  // namespace espalier::router
