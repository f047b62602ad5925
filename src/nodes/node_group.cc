#include "nodes/node_group.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "nodes/handshake.h"

namespace espalier::nodes {
namespace {

constexpr size_t kReasonMax = 4096;
constexpr Duration kRetryInterval = std::chrono::milliseconds(100);
constexpr Duration kVerdictWait = std::chrono::seconds(2);
constexpr Duration kPollWait = std::chrono::milliseconds(200);
constexpr Duration kFarewellWait = std::chrono::milliseconds(500);  // for a peer to read it

}  // namespace

Result<std::unique_ptr<NodeGroup>> NodeGroup::join(const NodeGroupConfig& config) {
  std::unique_ptr<NodeGroup> group(new NodeGroup(config));
  ESP_RETURN_IF_ERROR(config.node == 0 ? group->gather() : group->find_leader());
  group->begin_heartbeats();
  return group;
}

NodeGroup::~NodeGroup() { leave(); }

Status NodeGroup::gather() {
  auto listener = net::TcpListener::listen(config_.host, config_.port);
  if (!listener)
    return listener.error().with_context("the leader cannot listen (--dist-init-addr)");
  log_info("waiting for nodes nnodes={} address={}:{}", num_nodes(), config_.host,
           (*listener)->port());
  for (int32_t node = 1; node < num_nodes(); ++node) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->node = node;
  }
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + config_.join_timeout;
  Status last_refusal;
  const auto is_missing = [](const auto& peer) { return !peer->steps || !peer->heartbeat; };
  while (true) {
    const auto missing = std::ranges::find_if(peers_, is_missing);
    if (missing == peers_.end()) return {};
    const TimePoint now = clock.now();
    if (now >= deadline)
      return error(StatusCode::kDeadlineExceeded,
                   "node {} has not joined {}:{} within {:.0f} s (--dist-timeout){}{}",
                   (*missing)->node, config_.host, config_.port, to_seconds(config_.join_timeout),
                   last_refusal.ok() ? ": is it started with the same --dist-init-addr?"
                                     : "; the last caller was refused: ",
                   last_refusal.message());
    if (auto stream = (*listener)->accept(std::min<Duration>(deadline - now, kVerdictWait)))
      ESP_RETURN_IF_ERROR(accept_one(std::move(stream), last_refusal));
  }
}

// Fails where a node that knows the token is another one than the leader expects. Any other caller
// is refused, and the leader goes on waiting.
Status NodeGroup::accept_one(std::unique_ptr<net::ByteStream> stream, Status& last_refusal) {
  auto link = std::make_unique<Link>(std::move(stream));
  Greeted greeted = greet_follower(*link, config_);
  if (!greeted.status.ok()) {
    log_warning("a node was refused: {}", greeted.status.message());
    last_refusal = greeted.status;
    return greeted.ends_start ? greeted.status : Status();
  }
  Peer& peer = *peers_[static_cast<size_t>(greeted.hello.node - 1)];
  std::unique_ptr<Link>& place =
      greeted.hello.channel == Channel::kSteps ? peer.steps : peer.heartbeat;
  if (place != nullptr) {
    last_refusal = error(StatusCode::kFailedPrecondition,
                         "node {} is there already: give each node a --node-rank of its own",
                         greeted.hello.node);
    log_warning("a node was refused: {}", last_refusal.message());
    refuse(*link, last_refusal);
    return {};
  }
  ESP_RETURN_IF_ERROR(accept(*link, config_, greeted.hello));
  place = std::move(link);
  if (peer.steps && peer.heartbeat) log_info("node joined node_rank={}", peer.node);
  return {};
}

Status NodeGroup::find_leader() {
  log_info("joining node_rank={} leader={}:{}", node(), config_.host, config_.port);
  const TimePoint deadline = SteadyClock().now() + config_.join_timeout;
  auto peer = std::make_unique<Peer>();
  ESP_ASSIGN_OR_RETURN(peer->steps, connect(Channel::kSteps, deadline));
  ESP_ASSIGN_OR_RETURN(peer->heartbeat, connect(Channel::kHeartbeat, deadline));
  peers_.push_back(std::move(peer));
  log_info("joined node_rank={} nnodes={}", node(), num_nodes());
  return {};
}

