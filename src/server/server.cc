#include "server/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <mutex>

#include "base/log.h"
#include "engine/startup/system_info.h"
#include "net/http_server.h"
#include "server/authorize.h"
#include "server/batches/batches.h"
#include "server/context.h"
#include "server/dialects/background_responses.h"
#include "server/dialects/response_store.h"
#include "server/errors.h"
#include "server/observations.h"
#include "server/open_context.h"
#include "server/routes.h"
#include "server/served_models/dispatch.h"
#include "server/served_models/engine_host.h"
#include "server/served_models/front_engine.h"
#include "server/served_models/model_registry.h"
#include "tenants/tenants.h"

namespace espalier {

using net::HttpRequest;
using net::HttpServer;
using net::ResponsePtr;
using server::Context;
using server::ContextPtr;

namespace {

// A server without a key answers every client: pages of other origins only where it is bound
// to loopback, and there only under names that are its own.
void set_reach(const ServerConfig& c, net::HttpServerConfig& http) {
  const AccessConfig& access = c.access;
  const bool open =
      access.api_key.empty() && access.api_keys_file.empty() && access.router_api_key.empty();
  const bool local = server::is_loopback(c.host);
  http.cors_origins = access.cors_origins;
  if (access.cors_origins.empty() && (!open || local)) http.cors_origins = {"*"};
  http.local_hosts_only = open && local;
  if (open && !local)
    log_warning(
        "{} is open to whoever reaches it: set --api-key or --api-keys-file, or bind --host "
        "127.0.0.1",
        c.host);
}

std::shared_ptr<MemoryAccount> open_account(const char* name, size_t stated,
                                            const ServerConfig& c) {
  const auto free_bytes = static_cast<size_t>(read_system_info().available_bytes);
  const size_t chosen = std::max({free_bytes / 16, size_t{256} << 20, 8 * c.limits.max_body_bytes});
  return std::make_shared<MemoryAccount>(name, static_cast<int64_t>(stated != 0 ? stated : chosen));
}

Status check(const ServerConfig& c) {
  if (c.port < 0 || c.port > 65535) {
    return invalid_argument("port {} is outside 0 to 65535", c.port);
  }
  if (c.limits.io_threads < 1 || c.limits.worker_threads < 1) {
    return invalid_argument("io_threads and worker_threads must be at least 1");
  }
  if (c.limits.max_connections < 1) return invalid_argument("max_connections must be at least 1");
  if (c.answers.stream_interval < 1) return invalid_argument("stream_interval must be at least 1");
  if (c.limits.max_body_bytes < 1024)
    return invalid_argument("max_body_bytes must be at least 1024");
  return {};
}

Status with_flags(const Status& why) {
  return Status(why.code(), why.message() + " (--host, --port)");
}

Result<net::BoundAddress> bind(const ServerConfig& config) {
  auto bound = net::BoundAddress::bind(config.host, config.port);
  if (!bound) return fail(with_flags(bound.error()));
  return bound;
}

// Null without --api-keys-file and --router-api-key.
Result<std::unique_ptr<Tenants>> read_tenants(const ServerConfig& config) {
  if (config.access.api_keys_file.empty() && config.access.router_api_key.empty()) return nullptr;
  if (!config.access.router_api_key.empty() &&
      (config.access.router_api_key == config.access.api_key ||
       config.access.router_api_key == config.access.admin_api_key))
    return fail(
        invalid_argument("--router-api-key is --api-key or --admin-api-key too, whose "
                         "holders could then state any tenant: give routers their own"));
  auto read = Tenants::read(config.access.api_keys_file, config.access.router_api_key);
  if (!read) return fail(read.error().with_context("--api-keys-file"));
  return read;
}

Result<std::shared_ptr<server::ServerParts>> make_parts(const ServerConfig& config) {
  auto parts = std::make_shared<server::ServerParts>();
  ESP_ASSIGN_OR_RETURN(parts->tenants, read_tenants(config));
  parts->created_unix = std::chrono::duration_cast<std::chrono::seconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();
  return parts;
}

// A descriptor for each connection, and some.
void raise_descriptor_limit(int max_connections) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = static_cast<rlim_t>(max_connections) + 256;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted) {
    log_warning("open files are limited to {}; {} connections were to be served", limit.rlim_cur,
                max_connections);
  }
}

}  // namespace

