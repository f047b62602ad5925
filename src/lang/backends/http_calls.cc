#include "lang/backends/http_calls.h"

#include <algorithm>
#include <boost/json.hpp>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "base/thread.h"
#include "net/client.h"

namespace espalier::lang {
namespace {

bool is_worth_another_try(int status) {
  return status == 429 || status == 500 || status == 502 || status == 503 || status == 504 ||
         status == 529;
}

StatusCode code_of(int http_status) {
  switch (http_status) {
    case 401:
      return StatusCode::kUnauthenticated;
    case 403:
      return StatusCode::kPermissionDenied;
    case 404:
      return StatusCode::kNotFound;
    case 408:
    case 504:
      return StatusCode::kDeadlineExceeded;
    case 429:
      return StatusCode::kResourceExhausted;
    default:
      return http_status >= 500 ? StatusCode::kUnavailable : StatusCode::kInvalidArgument;
  }
}

// {"error": {"message": ...}}, {"error": "..."}, {"message": ...}, or the text itself.
std::string message_of(std::string_view body) {
  boost::json::error_code failed;
  const boost::json::value value = boost::json::parse(body, failed);
  if (!failed && value.is_object()) {
    const boost::json::value* inner = value.get_object().if_contains("error");
    const boost::json::value* from = inner != nullptr ? inner : &value;
    if (from->is_string()) return std::string(from->get_string());
    if (from->is_object())
      if (const auto* message = from->get_object().if_contains("message");
          message != nullptr && message->is_string())
        return std::string(message->get_string());
  }
  return std::string(body.substr(0, 300));
}

}  // namespace

Status status_of_answer(int http_status, std::string_view body) {
  return error(code_of(http_status), "HTTP {}: {}", http_status, message_of(body));
}

struct HttpCalls::Impl {
  std::string base_url;
  net::HttpClientConfig client_config;
  HttpLimits limits;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Call> queue;
  struct Worker {
    std::optional<net::HttpClient> client;
    std::string id;  // of its call; "": idle
    bool cancelled = false;
    std::thread thread;
  };
  std::vector<std::unique_ptr<Worker>> workers;
  size_t num_idle = 0;
  bool closed = false;
  TimePoint next_turn{};  // by the rate limit
  Rng rng{0x5eed};

