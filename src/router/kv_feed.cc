#include "router/kv_feed.h"

#include <array>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/big_endian.h"
#include "base/log.h"
#include "base/thread.h"
#include "net/client.h"
#include "net/zmq_socket.h"
#include "router/kv_event_order.h"
#include "router/kv_events.h"

namespace espalier::router {

namespace json = boost::json;

namespace {

constexpr Duration kFollowInterval = std::chrono::milliseconds(200);
constexpr Duration kWait = std::chrono::milliseconds(50);
constexpr Duration kInfoTimeout = std::chrono::seconds(1);
constexpr int kMessagesPerTurn = 256;  // of one worker, before the next one's are read
constexpr int kTurnsMax = 64;          // before workers are looked for again

TimePoint steady_now() { return std::chrono::steady_clock::now(); }

std::string text_member(const json::object& object, std::string_view name) {
  const json::value* const member = object.if_contains(name);
  return member != nullptr && member->is_string() ? std::string(member->get_string()) : "";
}

std::string zmq_host(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

// An address as its own process states it, as others reach it: a wildcard is any of its host's.
std::string reachable(const std::string& endpoint, const std::string& host) {
  constexpr std::string_view kTcp = "tcp://";
  if (!endpoint.starts_with(kTcp)) return endpoint;
  const size_t colon = endpoint.rfind(':');
  const std::string own = endpoint.substr(kTcp.size(), colon - kTcp.size());
  if (own == "*" || own == "0.0.0.0" || own == "[::]" || own == "::")
    return fmt::format("{}{}{}", kTcp, zmq_host(host), endpoint.substr(colon));
  return endpoint;
}

std::optional<uint64_t> read_number(std::string_view bytes) {
  if (bytes.size() != sizeof(uint64_t)) return std::nullopt;
  return read_big_endian(bytes);
}

}  // namespace

KvEndpoints kv_endpoints(std::string_view body, const std::string& host,
                         const KvFeedConfig& config) {
  boost::system::error_code failed;
  const json::value info = json::parse({body.data(), body.size()}, failed);
  if (!failed && info.is_object() && info.as_object().contains("kv_events_config")) {
    const std::string setting = text_member(info.as_object(), "kv_events_config");
    const json::value events = json::parse(setting, failed);
    if (failed || !events.is_object() || text_member(events.as_object(), "publisher") != "zmq")
      return {};
    std::string endpoint = text_member(events.as_object(), "endpoint");
    if (endpoint.empty()) endpoint = "tcp://*:5557";  // the publishers' default
    return {reachable(endpoint, host),
            reachable(text_member(events.as_object(), "replay_endpoint"), host)};
  }
  if (config.port == 0) return {};
  const auto at = [&](int port) {
    return port == 0 ? "" : fmt::format("tcp://{}:{}", zmq_host(host), port);
  };
  return {at(config.port), at(config.replay_port)};
}

// One worker's events. Of the feed's thread.
class KvFeed::Source {
 public:
  Source(KvFeed& feed, const WorkerInfo& worker)
      : feed_(feed),
        slot_(worker.slot),
        generation_(worker.generation),
        url_(worker.url),
        order_({.apply = [this](std::string_view batch) { apply(batch); },
                .clear = [this] { clear(); },
                .replay = [this](uint64_t from) { ask(from); }}) {}

  Status open(const KvEndpoints& endpoints) {
    ESP_ASSIGN_OR_RETURN(events_, net::ZmqSocket::open(net::ZmqKind::kSubscribe));
    ESP_RETURN_IF_ERROR(events_->connect(endpoints.events));
    if (!endpoints.replay.empty()) {
      ESP_ASSIGN_OR_RETURN(replay_, net::ZmqSocket::open(net::ZmqKind::kAsk));
      ESP_RETURN_IF_ERROR(replay_->connect(endpoints.replay));
    }
    log_info("events of the cache are read from {} url={}", endpoints.events, url_);
    order_.begin(steady_now());
    return {};
  }
  // Of a worker that publishes nothing: there is nothing to read.
  bool is_open() const { return events_.has_value(); }

  void add_sockets(std::vector<const net::ZmqSocket*>& out) const {
    if (events_) out.push_back(&*events_);
    if (replay_) out.push_back(&*replay_);
  }
  // Whether there may be more.
  bool read() {
    bool more = false;
    if (replay_) more = read_replay();
    if (events_) more = read_live() || more;
    order_.tick(steady_now());
    return more;
  }

