#include "server/kv_event_publisher.h"

#include <array>
#include <charconv>
#include <chrono>
#include <utility>

#include "base/big_endian.h"
#include "base/log.h"
#include "base/msgpack.h"
#include "base/thread.h"
#include "engine/engine.h"

namespace espalier::server {

namespace {

constexpr Duration kPublishInterval = std::chrono::milliseconds(10);
// The pool that forwards read from, as against copies in the host's memory; so on a CPU, too.
std::string_view medium_of(const CacheEvent& event) {
  return event.medium == CacheEvent::Medium::kHost ? "CPU" : "GPU";
}

void write_hashes(MsgpackWriter& w, const std::vector<PageName>& pages) {
  w.array(pages.size());
  for (const PageName& page : pages) w.unsigned_integer(page.prefix64());
}

void write_stored(MsgpackWriter& w, const CacheEvent& event, int32_t page_size) {
  // The key that divides prefixes stands at the first block, on which all others are chained.
  const bool has_space = event.parent.empty() && !event.cache_namespace.empty();
  w.array(has_space ? 9 : 8);
  w.text("BlockStored");
  write_hashes(w, event.pages);
  event.parent.empty() ? w.nil() : w.unsigned_integer(event.parent.prefix64());
  w.array(event.tokens.size());
  for (const TokenId token : event.tokens) w.integer(token);
  w.integer(page_size);
  w.nil();  // an adapter's number
  w.text(medium_of(event));
  event.adapter.empty() ? w.nil() : w.text(event.adapter);
  if (!has_space) return;
  w.array(event.pages.size());
  w.array(1);
  w.text(event.cache_namespace);
  for (size_t i = 1; i < event.pages.size(); ++i) w.nil();
}

void write_kv_event(MsgpackWriter& w, const CacheEvent& event, int32_t page_size) {
  switch (event.type) {
    case CacheEvent::Type::kStored:
      return write_stored(w, event, page_size);
    case CacheEvent::Type::kRemoved:
      w.array(3);
      w.text("BlockRemoved");
      write_hashes(w, event.pages);
      return w.text(medium_of(event));
    case CacheEvent::Type::kCleared:
      w.array(1);
      return w.text("AllBlocksCleared");
  }
}

std::string big_endian(uint64_t number) {
  std::string out;
  append_big_endian(out, number);
  return out;
}

// As vLLM decides: an address with a wildcard, or a file's, is listened at; another is a
// subscriber's that listens.
Status open_endpoint(net::ZmqSocket& socket, std::string& endpoint) {
  const bool listens = endpoint.find('*') != std::string::npos ||
                       endpoint.find("::") != std::string::npos || endpoint.starts_with("ipc://");
  if (!listens) return socket.connect(endpoint);
  ESP_RETURN_IF_ERROR(socket.bind(endpoint));
  // Only a chosen port is worth knowing: "*" says more than the "0.0.0.0" that stands for it.
  if (endpoint.ends_with(":*") || endpoint.ends_with(":0")) endpoint = socket.bound_endpoint();
  return {};
}

}  // namespace

std::string encode_kv_events(std::span<const CacheEvent> events, int32_t page_size,
                             double unix_time, int32_t dp_rank) {
  std::string out;
  MsgpackWriter w(out);
  w.array(3);
  w.number(unix_time);
  w.array(events.size());
  for (const CacheEvent& event : events) write_kv_event(w, event, page_size);
  w.integer(dp_rank);
  return out;
}

KvEventsConfig kv_events_of_rank(const KvEventsConfig& config, int32_t dp_rank) {
  KvEventsConfig out = config;
  for (std::string* const address : {&out.endpoint, &out.replay_endpoint}) {
    if (address->empty() || dp_rank == 0) continue;
    const size_t colon = address->rfind(':');
    int32_t port = 0;
    const char* const end = address->data() + address->size();
    const auto [at, failed] = std::from_chars(address->data() + colon + 1, end, port);
    if (!address->starts_with("tcp://")) {
      *address += fmt::format("_dp{}", dp_rank);
    } else if (failed == std::errc() && at == end && port > 0) {
      *address = fmt::format("{}:{}", address->substr(0, colon), port + dp_rank);
    }
  }
  return out;
}

KvEventPublisher::KvEventPublisher(KvEventsConfig config, const Engine& engine, int32_t dp_rank,
                                   net::ZmqSocket events)
    : config_(std::move(config)), engine_(engine), dp_rank_(dp_rank), events_(std::move(events)) {}

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::start(const KvEventsConfig& stated,
                                                                  const Engine& engine,
                                                                  int32_t dp_rank) {
  const KvEventsConfig config = kv_events_of_rank(stated, dp_rank);
  ESP_ASSIGN_OR_RETURN(net::ZmqSocket events, net::ZmqSocket::open(net::ZmqKind::kPublish));
  std::unique_ptr<KvEventPublisher> out(
      new KvEventPublisher(config, engine, dp_rank, std::move(events)));
  ESP_RETURN_IF_ERROR(open_endpoint(out->events_, out->config_.endpoint));
  if (!config.replay_endpoint.empty()) {
    ESP_ASSIGN_OR_RETURN(out->replay_, net::ZmqSocket::open(net::ZmqKind::kRouter));
    ESP_RETURN_IF_ERROR(out->replay_->bind(config.replay_endpoint));
    if (config.replay_endpoint.ends_with(":*") || config.replay_endpoint.ends_with(":0"))
      out->config_.replay_endpoint = out->replay_->bound_endpoint();
  }
  out->thread_ = std::thread([raw = out.get()] { raw->run(); });
  return out;
}

KvEventPublisher::~KvEventPublisher() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void KvEventPublisher::run() {
  set_thread_name("esp-kv-events");
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    while (publish()) {
    }
    if (replay_) answer_replays();
    lock.lock();
    stop_.wait_for(lock, kPublishInterval, [&] { return stopping_; });
  }
}

