// Nodes as threads of a test, on a port of 127.0.0.1.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "net/tcp_listener.h"
#include "nodes/node_group.h"

namespace espalier::nodes {

inline int free_port() { return net::TcpListener::listen("127.0.0.1", 0).value()->port(); }

inline NodeGroupConfig node_config(int32_t node, int32_t num_nodes, int port) {
  return {.node = node,
          .num_nodes = num_nodes,
          .port = port,
          .token = "secret",
          .agreement = {{"the model", "m"}},
          .join_timeout = std::chrono::seconds(60),
          .silence_max = std::chrono::seconds(30)};
}

// All nodes' groups, joined at the same time.
inline std::vector<Result<std::unique_ptr<NodeGroup>>> join_all(
    const std::vector<NodeGroupConfig>& configs) {
  std::vector<Result<std::unique_ptr<NodeGroup>>> groups(configs.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < configs.size(); ++i)
    threads.emplace_back([&, i] { groups[i] = NodeGroup::join(configs[i]); });
  for (std::thread& thread : threads) thread.join();
  return groups;
}

inline std::vector<std::unique_ptr<NodeGroup>> join_nodes(int32_t num_nodes) {
  const int port = free_port();
  std::vector<NodeGroupConfig> configs;
  for (int32_t node = 0; node < num_nodes; ++node)
    configs.push_back(node_config(node, num_nodes, port));
  std::vector<std::unique_ptr<NodeGroup>> out;
  for (auto& group : join_all(configs)) out.push_back(std::move(group).value());
  return out;
}

}  // namespace espalier::nodes
