#include "router/worker_sources.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "net/client.h"

namespace espalier::router {

namespace {

Result<std::string> read_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in)
    return fail(
        invalid_argument("--worker-file {}: it cannot be read: give a file of one worker "
                         "url a line",
                         path.string()));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string_view trimmed(std::string_view text) {
  text = text.substr(0, text.find('#'));
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

}  // namespace

Result<std::set<std::string>> parse_worker_file(std::string_view text) {
  std::set<std::string> out;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty()) continue;
    auto url = normal_worker_url(line);
    if (!url) return fail(url.error().with_context(fmt::format("line {}", number)));
    out.insert(std::move(*url));
  }
  return out;
}

Result<std::map<std::string, int>> parse_prefill_workers(const std::vector<std::string>& words) {
  std::map<std::string, int> ports;
  std::string last;
  for (const std::string& word : words) {
    if (const bool is_url = word.find_first_not_of("0123456789") != std::string::npos; is_url) {
      ESP_ASSIGN_OR_RETURN(last, normal_worker_url(word));
      ports[last] = kBootstrapPort;
      continue;
    }
    int port = 0;
    const auto [end, failed] = std::from_chars(word.data(), word.data() + word.size(), port);
    if (last.empty() || failed != std::errc() || port < 1 || port > 65535)
      return fail(invalid_argument(
          "prefill worker '{}': give http://HOST:PORT, and behind it perhaps its bootstrap port, "
          "from 1 to 65535",
          word));
    ports[std::exchange(last, {})] = port;
  }
  return ports;
}

WorkerSources::WorkerSources(SourcesConfig config, Dispatcher& dispatcher)
    : config_(std::move(config)), dispatcher_(dispatcher) {}

Result<std::unique_ptr<WorkerSources>> WorkerSources::start(SourcesConfig config,
                                                            Dispatcher& dispatcher) {
  std::unique_ptr<WorkerSources> out(new WorkerSources(std::move(config), dispatcher));
  ESP_ASSIGN_OR_RETURN(out->bootstrap_ports_, parse_prefill_workers(out->config_.prefill));
  if (out->config_.pairs && out->bootstrap_ports_.empty())
    return fail(invalid_argument(
        "--pd-disaggregation needs prefill workers: give --prefill http://HOST:PORT"));
  for (const auto& [url, port] : out->bootstrap_ports_) ESP_RETURN_IF_ERROR(out->add_first(url));
  for (const std::string& text : out->config_.urls) {
    ESP_ASSIGN_OR_RETURN(const std::string url, normal_worker_url(text));
    ESP_RETURN_IF_ERROR(out->add_first(url));
  }
  if (!out->config_.file.empty()) {
    ESP_ASSIGN_OR_RETURN(out->file_text_, read_file(out->config_.file));
    auto urls = parse_worker_file(out->file_text_);
    if (!urls)
      return fail(urls.error().with_context("--worker-file " + out->config_.file.string()));
    out->follow("file", *urls);
  }
  for (const std::string& name : out->config_.dns)
    if (auto url = normal_worker_url(name); !url)
      return fail(url.error().with_context("--worker-dns"));
    else if (url->starts_with("https:"))
      return fail(invalid_argument(
          "--worker-dns {}: workers of a name are known by their addresses, which certificates do "
          "not state: give HOST:PORT for plain HTTP, or each worker's https url by --worker or "
          "--worker-file",
          name));
  out->thread_ = std::thread([raw = out.get()] { raw->run(); });
  if (out->config_.kubernetes.enabled) {
    ESP_ASSIGN_OR_RETURN(out->pods_,
                         PodWatcher::start(out->config_.kubernetes, [raw = out.get()](auto urls) {
                           raw->post([raw, urls = std::move(urls)] { raw->follow("pods", urls); });
                         }));
  }
  return out;
}

WorkerSources::~WorkerSources() {
  pods_.reset();
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WorkerSources::run() {
  set_thread_name("esp-workers");
  auto next_dns = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::deque<std::function<void()>> tasks;
    tasks.swap(tasks_);
    lock.unlock();
    for (const auto& task : tasks) task();
    add_pending();
    poll_file();
    if (!config_.dns.empty() && std::chrono::steady_clock::now() >= next_dns) {
      poll_dns();
      next_dns = std::chrono::steady_clock::now() + config_.dns_poll;
    }
    lock.lock();
    changed_.wait_for(lock, config_.poll, [&] { return stopping_ || !tasks_.empty(); });
  }
}

void WorkerSources::poll_file() {
  if (config_.file.empty()) return;
  const Result<std::string> text = read_file(config_.file);
  if (!text) return;  // it is being replaced; the workers stay
  if (*text == file_text_) return;
  // Who writes the file may not be done: it counts once it has been the same twice.
  if (std::exchange(file_seen_, *text) != *text) return;
  file_text_ = *text;
  const auto urls = parse_worker_file(*text);
  if (!urls)
    return log_error("--worker-file {} was not taken: {}", config_.file.string(),
                     urls.error().message());
  follow("file", *urls);
}

void WorkerSources::poll_dns() {
  for (const std::string& name : config_.dns) {
    const Result<net::Url> url = net::Url::parse(name);
    const auto addresses = net::resolve_host(url->host);
    if (!addresses) {
      log_warning("--worker-dns {}: {}; its workers stay", name, addresses.error().message());
      continue;
    }
    std::set<std::string> urls;
    for (const std::string& address : *addresses) urls.insert(worker_url(address, url->port));
    follow("dns " + name, urls);
  }
}

// Changes of a source alone count, so that what an administrator did to a worker stays.
void WorkerSources::follow(const std::string& source, const std::set<std::string>& urls) {
  std::set<std::string>& before = followed_[source];
  for (const std::string& url : urls)
    if (!before.contains(url)) {
      const Status added = add_now(url);
      if (added.code() == StatusCode::kUnavailable) pending_.insert(url);
    }
  for (const std::string& url : before)
    if (!urls.contains(url)) {
      pending_.erase(url);
      (void)dispatcher_.drain_worker(url, true);
    }
  before = urls;
}

Status WorkerSources::add_first(const std::string& url) {
  const Status added = add_now(url);
  if (added.code() != StatusCode::kUnavailable) return added;
  log_warning("worker is looked up again: {}", added.message());
  pending_.insert(url);
  return {};
}

Status WorkerSources::add_now(const std::string& url) {
  const Result<net::Url> parsed = net::Url::parse(url);
  if (!parsed) return parsed.error();
  const auto addresses = net::resolve_host(parsed->host);
  if (!addresses) return addresses.error();
  // The certificate is to name the host as the url does.
  const auto prefill = bootstrap_ports_.find(url);
  const auto added = dispatcher_.add_worker(
      url, {addresses->front(), parsed->port, parsed->is_https ? parsed->host : ""},
      prefill == bootstrap_ports_.end() ? 0 : prefill->second);
  return added ? Status() : added.error();
}

void WorkerSources::add_pending() {
  std::erase_if(pending_, [&](const std::string& url) {
    return add_now(url).code() != StatusCode::kUnavailable;
  });
}

void WorkerSources::add(std::string url, std::function<void(const Status&)> done) {
  post([this, url = std::move(url), done = std::move(done)] { done(add_now(url)); });
}

void WorkerSources::post(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

Status WorkerSources::remove(const std::string& url) { return dispatcher_.drain_worker(url, true); }

}  // namespace espalier::router
