// How several processes, each on a node, compute one model together. Names are those of the flags.
#pragma once

#include <cstdint>
#include <string>

namespace espalier {

struct NodeSettings {
  int32_t nnodes = 1;
  int32_t node_rank = 0;              // 0 is the leader: it serves requests, schedules and samples
  std::string dist_init_addr;         // HOST:PORT, where the leader listens for the others
  std::string dist_token;             // that all nodes share; empty: none, for one computer
  double dist_timeout = 300;          // seconds until all nodes have joined
  double dist_heartbeat_timeout = 5;  // seconds without a sign of life after which a node is gone
  std::string version;                // of the program, which all nodes must have alike

  bool single() const { return nnodes == 1; }
};

}  // namespace espalier
