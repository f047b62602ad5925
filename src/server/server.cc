#include "server/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <mutex>

#include "base/log.h"
#include "engine/speech/speech_engine.h"
#include "engine/startup/system_info.h"
#include "net/http_server.h"
#include "server/authorize.h"
#include "server/batches/batches.h"
#include "server/chat_plan.h"
#include "server/context.h"
#include "server/dialects/background_responses.h"
#include "server/dialects/response_store.h"
#include "server/errors.h"
#include "server/kv_event_publisher.h"
#include "server/observations.h"
#include "server/routes.h"
#include "tenants/tenants.h"
#include "text/parse/tool_call_parser.h"

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

std::string name_of_model(const ServerConfig& config, const Engine& engine) {
  if (!config.answers.served_model_name.empty()) return config.answers.served_model_name;
  std::filesystem::path path = engine.config().model.model_path;
  if (!path.has_filename()) path = path.parent_path();  // "models/llama/"
  return path.empty() ? "default" : path.filename().string();
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
    return server::handle(context, route, std::move(request), std::move(response));
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

Status choose_parsers(server::Context& context) {
  const ServerConfig& c = context.config;
  if (context.chat) context.tool_call_format = context.chat->tool_call_format();
  if (!c.answers.tool_call_parser.empty()) {
    ESP_ASSIGN_OR_RETURN([[maybe_unused]] const auto parser,
                         make_tool_call_parser(c.answers.tool_call_parser, {}, nullptr,
                                               server::response_template_of(context)));
    context.tool_call_format = c.answers.tool_call_parser;
  }
  std::string reasoning = c.answers.reasoning_parser;
  if (reasoning.empty() && context.chat) reasoning = context.chat->reasoning_format();
  if (!reasoning.empty() && reasoning != "none") {
    ESP_ASSIGN_OR_RETURN(
        context.reasoning_format,
        server::named_reasoning_format(reasoning, context.chat ? &*context.chat : nullptr));
  }
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
            server::handle(context, route, std::move(request), std::move(response));
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
  auto impl = std::make_unique<Impl>();
  impl->address = std::move(address);
  impl->context = std::make_shared<Context>(std::move(config), engine);
  Context& context = *impl->context;
  ESP_ASSIGN_OR_RETURN(context.tenants, read_tenants(context.config));
  context.model_name = name_of_model(context.config, engine);
  context.created_unix = std::chrono::duration_cast<std::chrono::seconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
  auto chat = server::ChatFormat::load(context.config.answers.chat_template,
                                       engine.config().model.model_path, engine.tokenizer());
  if (transcriber_of(engine) != nullptr) {
    context.chat_missing =
        error(StatusCode::kFailedPrecondition,
              "this model turns speech into text and does not chat: POST an audio file to "
              "/v1/audio/transcriptions, or start a server with a language model");
  } else if (chat) {
    context.chat = std::move(*chat);
  } else if (!context.config.answers.chat_template.empty()) {
    return fail(chat.error());
  } else {
    context.chat_missing =
        error(StatusCode::kFailedPrecondition,
              "this model has no usable chat template ({}): start the server with --chat-template, "
              "or use /v1/completions",
              chat.error().message());
  }
  ESP_RETURN_IF_ERROR(choose_parsers(context));
  context.observed = std::make_unique<server::Observations>(context.model_name, engine);
  if (!context.config.telemetry.otlp_traces_endpoint.empty()) {
    ESP_ASSIGN_OR_RETURN(context.observed->spans,
                         server::SpanExporter::start(context.config.telemetry.otlp_traces_endpoint,
                                                     context.config.telemetry.otlp_service_name));
  }
  if (!context.config.telemetry.request_log.empty()) {
    ESP_ASSIGN_OR_RETURN(context.observed->recorder,
                         server::RequestRecorder::start(
                             {.path = context.config.telemetry.request_log,
                              .keeps_prompts = context.config.telemetry.request_log_prompts,
                              .max_bytes = context.config.telemetry.request_log_max_bytes}));
  }
  if (!context.config.telemetry.kv_events.endpoint.empty()) {
    int32_t dp_rank = 0;
    for (const Engine* const replica : engine.replicas()) {
      auto publisher =
          server::KvEventPublisher::start(context.config.telemetry.kv_events, *replica, dp_rank++);
      if (!publisher) return fail(publisher.error().with_context("--kv-events-config"));
      context.observed->kv_events.push_back(std::move(*publisher));
    }
  }
  context.threads = std::make_unique<server::WorkThreads>(context.config.limits.worker_threads);
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
  impl_->context->batches.reset();  // answers in progress may outlive the server, its folder not
}

}  // namespace espalier
