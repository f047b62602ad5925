#include "router/cache_handover.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <new>
#include <random>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace espalier::router {

namespace json = boost::json;

namespace {

constexpr Duration kLook = std::chrono::milliseconds(50);  // at the requests of the worker

Status stopping() { return error(StatusCode::kUnavailable, "the router is stopping"); }

bool shares_model(const WorkerInfo& a, const WorkerInfo& b) {
  return std::ranges::any_of(a.models, [&](const std::string& model) {
    return std::ranges::find(b.models, model) != b.models.end();
  });
}

int64_t number_of(const json::object& object, std::string_view name) {
  const json::value* const value = object.if_contains(name);
  return value != nullptr && value->is_int64() ? value->as_int64() : 0;
}

}  // namespace

CacheHandover::CacheHandover(CacheHandoverConfig config, Dispatcher& dispatcher)
    : config_(std::move(config)),
      dispatcher_(dispatcher),
      file_(fmt::format("handover-{:08x}.kv", std::random_device()())),
      thread_([this] { run(); }) {}

CacheHandover::~CacheHandover() {
  begin_stop();
  thread_.join();
}

void CacheHandover::begin_stop() {
  stopped_ = true;
  jobs_.close();
  const std::lock_guard lock(client_mutex_);
  if (client_ != nullptr) client_->interrupt();
}

void CacheHandover::start(const std::string& url, Done done) {
  Job job{url, std::move(done)};
  if (jobs_.try_push(std::move(job))) return;
  job.done(fail(error(StatusCode::kResourceExhausted,
                      "too many caches wait to be handed over: try again later")));
}

void CacheHandover::run() {
  set_thread_name("hand-over");
  while (std::optional<Job> job = jobs_.pop()) {
    Result<HandedOver> handed = stopped_ ? fail(stopping()) : guarded_hand_over(job->url);
    if (handed)
      log_info("cache handed over from={} pages={} to={} workers", job->url, handed->num_pages,
               handed->peers.size());
    else
      log_warning("cache not handed over from={} why=\"{}\"", job->url, handed.error().message());
    job->done(std::move(handed));
  }
}

Result<HandedOver> CacheHandover::guarded_hand_over(const std::string& url) {
  try {
    return hand_over(url);
  } catch (const std::bad_alloc&) {
    return fail(error(StatusCode::kResourceExhausted, "there is no memory to hand a cache over"));
  }
}

Result<HandedOver> CacheHandover::hand_over(const std::string& url) {
  ESP_ASSIGN_OR_RETURN(const std::vector<std::string> peers, await_requests(url));
  HandedOver handed{.file = file_};
  auto exported = call(url, "/cache/export", handed.file, &handed.num_bytes);
  if (!exported)
    return fail(
        error(StatusCode::kUnavailable,
              "the worker's cache cannot be exported (that needs --cache-file-dir, tiers and, as "
              "--worker-api-key, the administrator's key): {}",
              exported.error().message()));
  handed.num_pages = *exported;
  for (const std::string& peer : peers) {
    HandedOver::Peer& taken = handed.peers.emplace_back(HandedOver::Peer{.url = peer});
    if (handed.num_pages == 0) continue;
    const auto imported = call(peer, "/cache/import", handed.file, nullptr);
    if (imported)
      taken.num_pages = *imported;
    else
      taken.failure = imported.error().message();
  }
  return handed;
}

// The workers that take the cache, once the worker has answered its last request or the time is up:
// prefixes of requests that run on are then left out.
Result<std::vector<std::string>> CacheHandover::await_requests(const std::string& url) {
  for (Duration left = config_.requests_max; !stopped_; left -= kLook) {
    const std::vector<WorkerInfo> workers = dispatcher_.workers();
    const auto from = std::ranges::find(workers, url, &WorkerInfo::url);
    if (from == workers.end())
      return fail(error(StatusCode::kNotFound, "the worker {} has left", url));
    if (from->state != WorkerState::kDraining)
      return fail(error(StatusCode::kFailedPrecondition,
                        "the worker {} drains no more, so it keeps its cache", url));
    if (from->requests_in_flight > 0 && left > Duration::zero()) {
      std::this_thread::sleep_for(kLook);
      continue;
    }
    std::vector<std::string> peers;
    for (const WorkerInfo& worker : workers)
      if (worker.state == WorkerState::kHealthy && worker.bootstrap_port == 0 &&
          worker.url != url && shares_model(worker, *from))
        peers.push_back(worker.url);
    if (peers.empty())
      return fail(error(StatusCode::kNotFound,
                        "no other healthy worker serves a model of {}: its cache is not exported",
                        url));
    return peers;
  }
  return fail(stopping());
}

// How many pages a worker has written or taken.
Result<int64_t> CacheHandover::call(const std::string& url, std::string_view path,
                                    const std::string& file, int64_t* num_bytes) {
  net::HttpClientConfig config{.read_timeout = config_.call_timeout, .ca_file = config_.ca_file};
  if (!config_.api_key.empty())
    config.headers.emplace_back("Authorization", "Bearer " + config_.api_key);
  ESP_ASSIGN_OR_RETURN(net::HttpClient client, net::HttpClient::create(url, std::move(config)));
  {
    const std::lock_guard lock(client_mutex_);
    if (stopped_) return fail(stopping());
    client_ = &client;
  }
  const auto answer = client.post(path, json::serialize(json::object{{"file", file}}));
  {
    const std::lock_guard lock(client_mutex_);
    client_ = nullptr;
  }
  if (!answer) return fail(answer.error());
  boost::system::error_code failed;
  const json::value body = json::parse(answer->body, failed);
  if (answer->status != 200 || failed || !body.is_object())
    return fail(error(StatusCode::kUnavailable, "{}{} answers {}: {}", url, path, answer->status,
                      answer->body.substr(0, 500)));
  if (num_bytes != nullptr) *num_bytes = number_of(body.as_object(), "num_bytes");
  return number_of(body.as_object(), "num_pages");
}

}  // namespace espalier::router