bool KvEventPublisher::publish() {
  const auto read = engine_.read_cache(next_event_, kEventsPerBatch);
  if (!read || read->events.empty()) return false;
  next_event_ = read->next;
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string batch =
      encode_kv_events(read->events, engine_.config().cache.page_size, now, dp_rank_);
  const std::string number = big_endian(next_number_);
  const std::array<std::string_view, 3> frames = {config_.topic, number, batch};
  // Without a subscriber a message is dropped; then, or where it fails, a replay has it.
  if (const Status sent = events_.send(frames); !sent.ok())
    log_warning("events of the cache: batch {}: {}", next_number_, sent.message());
  keep(next_number_++, std::move(batch));
  ++num_batches_;
  return true;
}

void KvEventPublisher::keep(uint64_t number, std::string batch) {
  if (!replay_) return;
  kept_bytes_ += batch.size();
  kept_.push_back({number, std::move(batch)});
  const auto kept_max = static_cast<size_t>(engine_.config().cache.num_cache_events);
  while (kept_.size() > kept_max || kept_bytes_ > kKeptBytesMax) {
    kept_bytes_ -= kept_.front().batch.size();
    kept_.pop_front();
  }
}

void KvEventPublisher::answer_replays() {
  for (std::vector<std::string> asked = replay_->receive(); !asked.empty();
       asked = replay_->receive()) {
    if (asked.size() != 3 || asked[2].size() != sizeof(uint64_t)) continue;  // nothing to answer
    const uint64_t from = read_big_endian(asked[2]);
    for (const Kept& kept : kept_) {
      if (kept.number < from) continue;
      const std::string number = big_endian(kept.number);
      const std::array<std::string_view, 4> frames = {asked[0], "", number, kept.batch};
      if (!replay_->send(frames).ok()) break;  // the asker has left
    }
    const std::string end = big_endian(~uint64_t{0});
    const std::array<std::string_view, 4> frames = {asked[0], "", end, ""};
    if (const Status sent = replay_->send(frames); !sent.ok())
      log_debug("events of the cache: a replay was not sent: {}", sent.message());
  }
}

}  // namespace espalier::server