namespace {

// Below what clients state, by more than the threshold of preemption.
constexpr int32_t kBatchPriority = -1000;

// A batch's line runs as a request of its tenant's to the same route would.
void call_route(const ContextPtr& context, server::LineCall call, ResponsePtr response) {
  const Tenants* const tenants = context->tenants.get();
  if (tenants != nullptr && !call.owner.empty() && tenants->named(call.owner) == nullptr)
    return response->send(server::error_response(
        server::Dialect::kOpenAi,
        error(StatusCode::kPermissionDenied,
              "the batch is that of '{}', and --api-keys-file has no such tenant any more",
              call.owner)));
  for (const server::Route& route : server::routes()) {
    if (route.pattern != call.path || route.methods.front() != "POST") continue;
    HttpRequest request;
    request.method = "POST";
    request.path = call.path;
    request.tenant = call.owner;
    request.body = std::move(call.body);
    return server::dispatch(context, route, std::move(request), std::move(response));
  }
}

// Clients' requests go before the lines of batches. Where tenants have shares of their own, what
// others have waiting does not count, so that no tenant stops another's batches.
bool is_busy(const Context& context, const std::string& owner) {
  const bool has_share = context.engine.config().schedule.fair_share == "tenant";
  const TenantPtr tenant =
      has_share && context.tenants != nullptr ? context.tenants->named(owner) : nullptr;
  return tenant != nullptr ? tenant->num_waiting() > 0
                           : context.engine.stats().requests.num_waiting > 0;
}

Status open_batches(const ContextPtr& context) {
  const ServerConfig& c = context->config;
  if (c.storage.storage_path.empty()) return {};
  const EngineConfig& e = context->engine.config();
  server::BatchSettings settings;
  settings.max_calls = c.storage.max_batch_requests != 0
                           ? c.storage.max_batch_requests
                           : std::max(1, e.schedule.max_running_requests / 2);
  if (e.schedule.schedule_policy == "priority") settings.priority = kBatchPriority;
  server::BatchTarget target{
      .call =
          [weak = std::weak_ptr(context)](server::LineCall call, ResponsePtr response) {
            if (const ContextPtr alive = weak.lock())
              call_route(alive, std::move(call), std::move(response));
          },
      .is_busy =
          [weak = std::weak_ptr(context)](const std::string& owner) {
            const ContextPtr alive = weak.lock();
            return alive == nullptr || is_busy(*alive, owner);
          }};
  auto opened = server::Batches::open(c.storage.storage_path, c.storage.max_storage_bytes,
                                      std::move(target), settings);
  if (!opened) return opened.error().with_context("--storage-path");
  context->batches = std::move(*opened);
  return {};
}

}  // namespace

struct Server::Impl {
  ContextPtr context;
  std::optional<net::BoundAddress> address;  // until start()
  std::unique_ptr<HttpServer> http;
  std::mutex mutex;  // of start and stop
  bool stopped = false;

  Status add_routes(net::Router& router);
};

Status Server::Impl::add_routes(net::Router& router) {
  for (const server::Route& route : server::routes()) {
    for (const std::string& method : route.methods) {
      ESP_RETURN_IF_ERROR(router.add(
          method, route.pattern,
          [context = context, &route, &row = context->observed->http->add(route.pattern, method)](
              HttpRequest&& request, ResponsePtr response) {
            response = context->observed->http->watch(row, request, std::move(response));
            server::dispatch(context, route, std::move(request), std::move(response));
          },
          [context = context, &route](const HttpRequest& head) {
            return server::refusal(context->config.access, context->tenants.get(), route.access,
                                   head);
          }));
    }
  }
  return {};
}

Result<net::BoundAddress> Server::reserve(const ServerConfig& config) {
  ESP_RETURN_IF_ERROR(check(config));
  if (!config.answers.chat_template.empty())
    ESP_RETURN_IF_ERROR(server::ChatFormat::check(config.answers.chat_template));
  if (auto tenants = read_tenants(config); !tenants) return fail(tenants.error());
  if (auto tls = net::read_tls(config.access.tls); !tls) return fail(tls.error());
  if (!config.telemetry.request_log.empty())
    ESP_RETURN_IF_ERROR(server::RequestRecorder::check(config.telemetry.request_log));
  return bind(config);
}

