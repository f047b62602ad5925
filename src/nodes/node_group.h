// The nodes that compute one model together, seen from one of them: connections, heartbeats, and
// the first failure, which ends all waiting on every node.
//
// The leader (node 0) has a connection to each follower, a follower one to the leader. Each pair
// has a second connection on which both show twice in a silence_max that they live, on a thread of
// its own; a node that is killed closes it, one that is stopped or cut off falls silent.
//
// Thread-safe but for link(), whose links are used by one thread at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/tcp_listener.h"
#include "nodes/greeting.h"
#include "nodes/link.h"

namespace espalier::nodes {

struct NodeGroupConfig {
  int32_t node = 0;
  int32_t num_nodes = 1;
  std::string host = "127.0.0.1";  // of the leader
  int port = 0;
  std::string token;  // shared by all nodes
  Agreement agreement;
  Duration join_timeout = std::chrono::seconds(300);  // until all nodes are there
  Duration silence_max = std::chrono::seconds(5);     // of a node that lives
  // Called once, with the first failure after all nodes have joined, on any thread. May be null.
  std::function<void(const Status&)> on_failure;
};

class NodeGroup {
 public:
  // Waits until all nodes are there (the leader), or until the leader accepts this one. Fails at
  // join_timeout, for a node that differs from the leader, and where the address cannot be had.
  static Result<std::unique_ptr<NodeGroup>> join(const NodeGroupConfig& config);
  ~NodeGroup();  // leave()

  int32_t node() const { return config_.node; }
  int32_t num_nodes() const { return config_.num_nodes; }
  bool is_leader() const { return node() == 0; }
  int32_t num_links() const { return static_cast<int32_t>(peers_.size()); }
  // i-th of a leader: to node i + 1; of a follower the only one, to the leader.
  Link& link(int32_t i) { return *peers_[static_cast<size_t>(i)]->steps; }

  bool ok() const { return !has_failed_.load(std::memory_order_acquire); }
  Status status() const;  // the first failure
  // Records it unless there is one, sends it to the other nodes, and ends all waiting in links.
  void set_failure(const Status& why);
  // The same where a link broke: a reason that the heartbeat's connection learns meanwhile is the
  // better one. Waits up to two seconds for it. False where the leader has said goodbye.
  bool set_broken(const Status& why);
  // Whether the leader has said goodbye.
  bool has_ended() const { return has_ended_.load(); }
  // Says goodbye and ends all waiting. Idempotent.
  void leave();

 private:
  struct Peer {
    int32_t node = 0;
    std::unique_ptr<Link> steps, heartbeat;
    std::thread thread;
  };

  explicit NodeGroup(NodeGroupConfig config) : config_(std::move(config)) {}
  Status gather();
  Status accept_one(std::unique_ptr<net::ByteStream> stream, Status& last_refusal);
  Status find_leader();
  Result<std::unique_ptr<Link>> connect(Channel channel, TimePoint deadline) const;
  void begin_heartbeats();
  void watch(Peer& peer);
  // One message of a peer's; whether it was the last.
  bool take(const Peer& peer, const Link::Message& message);
  void interrupt_links();

  const NodeGroupConfig config_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::atomic<bool> has_failed_{false}, has_ended_{false}, is_leaving_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status failure_;
};

}  // namespace espalier::nodes
