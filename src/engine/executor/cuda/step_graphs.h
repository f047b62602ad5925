// Graphs of the parts of a step that come again, by what a graph depends on.
//
// A part whose key is new runs kernel by kernel, which also loads its kernels, and is recorded when
// the whole step has been enqueued: the device is then busy, so the 2 to 5 ms of the host that a
// recording takes delay nothing, also where the step is waited for before the next one is built.
// From then on it is replayed.
//
// Not thread-safe. Owns the graphs; what a part reads and writes stays where it is.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "seams/step_result.h"
#include "tensor/cuda/stream.h"

namespace espalier {

template <typename Key>
class StepGraphs {
 public:
  // Enqueues a part of a step: its graph, or what `enqueue` does, which is then kept until record()
  // and REQUIRES nothing that changes until then. `use` becomes what happened, if it happened to
  // no part of the step before.
  template <typename Enqueue>
  Status run(const Key& key, const cuda::Stream& stream, const Enqueue& enqueue, GraphUse& use) {
    Known& known = known_[key];
    if (known.graph) {
      if (use == GraphUse::kNone) use = GraphUse::kReplayed;
      ++num_replays_;
      return known.graph.launch(stream);
    }
    use = GraphUse::kRecorded;
    if (!std::exchange(known.is_awaited, true)) awaited_.emplace_back(&known, enqueue);
    return enqueue();
  }

  // Records the parts that run() had no graph for. Nothing runs, so it goes behind the step.
  Status record(const cuda::Stream& stream) {
    for (auto& [known, enqueue] : awaited_) {
      ESP_ASSIGN_OR_RETURN(known->graph, cuda::Graph::capture(stream, enqueue));
      ++num_captures_;
    }
    awaited_.clear();
    return Status();
  }

  bool contains(const Key& key) const { return known_.contains(key); }
  size_t size() const { return known_.size(); }
  int64_t num_captures() const { return num_captures_; }
  int64_t num_replays() const { return num_replays_; }

 private:
  struct Known {
    cuda::Graph graph;
    bool is_awaited = false;  // record() makes the graph
  };
  std::map<Key, Known> known_;  // does not move its values
  std::vector<std::pair<Known*, std::function<Status()>>> awaited_;
  int64_t num_captures_ = 0, num_replays_ = 0;
};

}  // namespace espalier
