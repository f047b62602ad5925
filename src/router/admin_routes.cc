#include "router/admin_routes.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <functional>
#include <set>
#include <utility>

#include "router/cache_handover.h"
#include "router/error_bodies.h"

namespace espalier::router {

namespace json = boost::json;
using net::HttpRequest;
using net::HttpResponse;
using net::ResponsePtr;

namespace {

HttpResponse failure(const Status& status) {
  const int code = status.code() == StatusCode::kNotFound          ? 404
                   : status.code() == StatusCode::kAlreadyExists   ? 409
                   : status.code() == StatusCode::kInvalidArgument ? 400
                                                                   : 503;
  return error_answer(ErrorStyle::kOpenAi, code, status.message());
}

std::string_view breaker_name(CircuitBreaker::State state) {
  return state == CircuitBreaker::State::kClosed ? "closed"
         : state == CircuitBreaker::State::kOpen ? "open"
                                                 : "half_open";
}

json::object describe(const WorkerInfo& worker) {
  json::array models;
  for (const std::string& model : worker.models) models.emplace_back(model);
  json::value takes_ids, takes_chat_ids;  // null: not asked, or not known yet
  if (worker.takes_ids) {
    takes_ids = worker.takes_ids->texts;
    takes_chat_ids = worker.takes_ids->chats;
  }
  return {{"id", worker_id(worker)},
          {"url", worker.url},
          {"models", std::move(models)},
          {"takes_token_ids", std::move(takes_ids)},
          {"takes_chat_token_ids", std::move(takes_chat_ids)},
          {"role", worker.bootstrap_port > 0 ? "prefill" : "serving"},
          {"state", worker_state_name(worker.state)},
          {"is_healthy", worker.state == WorkerState::kHealthy},
          {"circuit_breaker", breaker_name(worker.breaker)},
          {"load", worker.requests_in_flight},
          {"tokens_in_flight", worker.tokens_in_flight},
          {"requests", worker.counts.requests},
          {"failures", worker.counts.failures},
          {"busy", worker.counts.busy},
          {"prompt_tokens", worker.counts.tokens},
          {"prompt_tokens_shared", worker.counts.tokens_shared}};
}

// The url that a request names: in its query (as /add_worker has it) or in its JSON body.
Result<std::string> url_of(const HttpRequest& request) {
  if (const auto stated = request.query_param("url")) return normal_worker_url(*stated);
  boost::system::error_code failed;
  const json::value body = json::parse(request.body, failed);
  const json::value* const url =
      !failed && body.is_object() ? body.as_object().if_contains("url") : nullptr;
  if (url == nullptr || !url->is_string())
    return fail(invalid_argument("give the worker's url, as in {{\"url\": \"http://HOST:PORT\"}}"));
  return normal_worker_url(std::string_view(url->as_string()));
}

Result<WorkerInfo> find_worker(const Dispatcher& dispatcher, std::string_view id) {
  for (WorkerInfo& worker : dispatcher.workers())
    if (worker_id(worker) == id) return std::move(worker);
  return fail(error(StatusCode::kNotFound,
                    "there is no worker with the id '{}': GET /workers lists them", id));
}

void list_workers(const AdminContext& context, HttpRequest&&, ResponsePtr response) {
  json::array workers;
  for (const WorkerInfo& worker : context.dispatcher.workers()) workers.push_back(describe(worker));
  const size_t total = workers.size();
  response->send(HttpResponse::json(
      200, json::serialize(json::object{{"workers", std::move(workers)}, {"total", total}})));
}

void list_urls(const AdminContext& context, HttpRequest&&, ResponsePtr response) {
  json::array urls;
  for (const WorkerInfo& worker : context.dispatcher.workers()) urls.emplace_back(worker.url);
  response->send(HttpResponse::json(200, json::serialize(json::object{{"urls", std::move(urls)}})));
}

void get_worker(const AdminContext& context, HttpRequest&& request, ResponsePtr response) {
  const auto worker = find_worker(context.dispatcher, request.param("id"));
  if (!worker) return response->send(failure(worker.error()));
  response->send(HttpResponse::json(200, json::serialize(describe(*worker))));
}

void add_worker(const AdminContext& context, HttpRequest&& request, ResponsePtr response) {
  const auto url = url_of(request);
  if (!url) return response->send(failure(url.error()));
  context.sources.add(*url, [url = *url, response = std::move(response)](const Status& added) {
    if (!added.ok()) return response->send(failure(added));
    response->send(HttpResponse::json(
        202, json::serialize(json::object{{"status", "accepted"},
                                          {"url", url},
                                          {"message", "it gets requests once it is healthy"}})));
  });
}

// Whether a request's body says "hand_over": true.
Result<bool> hands_over(const HttpRequest& request) {
  boost::system::error_code failed;
  const json::value body = json::parse(request.body, failed);
  const json::value* const flag =
      !failed && body.is_object() ? body.as_object().if_contains("hand_over") : nullptr;
  if (flag == nullptr) return false;
  if (!flag->is_bool())
    return fail(error(StatusCode::kInvalidArgument, "hand_over must be true or false"));
  return flag->as_bool();
}

json::object describe(const HandedOver& handed) {
  json::array peers;
  for (const HandedOver::Peer& peer : handed.peers) {
    json::object entry{{"url", peer.url}, {"num_pages", peer.num_pages}};
    if (!peer.failure.empty()) entry["error"] = peer.failure;
    peers.emplace_back(std::move(entry));
  }
  return {{"file", handed.file},
          {"num_pages", handed.num_pages},
          {"num_bytes", handed.num_bytes},
          {"workers", std::move(peers)}};
}

// The normal url of the worker that a request names, by its id or by its url.
Result<std::string> named_url(const AdminContext& context, const HttpRequest& request) {
  const std::string_view id = request.param("id");
  if (id.empty()) return url_of(request);
  ESP_ASSIGN_OR_RETURN(WorkerInfo worker, find_worker(context.dispatcher, id));
  return std::move(worker.url);
}

// The handler of a change to the worker that a request names.
net::Handler change_worker(const AdminContext& context, std::string_view done,
                           std::function<Status(const AdminContext&, const std::string&)> change) {
  return [context, done, change = std::move(change)](HttpRequest&& request, ResponsePtr response) {
    const Result<std::string> url = named_url(context, request);
    if (!url) return response->send(failure(url.error()));
    if (const Status changed = change(context, *url); !changed.ok())
      return response->send(failure(changed));
    response->send(
        HttpResponse::json(200, json::serialize(json::object{{"status", done}, {"url", *url}})));
  };
}

Status remove_worker(const AdminContext& context, const std::string& url) {
  return context.sources.remove(url);
}
Status resume_worker(const AdminContext& context, const std::string& url) {
  return context.dispatcher.resume_worker(url);
}

// With hand_over the answer comes when the others have the worker's cache. The worker drains in any
// case, also where that fails.
void drain_worker(const AdminContext& context, HttpRequest&& request, ResponsePtr response) {
  const Result<std::string> url = named_url(context, request);
  if (!url) return response->send(failure(url.error()));
  const Result<bool> hand_over = hands_over(request);
  if (!hand_over) return response->send(failure(hand_over.error()));
  if (const Status drained = context.dispatcher.drain_worker(*url, false); !drained.ok())
    return response->send(failure(drained));
  json::object answer{{"status", "draining"}, {"url", *url}};
  if (!*hand_over || context.handover == nullptr)
    return response->send(HttpResponse::json(200, json::serialize(answer)));
  context.handover->start(*url, [answer = std::move(answer), response = std::move(response)](
                                    const Result<HandedOver>& handed) mutable {
    if (!handed)
      return response->send(failure(handed.error().with_context("the worker drains, but")));
    answer["handed_over"] = describe(*handed);
    response->send(HttpResponse::json(200, json::serialize(answer)));
  });
}

json::object describe_model(const std::string& id) {
  return {{"id", id}, {"object", "model"}, {"created", 0}, {"owned_by", "espalier"}};
}

std::set<std::string> served_models(const Dispatcher& dispatcher) {
  std::set<std::string> out;
  for (const WorkerInfo& worker : dispatcher.workers()) {
    if (worker.state == WorkerState::kHealthy)
      out.insert(worker.models.begin(), worker.models.end());
  }
  return out;
}

void list_models(const AdminContext& context, HttpRequest&&, ResponsePtr response) {
  json::array data;
  for (const std::string& id : served_models(context.dispatcher))
    data.push_back(describe_model(id));
  response->send(HttpResponse::json(
      200, json::serialize(json::object{{"object", "list"}, {"data", std::move(data)}})));
}

void get_model(const AdminContext& context, HttpRequest&& request, ResponsePtr response) {
  const std::string id(request.param("model"));
  if (served_models(context.dispatcher).contains(id))
    return response->send(HttpResponse::json(200, json::serialize(describe_model(id))));
  response->send(failure(
      error(StatusCode::kNotFound,
            "no healthy worker serves the model '{}': GET /v1/models lists what is served", id)));
}

void answer_health(const AdminContext& context, HttpRequest&&, ResponsePtr response) {
  const auto workers = context.dispatcher.workers();
  const auto healthy = std::ranges::count(workers, WorkerState::kHealthy, &WorkerInfo::state);
  response->send(HttpResponse::json(
      healthy > 0 ? 200 : 503,
      json::serialize(json::object{{"status", healthy > 0 ? "ok" : "no worker is healthy"},
                                   {"healthy_workers", healthy},
                                   {"total_workers", workers.size()}})));
}

}  // namespace

std::string worker_id(const WorkerInfo& worker) { return fmt::format("{:016x}", worker.id); }

Status add_admin_routes(net::Router& router, const AdminContext& context,
                        const net::Admission& admin, const net::Admission& client) {
  using Function = void (*)(const AdminContext&, HttpRequest&&, ResponsePtr);
  const auto handler = [&context](Function f) -> net::Handler {
    return [context, f](HttpRequest&& request, ResponsePtr response) {
      f(context, std::move(request), std::move(response));
    };
  };
  const auto remove = change_worker(context, "removed", remove_worker);
  const auto drain = handler(drain_worker);
  const auto resume = change_worker(context, "resumed", resume_worker);
  const net::Handler alive = [](HttpRequest&&, ResponsePtr response) {
    response->send(HttpResponse::json(200, R"({"status":"ok"})"));
  };
  const net::Handler metrics = [context](HttpRequest&&, ResponsePtr response) {
    response->send({200, {{"Content-Type", "text/plain; version=0.0.4"}}, metrics_text(context)});
  };
  struct Row {
    std::string_view method, pattern;
    net::Handler handler;
    const net::Admission* admission;
  };
  const net::Admission open;
  for (const Row& row :
       {Row{"GET", "/workers", handler(list_workers), &admin},
        Row{"POST", "/workers", handler(add_worker), &admin},
        Row{"GET", "/workers/{id}", handler(get_worker), &admin},
        Row{"DELETE", "/workers/{id}", remove, &admin},
        Row{"POST", "/workers/{id}/drain", drain, &admin},
        Row{"POST", "/workers/{id}/resume", resume, &admin},
        Row{"POST", "/add_worker", handler(add_worker), &admin},
        Row{"POST", "/remove_worker", remove, &admin},
        Row{"GET", "/list_workers", handler(list_urls), &admin},
        Row{"POST", "/drain", drain, &admin}, Row{"POST", "/resume", resume, &admin},
        Row{"GET", "/v1/models", handler(list_models), &client},
        Row{"GET", "/v1/models/{model*}", handler(get_model), &client},
        Row{"GET", "/health", handler(answer_health), &open},
        Row{"GET", "/readiness", handler(answer_health), &open},
        Row{"GET", "/liveness", alive, &open}, Row{"GET", "/metrics", metrics, &open}})
    ESP_RETURN_IF_ERROR(router.add(row.method, row.pattern, row.handler, *row.admission));
  return {};
}

}  // namespace espalier::router