// Again until the deadline where nothing listens yet: nodes start in any order.
Result<std::unique_ptr<Link>> NodeGroup::connect(Channel channel, TimePoint deadline) const {
  while (true) {
    auto stream = std::make_unique<net::ByteStream>();
    const Status status = stream->connect({.host = config_.host, .port = config_.port});
    if (status.ok()) {
      auto link = std::make_unique<Link>(std::move(stream));
      ESP_RETURN_IF_ERROR(greet_leader(*link, config_, channel, deadline));
      return link;
    }
    if (SteadyClock().now() >= deadline)
      return fail(error(StatusCode::kDeadlineExceeded,
                        "the leader does not answer within {:.0f} s (--dist-timeout): {}; start "
                        "node 0 with the same --dist-init-addr",
                        to_seconds(config_.join_timeout), status.message()));
    std::this_thread::sleep_for(kRetryInterval);
  }
}

void NodeGroup::begin_heartbeats() {
  for (const auto& peer : peers_) peer->thread = std::thread([this, &p = *peer] { watch(p); });
}

// Reads before it judges: a process that was stopped itself finds the beats of the others.
void NodeGroup::watch(Peer& peer) {
  set_thread_name("heartbeat");
  const SteadyClock clock;
  const Duration interval = config_.silence_max / 4;
  TimePoint last_message = clock.now(), sent{};
  while (!is_leaving_ && ok()) {
    if (clock.now() - sent >= interval) {
      sent = clock.now();
      // What cannot be sent is found by what is received.
      static_cast<void>(peer.heartbeat->send(MessageType::kBeat, {}, config_.silence_max));
    }
    const auto polled = peer.heartbeat->poll(kReasonMax, std::min(interval / 2, kPollWait));
    if (is_leaving_) break;
    if (!polled) {
      set_failure(error(StatusCode::kUnavailable, "node {} is gone: {}", peer.node,
                        polled.error().message()));
      return;
    }
    if (polled->has_message) {
      last_message = clock.now();
      if (take(peer, polled->message)) return;
    } else if (clock.now() - last_message > config_.silence_max) {
      set_failure(error(StatusCode::kUnavailable,
                        "node {} has shown no sign of life for {:.1f} s (--dist-heartbeat-timeout)",
                        peer.node, to_seconds(config_.silence_max)));
    }
  }
  if (ok()) return;
  const Status why = status();
  static_cast<void>(peer.heartbeat->send(
      MessageType::kFailed, std::string_view(why.message()).substr(0, kReasonMax), kFarewellWait));
}

bool NodeGroup::take(const Peer& peer, const Link::Message& message) {
  switch (message.type) {
    case MessageType::kBeat:
      return false;
    case MessageType::kGoodbye:
      if (is_leader()) {
        set_failure(error(StatusCode::kUnavailable, "node {} was stopped", peer.node));
      } else {
        const std::lock_guard lock(mutex_);
        has_ended_ = true;
        changed_.notify_all();
        interrupt_links();
      }
      return true;
    case MessageType::kFailed:
      set_failure(error(StatusCode::kUnavailable, "node {} ended: {}", peer.node, message.payload));
      return true;
    default:
      set_failure(error(StatusCode::kDataLoss, "node {} sent a message of type {} as a heartbeat",
                        peer.node, static_cast<int>(message.type)));
      return true;
  }
}

Status NodeGroup::status() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void NodeGroup::interrupt_links() {
  for (const auto& peer : peers_)
    if (peer->steps) peer->steps->interrupt();  // null: the node has not joined
}

void NodeGroup::set_failure(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!ok() || has_ended_ || is_leaving_) return;
    failure_ = why;
    has_failed_.store(true, std::memory_order_release);
    interrupt_links();
  }
  changed_.notify_all();
  log_error("nodes end error=\"{}\"", why.message());
  if (config_.on_failure) config_.on_failure(why);
}

bool NodeGroup::set_broken(const Status& why) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kVerdictWait, [&] { return !ok() || has_ended_ || is_leaving_; });
  }
  set_failure(why);
  return !has_ended_;
}

void NodeGroup::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (is_leaving_.exchange(true)) return;
    interrupt_links();
  }
  changed_.notify_all();
  for (const auto& peer : peers_) {
    if (peer->thread.joinable()) peer->thread.join();
    if (ok() && !has_ended_ && peer->heartbeat)
      static_cast<void>(peer->heartbeat->send(MessageType::kGoodbye, {}, kFarewellWait));
  }
}

}  // namespace espalier::nodes