 private:
  bool read_live() {
    for (int i = 0; i < kMessagesPerTurn; ++i) {
      std::vector<std::string> frames = events_->receive();
      if (frames.empty()) return false;
      const auto number = frames.size() == 3 ? read_number(frames[1]) : std::nullopt;
      if (!number) {
        ++feed_.num_malformed_;
        continue;
      }
      confirm();
      const int64_t lost = order_.num_lost();
      order_.on_live(*number, std::move(frames[2]), steady_now());
      feed_.num_lost_ += order_.num_lost() - lost;
    }
    return true;
  }
  bool read_replay() {
    for (int i = 0; i < kMessagesPerTurn; ++i) {
      const std::vector<std::string> frames = replay_->receive();
      if (frames.empty()) return false;
      const auto number = frames.size() == 3 ? read_number(frames[1]) : std::nullopt;
      if (!number) {
        ++feed_.num_malformed_;
        continue;
      }
      confirm();
      if (*number == ~uint64_t{0}) {
        order_.on_replay_end();
      } else {
        order_.on_replayed(*number, frames[2]);
      }
    }
    return true;
  }
  void ask(uint64_t from) {
    std::string number;
    append_big_endian(number, from);
    const std::array<std::string_view, 2> frames = {"", number};
    // Where there is nobody to ask, the wait for an answer ends after a while.
    if (!replay_ || !replay_->send(frames).ok())
      log_debug("events of the cache: no replay of {}", url_);
  }
  void apply(std::string_view batch) {
    const auto events = decode_kv_events(batch);
    if (!events) {
      ++feed_.num_malformed_;
      return clear();
    }
    ++feed_.num_batches_;
    feed_.dispatcher_.apply_events(slot_, generation_, *events);
  }
  // The first message shows that the worker publishes: from then on its cache is what it says.
  void confirm() {
    if (!std::exchange(confirmed_, true)) clear();
  }
  void clear() {
    const std::array<KvEvent, 1> cleared = {};
    feed_.dispatcher_.apply_events(slot_, generation_, cleared);
  }

  KvFeed& feed_;
  const WorkerSlot slot_;
  const uint64_t generation_;
  const std::string url_;
  std::optional<net::ZmqSocket> events_, replay_;
  KvEventOrder order_;
  bool confirmed_ = false;
};

KvFeed::KvFeed(KvFeedConfig config, Dispatcher& dispatcher)
    : config_(std::move(config)), dispatcher_(dispatcher) {}

Result<std::unique_ptr<KvFeed>> KvFeed::start(KvFeedConfig config, Dispatcher& dispatcher) {
  // A socket that is not used: whether there are any is known before a worker is.
  ESP_ASSIGN_OR_RETURN([[maybe_unused]] const net::ZmqSocket probe,
                       net::ZmqSocket::open(net::ZmqKind::kSubscribe));
  std::unique_ptr<KvFeed> out(new KvFeed(std::move(config), dispatcher));
  out->thread_ = std::thread([raw = out.get()] { raw->run(); });
  return out;
}

KvFeed::~KvFeed() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
}

KvFeedStats KvFeed::stats() const {
  return {num_workers_, num_batches_, num_lost_, num_malformed_};
}

void KvFeed::run() {
  set_thread_name("esp-kv-feed");
  TimePoint follow_at{};
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    if (steady_now() >= follow_at) {
      follow_workers();
      follow_at = steady_now() + kFollowInterval;
    }
    read_sources(kWait);
    lock.lock();
  }
  lock.unlock();
  sources_.clear();
}

void KvFeed::follow_workers() {
  std::map<uint64_t, std::unique_ptr<Source>> followed;
  int64_t num_open = 0;
  for (const WorkerInfo& worker : dispatcher_.workers()) {
    if (worker.state != WorkerState::kHealthy && worker.state != WorkerState::kDraining) continue;
    auto& source = followed[worker.generation];
    if (const auto known = sources_.find(worker.generation); known != sources_.end()) {
      source = std::move(known->second);
    } else {
      source = std::make_unique<Source>(*this, worker);
      const KvEndpoints endpoints = discover(worker);
      if (endpoints.events.empty()) {
        log_info("no events of the cache are published by url={}", worker.url);
      } else if (const Status opened = source->open(endpoints); !opened.ok()) {
        log_warning("events of the cache of url={}: {}", worker.url, opened.message());
      }
    }
    num_open += source->is_open() ? 1 : 0;
  }
  sources_ = std::move(followed);
  num_workers_ = num_open;
}

KvEndpoints KvFeed::discover(const WorkerInfo& worker) const {
  net::HttpClientConfig options;
  options.total_timeout = kInfoTimeout;
  options.ca_file = config_.ca_file;
  if (!config_.api_key.empty())
    options.headers.emplace_back("Authorization", "Bearer " + config_.api_key);
  auto client = net::HttpClient::create(worker.url, options);
  std::string body;
  if (client)
    if (const auto answer = client->get("/server_info"); answer && answer->status == 200)
      body = answer->body;
  return kv_endpoints(body, worker.endpoint.address, config_);
}

void KvFeed::read_sources(Duration wait) {
  std::vector<const net::ZmqSocket*> sockets;
  for (const auto& [generation, source] : sources_) source->add_sockets(sockets);
  if (sockets.empty()) {
    std::unique_lock lock(mutex_);
    stop_.wait_for(lock, wait, [&] { return stopping_; });
    return;
  }
  net::wait_readable(sockets, wait);
  bool more = true;
  for (int turn = 0; turn < kTurnsMax && more; ++turn) {
    more = false;
    for (const auto& [generation, source] : sources_) more = source->read() || more;
    std::lock_guard lock(mutex_);
    if (stopping_) return;
  }
}

}  // namespace espalier::router
