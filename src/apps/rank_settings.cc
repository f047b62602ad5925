#include "apps/rank_settings.h"

#include <limits>

namespace espalier::apps {

void add_expert_rows(SettingTable& table, ComputeSettings& compute) {
  table
      .integer(
          "ep-size", compute.ep_size, 1, 1024,
          "groups of the ranks of --tp-size: each group has whole experts of its own, which its "
          "ranks divide; divides --tp-size")
      .aliases = {"expert-parallel-size", "ep"};
  table.integer("ep-num-redundant-experts", compute.ep_num_redundant_experts, 0, 1024,
                "replicas of experts in each layer: a busy expert lies in several groups of "
                "--ep-size, and tokens take turns among them");
  table.text("init-expert-location", compute.init_expert_location, "trivial|FILE",
             "where experts lie at the start: evenly, or as a JSON file has it, which holds "
             "physical_to_logical_map, or logical_count as /dump_expert_distribution_record "
             "answers it");
  table.toggle("enable-eplb", compute.enable_eplb,
               "let experts change places between the groups of --ep-size while the server runs, "
               "so that all get about as many tokens; counts them, as "
               "--expert-distribution-recorder-mode stat does");
  table.integer("eplb-rebalance-num-iterations", compute.eplb_rebalance_num_iterations, 1,
                std::numeric_limits<int32_t>::max(),
                "steps whose tokens decide where experts move");
  table.integer("eplb-rebalance-layers-per-chunk", compute.eplb_rebalance_layers_per_chunk, 0,
                std::numeric_limits<int32_t>::max(),
                "layers whose experts move between two steps; 0 is all of them");
  table.number("eplb-min-rebalancing-utilization-threshold",
               compute.eplb_min_rebalancing_utilization_threshold, 0, 1,
               "move experts only where the mean of the groups' tokens by those of the busiest "
               "group is at most this");
  table.choice(
      "expert-distribution-recorder-mode", compute.expert_distribution_recorder_mode,
      {"none", "stat"},
      "count the tokens of each expert, for /dump_expert_distribution_record and /metrics");
}

void add_node_rows(SettingTable& table, NodeSettings& nodes) {
  table.group("Nodes");
  table.integer("nnodes", nodes.nnodes, 1, 1024,
                "processes, each on a computer of its own, that compute one model together; they "
                "divide the ranks of --tp-size");
  table.integer("node-rank", nodes.node_rank, 0, 1023,
                "which of them this is; 0 is the leader, which alone serves requests");
  table
      .text("dist-init-addr", nodes.dist_init_addr, "HOST:PORT",
            "where the leader listens for the other nodes; the same on all nodes")
      .default_text = "none";
  table
      .text("dist-token", nodes.dist_token, "TOKEN",
            "that all nodes share; needed where the address of --dist-init-addr is "
            "not this computer alone")
      .default_text = "none";
  table.number("dist-timeout", nodes.dist_timeout, 0.1, 86400,
               "seconds until all nodes have joined");
  table.number("dist-heartbeat-timeout", nodes.dist_heartbeat_timeout, 0.1, 600,
               "seconds without a sign of life after which a node is gone: requests end with an "
               "error, and all nodes end");
}

}  // namespace espalier::apps
