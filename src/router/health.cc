#include "router/health.h"

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <utility>

#include "base/log.h"

namespace espalier::router {

namespace json = boost::json;

namespace {

constexpr int64_t kModelsEvery = 20;  // checks: adapters come and go while a worker runs
constexpr size_t kBodyBytesMax = 4 << 20;

net::UpstreamConfig upstream_config(const HealthConfig& config) {
  return {.connect_timeout = config.timeout,
          .head_timeout = config.timeout,
          .idle_timeout = config.timeout,
          .keep_alive = config.interval * 4,
          .max_idle_per_endpoint = 2,
          .tls = config.tls};
}

}  // namespace

// One answer, whole. A failure has status 0, and its reason for a body.
class HealthChecker::Check final : public net::UpstreamHandler {
 public:
  explicit Check(std::function<void(int, std::string)> done) : done_(std::move(done)) {}
  void on_head(int status, net::Headers, std::optional<size_t>) override { status_ = status; }
  void on_body(std::string bytes) override {
    if (body_.size() < kBodyBytesMax) body_ += bytes;
  }
  void on_end() override { done_(status_, std::move(body_)); }
  void on_failure(Status why) override { done_(0, why.message()); }

 private:
  const std::function<void(int, std::string)> done_;
  int status_ = 0;
  std::string body_;
};

HealthChecker::HealthChecker(HealthConfig config, Dispatcher& dispatcher)
    : config_(std::move(config)),
      dispatcher_(dispatcher),
      upstream_(upstream_config(config_)),
      io_("esp-health") {
  io_.post([this] { check_all(); });
}
HealthChecker::~HealthChecker() = default;

void HealthChecker::check_all() {
  const std::vector<WorkerInfo> workers = dispatcher_.workers();
  if (failures_.size() > workers.size()) failures_.clear();  // some have left
  for (const WorkerInfo& worker : workers) {
    if (worker.endpoint.address.empty() || !being_checked_.insert(worker.generation).second)
      continue;
    check(worker);
  }
  ++round_;
  io_.post_after(config_.interval, [this] { check_all(); });
}

void HealthChecker::check(const WorkerInfo& worker) {
  call(worker, config_.path, "", [this, worker](int status, const std::string& body) {
    const bool healthy = status / 100 == 2 || status == 429;
    log_failure(worker, healthy       ? ""
                        : status == 0 ? body
                                      : fmt::format("it answers with status {}", status));
    // Another process may answer at this address next.
    if (status == 0 && worker.takes_ids)
      dispatcher_.set_takes_ids(worker.slot, worker.generation, {});
    if (healthy && (worker.models.empty() || round_ % kModelsEvery == 0)) read_models(worker);
    const bool is_asked = !config_.probe.texts.empty();
    if (healthy && is_asked && (!worker.takes_ids || round_ % kModelsEvery == 0))
      compare_tokenizer(worker);
    if (dispatcher_.report_check(worker.slot, worker.generation, healthy)) return check(worker);
    being_checked_.erase(worker.generation);
  });
}

// Once for each reason: a worker that never answers is not asked in silence.
void HealthChecker::log_failure(const WorkerInfo& worker, const std::string& why) {
  if (why.empty()) {
    failures_.erase(worker.generation);
    return;
  }
  std::string& last = failures_[worker.generation];
  if (last != why)
    log_warning("worker does not answer its health checks url={} why=\"{}\"", worker.url, why);
  last = why;
}

void HealthChecker::read_models(const WorkerInfo& worker) {
  call(worker, "/v1/models", "", [this, worker](int status, const std::string& body) {
    if (status != 200) return;
    ListedModels models = listed_models(body);
    dispatcher_.set_models(worker.slot, worker.generation, std::move(models.ids),
                           std::move(models.adapters));
  });
}

// A worker that does not answer, or has another tokenizer, goes on getting text.
void HealthChecker::compare_tokenizer(const WorkerInfo& worker) {
  ask(worker, config_.probe.texts, 0, [this, worker](bool texts) {
    if (!texts || config_.probe.chats.empty())
      return dispatcher_.set_takes_ids(worker.slot, worker.generation, {.texts = texts});
    ask(worker, config_.probe.chats, 0, [this, worker](bool chats) {
      dispatcher_.set_takes_ids(worker.slot, worker.generation, {.texts = true, .chats = chats});
    });
  });
}

void HealthChecker::ask(const WorkerInfo& worker, const std::vector<TokenQuestion>& questions,
                        size_t next, std::function<void(bool)> done) {
  if (next == questions.size()) return done(true);
  call(worker, "/tokenize", questions[next].body,
       [this, worker, &questions, next, done = std::move(done)](int status,
                                                                const std::string& body) {
         if (status == 0) return;  // the next check asks again
         if (status != 200 || !is_answered(questions[next], body)) return done(false);
         ask(worker, questions, next + 1, done);
       });
}

void HealthChecker::call(const WorkerInfo& worker, std::string target, std::string_view body,
                         std::function<void(int, std::string)> done) {
  net::UpstreamRequest request{"GET", std::move(target), {}, nullptr};
  if (!body.empty()) {
    request.method = "POST";
    request.headers.emplace_back("Content-Type", "application/json");
    request.body = std::make_shared<const std::string>(body);
  }
  if (!config_.api_key.empty())
    request.headers.emplace_back("Authorization", "Bearer " + config_.api_key);
  upstream_.call(io_.io(), worker.endpoint, std::move(request),
                 std::make_shared<Check>(std::move(done)));
}

ListedModels listed_models(std::string_view body) {
  ListedModels out;
  boost::system::error_code failed;
  const json::value value = json::parse({body.data(), body.size()}, failed);
  const json::value* const data =
      !failed && value.is_object() ? value.as_object().if_contains("data") : nullptr;
  if (data == nullptr || !data->is_array()) return out;
  for (const json::value& model : data->as_array()) {
    const json::value* const id = model.is_object() ? model.as_object().if_contains("id") : nullptr;
    if (id == nullptr || !id->is_string()) continue;
    out.ids.emplace_back(id->as_string());
    const json::value* const parent = model.as_object().if_contains("parent");
    if (parent != nullptr && parent->is_string() && parent->as_string() != id->as_string())
      out.adapters.emplace_back(id->as_string());
  }
  return out;
}

}  // namespace espalier::router