  void work(Worker& worker);
  // Waits for the rate limit's turn; false when cancelled.
  bool wait_turn(std::unique_lock<std::mutex>& lock, const Worker& worker);
  bool wait_backoff(Worker& worker, int attempt, const net::HttpResponse* answer);
  Result<std::string> run(Worker& worker, const Call& call, int& num_retries);
};

bool HttpCalls::Impl::wait_turn(std::unique_lock<std::mutex>& lock, const Worker& worker) {
  if (limits.requests_per_minute > 0) {
    const auto now = SteadyClock().now();
    const TimePoint turn = std::max(now, next_turn);
    next_turn = turn + Duration(static_cast<int64_t>(60e9 / limits.requests_per_minute));
    changed.wait_until(lock, turn, [&] { return worker.cancelled; });
  }
  return !worker.cancelled;
}

bool HttpCalls::Impl::wait_backoff(Worker& worker, int attempt, const net::HttpResponse* answer) {
  std::unique_lock lock(mutex);
  Duration wait =
      std::min(limits.backoff * (int64_t{1} << std::min(attempt, 20)), limits.backoff_max);
  wait += Duration(static_cast<int64_t>(rng.uniform() * 0.2 * static_cast<double>(wait.count())));
  const std::string* asked =
      answer != nullptr ? net::find_header(answer->headers, "Retry-After") : nullptr;
  if (asked != nullptr) {
    const double seconds = std::strtod(asked->c_str(), nullptr);
    if (seconds > 0)
      wait = std::min<Duration>(Duration(static_cast<int64_t>(seconds * 1e9)), limits.backoff_max);
  }
  return !changed.wait_for(lock, wait, [&] { return worker.cancelled; });
}

Result<std::string> HttpCalls::Impl::run(Worker& worker, const Call& call, int& num_retries) {
  const auto aborted = [] { return fail(Status(StatusCode::kAborted, "the call was cancelled")); };
  for (int attempt = 0;; ++attempt) {
    {
      std::unique_lock lock(mutex);
      if (!wait_turn(lock, worker)) return aborted();
    }
    bool any_event = false;
    const auto on_event = [&](std::string_view data) {
      any_event = true;
      call.on_event(data);
      std::lock_guard lock(mutex);
      return !worker.cancelled;
    };
    Result<net::HttpResponse> answer =
        call.on_event ? worker.client->post_stream(call.path, call.body, on_event)
                      : worker.client->post(call.path, call.body);
    {
      std::lock_guard lock(mutex);
      if (worker.cancelled) return aborted();
    }
    if (answer && answer->status / 100 == 2) return std::move(answer->body);
    const bool again = !any_event && attempt < limits.num_retries &&
                       (answer ? is_worth_another_try(answer->status)
                               : answer.error().code() == StatusCode::kUnavailable);
    if (!again) {
      if (!answer) return fail(answer.error().with_context(base_url));
      return fail(status_of_answer(answer->status, answer->body).with_context(base_url));
    }
    if (!wait_backoff(worker, attempt, answer ? &*answer : nullptr)) return aborted();
    ++num_retries;
  }
}

void HttpCalls::Impl::work(Worker& worker) {
  set_thread_name("esp-http-call");
  while (true) {
    Call call;
    {
      std::unique_lock lock(mutex);
      worker.id.clear();
      ++num_idle;
      changed.wait(lock, [&] { return closed || !queue.empty(); });
      --num_idle;
      if (closed) return;
      call = std::move(queue.front());
      queue.pop_front();
      worker.id = call.id;
      worker.cancelled = false;
      worker.client->resume();
    }
    int num_retries = 0;
    Result<std::string> result = run(worker, call, num_retries);
    call.on_done(std::move(result), num_retries);
  }
}

Result<std::unique_ptr<HttpCalls>> HttpCalls::create(const std::string& base_url,
                                                     net::Headers headers, HttpLimits limits) {
  auto impl = std::make_unique<Impl>();
  impl->base_url = base_url;
  impl->client_config = {.connect_timeout = limits.connect_timeout,
                         .read_timeout = limits.timeout,
                         .headers = std::move(headers),
                         .ca_file = limits.ca_file};
  impl->limits = limits;
  // Bad URLs and certificates fail here, not with the first call.
  const auto client = net::HttpClient::create(base_url, impl->client_config);
  if (!client) return fail(client.error());
  return std::unique_ptr<HttpCalls>(new HttpCalls(std::move(impl)));
}

HttpCalls::HttpCalls(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpCalls::~HttpCalls() {
  std::deque<Call> dropped;
  {
    std::lock_guard lock(impl_->mutex);
    impl_->closed = true;
    dropped.swap(impl_->queue);
    for (auto& worker : impl_->workers) {
      worker->cancelled = true;
      worker->client->interrupt();
    }
  }
  impl_->changed.notify_all();
  for (auto& worker : impl_->workers) worker->thread.join();
  for (Call& call : impl_->queue) dropped.push_back(std::move(call));  // what an end still began
  for (Call& call : dropped)
    call.on_done(fail(Status(StatusCode::kAborted, "the back end was closed")), 0);
}

void HttpCalls::submit(Call call) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->queue.push_back(std::move(call));
    const auto max = static_cast<size_t>(std::max(1, impl_->limits.num_connections));
    if (!impl_->closed && impl_->queue.size() > impl_->num_idle && impl_->workers.size() < max) {
      auto& worker = impl_->workers.emplace_back(std::make_unique<Impl::Worker>());
      worker->client = *net::HttpClient::create(impl_->base_url, impl_->client_config);
      worker->thread = std::thread([impl = impl_.get(), &w = *worker] { impl->work(w); });
    }
  }
  impl_->changed.notify_all();
}

void HttpCalls::cancel(const std::string& id) {
  std::optional<Call> queued;
  {
    std::lock_guard lock(impl_->mutex);
    for (auto& worker : impl_->workers) {
      if (worker->id != id) continue;
      worker->cancelled = true;
      worker->client->interrupt();
    }
    const auto it = std::find_if(impl_->queue.begin(), impl_->queue.end(),
                                 [&](const Call& call) { return call.id == id; });
    if (it != impl_->queue.end()) {
      queued = std::move(*it);
      impl_->queue.erase(it);
    }
  }
  impl_->changed.notify_all();
  if (queued) queued->on_done(fail(Status(StatusCode::kAborted, "the call was cancelled")), 0);
}

Result<std::string> HttpCalls::fetch(std::string_view method, std::string_view path) {
  ESP_ASSIGN_OR_RETURN(net::HttpClient client,
                       net::HttpClient::create(impl_->base_url, impl_->client_config));
  ESP_ASSIGN_OR_RETURN(net::HttpResponse answer, client.request(method, path));
  if (answer.status / 100 != 2)
    return fail(status_of_answer(answer.status, answer.body).with_context(impl_->base_url));
  return std::move(answer.body);
}

}  // namespace espalier::lang
