// The ranks of one node among those of all nodes: threads that read each other's memory, with
// sockets to the other nodes' ranks behind them.
//
// A follower sends what its ranks have, and the leader adds the ranks' numbers one after the other
// and sends the sums back, so all ranks get the bits that one process with as many ranks gets. Long
// sums go in blocks, so that memory has a bound.
//
// As RankGroup. When a connection breaks the group's failure is set, and from then on calls return
// at once without a result. The step then ends, and its caller reads the group's failure.
// barrier() is for ranks that share memory, so it waits for those of this node.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "nodes/node_group.h"
#include "tensor/rank_group.h"
#include "tensor/thread_collective.h"

namespace espalier::nodes {

class NodeCollectives final : public RankGroup {
 public:
  // Ranks of this node; every node has as many. nodes: borrowed.
  NodeCollectives(NodeGroup& nodes, int32_t ranks_here);
  ~NodeCollectives() override;

  int32_t size() const override { return local_.size(); }
  Collective& rank(int32_t i) override;

 private:
  class Rank;
  // What the ranks of this node have published, with those of the others. By one thread.
  void reduce(int64_t count);
  void gather();
  // Of a leader: adds the parts of node i + 1 behind `sums`, or places them in rows.
  Status reduce_block(int64_t begin, int64_t count);
  Status follow_block(int64_t begin, int64_t count);
  Status gather_rows(int64_t first, int64_t rows);
  Status follow_rows(int64_t first, int64_t rows);
  void pack_rows(int64_t first, int64_t rows, float* to) const;
  void place_rows(int64_t first, int64_t rows, const float* from) const;
  Status send_to_all(MessageType type, const std::vector<float>& values);

  NodeGroup& nodes_;
  ThreadCollectives local_;  // for its barrier
  const int32_t num_ranks_;  // of all nodes
  std::vector<float*> data_;
  std::vector<Collective::Gather> gathers_;
  std::vector<float> values_, received_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace espalier::nodes
