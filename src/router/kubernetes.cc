#include "router/kubernetes.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "base/thread.h"
#include "router/dispatcher.h"

namespace espalier::router {

namespace json = boost::json;

namespace {

constexpr int kPageSize = 500;
constexpr int kGone = 410;  // what was asked for is older than what the server keeps

// Null where there is none, or one of another type stands above it.
const json::value* member(const json::value& value, std::initializer_list<const char*> path) {
  const json::value* at = &value;
  for (const char* name : path) {
    const json::object* const object = at->if_object();
    if (object == nullptr) return nullptr;
    at = object->if_contains(name);
    if (at == nullptr) return nullptr;
  }
  return at;
}

std::string text_at(const json::value& value, std::initializer_list<const char*> path) {
  const json::value* const found = member(value, path);
  const json::string* const text = found == nullptr ? nullptr : found->if_string();
  return text == nullptr ? "" : std::string(*text);
}

bool is_ready(const json::value& pod) {
  const json::value* const found = member(pod, {"status", "conditions"});
  const json::array* const conditions = found == nullptr ? nullptr : found->if_array();
  return conditions != nullptr && std::ranges::any_of(*conditions, [](const json::value& one) {
           return text_at(one, {"type"}) == "Ready" && text_at(one, {"status"}) == "True";
         });
}

int code_of(const json::value& status) {
  const json::value* const code = member(status, {"code"});
  return code != nullptr && code->is_int64() ? static_cast<int>(code->as_int64()) : 0;
}

std::string query_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~").find(c) != std::string_view::npos;
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string read_credential(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string text(std::istreambuf_iterator<char>(in), {});
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// An answer that is no success, as an error.
Status refused(const net::HttpResponse& answer) {
  boost::system::error_code ec;
  const json::value status = json::parse(answer.body, ec);
  const std::string why = ec ? answer.body.substr(0, 200) : text_at(status, {"message"});
  return error(
      answer.status == kGone ? StatusCode::kFailedPrecondition : StatusCode::kUnavailable,
      "the API answered {}: {}{}", answer.status, why,
      answer.status == 403 ? " (its service account needs get, list and watch of pods)" : "");
}

Result<std::string> api_url(const KubernetesConfig& config) {
  if (!config.api.empty()) return config.api;
  const char* const host = std::getenv("KUBERNETES_SERVICE_HOST");
  const char* const port = std::getenv("KUBERNETES_SERVICE_PORT");
  if (host == nullptr || *host == '\0')
    return fail(invalid_argument(
        "--service-discovery: this process is no pod of a cluster (KUBERNETES_SERVICE_HOST is not "
        "set): give --service-discovery-api URL, as of kubectl proxy"));
  const bool v6 = std::string_view(host).find(':') != std::string_view::npos;
  return fmt::format("https://{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "",
                     port == nullptr || *port == '\0' ? "443" : port);
}

}  // namespace

Result<std::string> pods_path(const KubernetesConfig& config) {
  std::string labels;
  for (const std::string& label : config.selector) {
    const size_t equals = label.find('=');
    if (equals == 0 || equals == std::string::npos || label.find(',') != std::string::npos)
      return fail(invalid_argument("--selector {}: give KEY=VALUE, a label of the pods", label));
    labels += (labels.empty() ? "" : ",") + label;
  }
  if (labels.empty())
    return fail(invalid_argument(
        "--service-discovery needs --selector KEY=VALUE, the labels of the pods that are workers"));
  const std::string where =
      config.name_space.empty() ? "" : "/namespaces/" + query_escaped(config.name_space);
  return fmt::format("/api/v1{}/pods?labelSelector={}", where, query_escaped(labels));
}

Result<std::string> PodTable::take_page(std::string_view text, bool is_first) {
  boost::system::error_code ec;
  const json::value page = json::parse(text, ec);
  const json::value* const items = ec ? nullptr : member(page, {"items"});
  const std::string version = ec ? "" : text_at(page, {"metadata", "resourceVersion"});
  if (items == nullptr || !items->is_array() || version.empty())
    return fail(error(StatusCode::kDataLoss, "the API answered with no list of pods"));
  if (is_first) {
    pods_.merge(before_);  // where the list before was not read to its end
    before_ = std::exchange(pods_, {});
  }
  for (const json::value& pod : items->as_array()) {
    const bool is_deleted = member(pod, {"metadata", "deletionTimestamp"}) != nullptr;
    if (is_deleted) continue;
    const std::string uid = text_at(pod, {"metadata", "uid"});
    const auto known = before_.find(uid);
    pods_[uid] = {text_at(pod, {"status", "podIP"}), text_at(pod, {"status", "phase"}) == "Running",
                  is_ready(pod) || (known != before_.end() && known->second.was_ready)};
  }
  version_ = version;
  std::string next = text_at(page, {"metadata", "continue"});
  if (next.empty()) before_.clear();
  return next;
}

Result<PodTable::Event> PodTable::take_event(std::string_view line) {
  boost::system::error_code ec;
  const json::value event = json::parse(line, ec);
  const json::value* const object = ec ? nullptr : member(event, {"object"});
  const std::string type = ec ? "" : text_at(event, {"type"});
  if (object == nullptr || type.empty())
    return fail(
        error(StatusCode::kDataLoss, "a watch of pods brought no event: {}", line.substr(0, 200)));
  if (type == "ERROR") {
    if (code_of(*object) == kGone) return Event::kExpired;
    return fail(error(StatusCode::kUnavailable, "the watch of pods failed: {}",
                      text_at(*object, {"message"})));
  }
  const std::string version = text_at(*object, {"metadata", "resourceVersion"});
  if (!version.empty()) version_ = version;
  if (type == "BOOKMARK") return Event::kNothing;
  const std::string uid = text_at(*object, {"metadata", "uid"});
  if (type == "DELETED" || member(*object, {"metadata", "deletionTimestamp"}) != nullptr)
    return pods_.erase(uid) > 0 ? Event::kChanged : Event::kNothing;
  if (type != "ADDED" && type != "MODIFIED") return Event::kNothing;
  Pod& pod = pods_[uid];
  pod.address = text_at(*object, {"status", "podIP"});
  pod.is_running = text_at(*object, {"status", "phase"}) == "Running";
  pod.was_ready = pod.was_ready || is_ready(*object);
  return Event::kChanged;
}

std::set<std::string> PodTable::urls() const {
  std::set<std::string> out;
  for (const auto& [uid, pod] : pods_)
    if (pod.is_running && pod.was_ready && !pod.address.empty())
      out.insert(worker_url(pod.address, port_));
  return out;
}

PodWatcher::PodWatcher(KubernetesConfig config, std::function<void(std::set<std::string>)> changed)
    : config_(std::move(config)),
      changed_(std::move(changed)),
      pods_(config_.port),
      backoff_(config_.backoff) {}

Result<std::unique_ptr<PodWatcher>> PodWatcher::start(
    KubernetesConfig config, std::function<void(std::set<std::string>)> changed) {
  if (const auto path = pods_path(config); !path) return fail(path.error());
  ESP_ASSIGN_OR_RETURN(config.api, api_url(config));
  std::unique_ptr<PodWatcher> out(new PodWatcher(std::move(config), std::move(changed)));
  if (const Status connected = out->connect(); !connected.ok())
    return fail(connected.with_context("--service-discovery"));
  out->thread_ = std::thread([raw = out.get()] { raw->run(); });
  return out;
}

PodWatcher::~PodWatcher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (client_) client_->interrupt();
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// A client of its own for each list, so that a new ca.crt counts.
Status PodWatcher::connect() {
  net::HttpClientConfig options;
  options.read_timeout = config_.watch_timeout + std::chrono::seconds(30);
  options.max_body_bytes = size_t{256} << 20;
  const std::filesystem::path ca = config_.credentials / "ca.crt";
  std::error_code ignored;
  if (std::filesystem::exists(ca, ignored)) options.ca_file = ca.string();
  ESP_ASSIGN_OR_RETURN(net::HttpClient client,
                       net::HttpClient::create(config_.api, std::move(options)));
  const std::lock_guard lock(mutex_);
  if (stopping_) return {StatusCode::kAborted, "it stops"};
  client_.emplace(std::move(client));
  return {};
}

net::Headers PodWatcher::headers() const {
  net::Headers out = {{"Accept", "application/json"}};
  const std::string token = read_credential(config_.credentials / "token");
  if (!token.empty()) out.emplace_back("Authorization", "Bearer " + token);
  return out;
}

bool PodWatcher::wait(Duration duration) {
  std::unique_lock lock(mutex_);
  return !stopped_.wait_for(lock, duration, [&] { return stopping_; });
}

void PodWatcher::run() {
  set_thread_name("esp-pods");
  Rng rng(static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  do {
    Status done = connect();
    if (done.ok()) done = list();
    if (done.ok()) done = watch();
    if (done.ok()) {  // the list is to be read again
      if (!wait(config_.backoff)) return;
      continue;
    }
    if (done.code() != StatusCode::kAborted)
      log_warning("pods are not known: {}; their workers stay", done.message());
    // Many routers that lost one server do not come back at once.
    const double part = 0.5 + 0.5 * rng.uniform();
    if (!wait(std::chrono::duration_cast<Duration>(backoff_ * part))) return;
    backoff_ = std::min(backoff_ * 2, config_.backoff_max);
  } while (wait(Duration::zero()));
}

Status PodWatcher::list() {
  ESP_ASSIGN_OR_RETURN(const std::string path, pods_path(config_));
  std::string next;
  bool is_first = true;
  do {
    std::string target = fmt::format("{}&limit={}", path, kPageSize);
    if (!next.empty()) target += "&continue=" + query_escaped(next);
    ESP_ASSIGN_OR_RETURN(const net::HttpResponse answer,
                         client_->request("GET", target, {}, headers()));
    if (answer.status != 200) return refused(answer);
    ESP_ASSIGN_OR_RETURN(next, pods_.take_page(answer.body, is_first));
    is_first = false;
  } while (!next.empty());
  backoff_ = config_.backoff;
  report();
  return {};
}

void PodWatcher::report() {
  std::set<std::string> urls = pods_.urls();
  if (reported_ == urls) return;
  reported_ = urls;
  changed_(std::move(urls));
}

// A watch that breaks goes on from the last event, so nothing is missed and nothing is listed
// again.
Status PodWatcher::watch() {
  while (true) {
    bool must_list = false;
    const auto begin = std::chrono::steady_clock::now();
    const Status ended = watch_once(must_list);
    if (must_list) return {};
    const bool was_short = std::chrono::steady_clock::now() - begin < config_.backoff;
    if (ended.ok() && !was_short) {
      backoff_ = config_.backoff;
      continue;
    }
    if (ended.code() != StatusCode::kOk && ended.code() != StatusCode::kUnavailable &&
        ended.code() != StatusCode::kDeadlineExceeded)
      return ended;
    if (!ended.ok() && backoff_ > config_.backoff)
      log_warning("pods are not watched: {}; their workers stay", ended.message());
    if (!wait(backoff_)) return {StatusCode::kAborted, "it stops"};
    backoff_ = std::min(backoff_ * 2, config_.backoff_max);
  }
}

Status PodWatcher::watch_once(bool& must_list) {
  ESP_ASSIGN_OR_RETURN(const std::string path, pods_path(config_));
  const std::string target = fmt::format(
      "{}&watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={}", path,
      query_escaped(pods_.version()),
      std::max<int64_t>(1, std::chrono::ceil<std::chrono::seconds>(config_.watch_timeout).count()));
  Status failed;
  const auto take = [&](std::string_view line) {
    const Result<PodTable::Event> event = pods_.take_event(line);
    if (!event) {
      failed = event.error();
    } else if (*event == PodTable::Event::kExpired) {
      must_list = true;
    } else {
      backoff_ = config_.backoff;
      if (*event == PodTable::Event::kChanged) report();
    }
    return failed.ok() && !must_list;
  };
  ESP_ASSIGN_OR_RETURN(const net::HttpResponse answer, client_->get_lines(target, take, headers()));
  must_list = must_list || answer.status == kGone;
  if (answer.status != 200) return refused(answer);
  return failed;
}

}  // namespace espalier::router