Result<std::unique_ptr<Server>> Server::create(ServerConfig config, Engine& engine,
                                               std::optional<net::BoundAddress> address) {
  ESP_RETURN_IF_ERROR(check(config));
  ESP_ASSIGN_OR_RETURN(auto parts, make_parts(config));
  auto impl = std::make_unique<Impl>();
  impl->address = std::move(address);
  ESP_ASSIGN_OR_RETURN(impl->context,
                       server::open_context(std::move(config), engine, std::move(parts)));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Result<std::unique_ptr<Server>> Server::create(ServerConfig config, ServedModels models,
                                               std::optional<net::BoundAddress> address) {
  ESP_RETURN_IF_ERROR(check(config));
  if (models.models.empty()) return fail(invalid_argument("a server has at least one model"));
  ESP_ASSIGN_OR_RETURN(const auto parts, make_parts(config));
  parts->front_engine = std::make_unique<server::FrontEngine>(parts);
  const server::ModelRegistry::Settings settings{.bytes_max = models.memory_limit,
                                                 .load_timeout = models.load_timeout};
  std::vector<server::RegisteredModel> registered = server::registered_models(models);
  config.answers = {};
  config.answers.served_model_name = models.models.front().name;
  config.telemetry.kv_events = {};
  auto host = std::make_unique<server::EngineHost>(std::move(models), config, parts);
  parts->models =
      std::make_unique<server::ModelRegistry>(std::move(registered), std::move(host), settings);
  auto impl = std::make_unique<Impl>();
  impl->address = std::move(address);
  ESP_ASSIGN_OR_RETURN(impl->context,
                       server::open_front(std::move(config), *parts->front_engine, parts));
  parts->front = impl->context;
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { stop(Duration::zero()); }

Status Server::start() {
  std::lock_guard lock(impl_->mutex);
  if (impl_->http != nullptr || impl_->stopped) {
    return error(StatusCode::kFailedPrecondition, "a server starts once");
  }
  const ServerConfig& c = impl_->context->config;
  net::HttpServerConfig http;
  http.num_threads = c.limits.io_threads;
  http.max_connections = c.limits.max_connections;
  http.max_body_bytes = c.limits.max_body_bytes;
  http.max_pending_output_bytes = c.limits.max_pending_output_bytes;
  http.header_timeout = c.limits.header_timeout;
  http.idle_timeout = c.limits.idle_timeout;
  http.write_timeout = c.limits.write_timeout;
  http.make_error = server::http_error;
  http.bodies = open_account("bodies", c.limits.max_bodies_bytes, c);
  http.outputs = open_account("outputs", c.limits.max_outputs_bytes, c);
  const auto responses = std::make_shared<MemoryAccount>(
      "responses", static_cast<int64_t>(c.storage.max_responses_bytes));
  impl_->context->accounts = {http.bodies, http.outputs, responses};
  impl_->context->responses =
      std::make_unique<server::ResponseStore>(responses, c.storage.responses_time_to_live);
  impl_->context->background =
      std::make_unique<server::BackgroundResponses>(*impl_->context->responses);
  ESP_ASSIGN_OR_RETURN(http.tls, net::read_tls(c.access.tls));
  ESP_RETURN_IF_ERROR(open_batches(impl_->context));
  set_reach(c, http);
  net::Router router;
  ESP_RETURN_IF_ERROR(impl_->add_routes(router));
  raise_descriptor_limit(c.limits.max_connections);
  if (!impl_->address) {
    ESP_ASSIGN_OR_RETURN(impl_->address, bind(c));
  }
  if (server::ModelRegistry* const models = impl_->context->parts->models.get()) {
    models->start();
    models->wait_until_settled();
  }
  auto started = HttpServer::start(std::move(http), std::move(router),
                                   std::move(*std::exchange(impl_->address, std::nullopt)));
  if (!started) return with_flags(started.error());
  impl_->http = std::move(*started);
  impl_->context->http = impl_->http.get();
  if (impl_->context->batches != nullptr) impl_->context->batches->runner.start();
  return {};
}

int Server::port() const { return impl_->http != nullptr ? impl_->http->port() : 0; }

Status Server::reload() {
  const ServerConfig& c = impl_->context->config;
  Tenants* const tenants = impl_->context->tenants.get();
  ESP_ASSIGN_OR_RETURN(auto tls, net::read_tls(c.access.tls));
  if (tenants != nullptr && !c.access.api_keys_file.empty()) {
    ESP_RETURN_IF_ERROR(tenants->reload().with_context("--api-keys-file"));
    log_info("the keys of {} were read again: {} tenants", c.access.api_keys_file,
             tenants->all().size());
  }
  std::lock_guard lock(impl_->mutex);
  if (tls == nullptr || impl_->http == nullptr) return {};
  impl_->http->set_tls(std::move(tls));
  log_info("the certificate {} was read again", c.access.tls.certificate);
  return {};
}

void Server::stop(Duration timeout) {
  std::lock_guard lock(impl_->mutex);
  if (impl_->stopped) return;
  impl_->stopped = true;
  impl_->context->stopping = true;
  if (impl_->context->batches != nullptr) impl_->context->batches->runner.stop();
  if (impl_->http != nullptr) impl_->http->stop(timeout);
  if (impl_->context->background != nullptr) impl_->context->background->stop();
  impl_->context->http = nullptr;
  impl_->context->threads->workers.stop();
  impl_->context->threads->grammars.stop();
  impl_->context->threads->weights.stop();
  impl_->context->threads->sounds.stop();
  if (server::ModelRegistry* const models = impl_->context->parts->models.get()) models->stop();
  impl_->context->batches.reset();  // answers in progress may outlive the server, its folder not
}

}  // namespace espalier
