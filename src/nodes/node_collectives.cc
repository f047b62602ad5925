#include "nodes/node_collectives.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace espalier::nodes {
namespace {

constexpr int64_t kBlockFloats = int64_t{256} << 10;  // that a message has, as far as a row allows
// Of nodes that live and compute the same: how much later than another one may be.
constexpr Duration kPartWait = std::chrono::seconds(60);

std::span<char> bytes_of(std::vector<float>& values) {
  return {reinterpret_cast<char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace

class NodeCollectives::Rank final : public Collective {
 public:
  Rank(NodeCollectives& group, int32_t index, Ranks ranks)
      : group_(group), index_(static_cast<size_t>(index)), ranks_(ranks) {}

  Ranks ranks() const override { return ranks_; }
  void barrier() override { group_.local_.rank(static_cast<int32_t>(index_)).barrier(); }

  void all_reduce(std::span<float> data) override {
    group_.data_[index_] = data.data();
    barrier();
    if (index_ == 0) group_.reduce(static_cast<int64_t>(data.size()));
    barrier();
  }

  void all_gather(const Gather& gather) override {
    ESP_CHECK(gather.out_stride >= ranks_.num_ranks * gather.columns);
    group_.gathers_[index_] = gather;
    barrier();
    if (index_ == 0) group_.gather();
    barrier();
  }

 private:
  NodeCollectives& group_;
  const size_t index_;
  const Ranks ranks_;
};

NodeCollectives::NodeCollectives(NodeGroup& nodes, int32_t ranks_here)
    : nodes_(nodes),
      local_(std::vector<WorkPool*>(static_cast<size_t>(ranks_here))),
      num_ranks_(ranks_here * nodes.num_nodes()),
      data_(static_cast<size_t>(ranks_here)),
      gathers_(static_cast<size_t>(ranks_here)) {
  for (int32_t i = 0; i < ranks_here; ++i) {
    ranks_.push_back(
        std::make_unique<Rank>(*this, i, Ranks{nodes.node() * ranks_here + i, num_ranks_}));
  }
}

NodeCollectives::~NodeCollectives() = default;

Collective& NodeCollectives::rank(int32_t i) { return *ranks_[static_cast<size_t>(i)]; }

void NodeCollectives::reduce(int64_t count) {
  for (int64_t begin = 0; begin < count && nodes_.ok(); begin += kBlockFloats) {
    const int64_t block = std::min(kBlockFloats, count - begin);
    const Status status =
        nodes_.is_leader() ? reduce_block(begin, block) : follow_block(begin, block);
    if (!status.ok()) return static_cast<void>(nodes_.set_broken(status));
  }
}

Status NodeCollectives::send_to_all(MessageType type, const std::vector<float>& values) {
  for (int32_t i = 0; i < nodes_.num_links(); ++i) {
    const std::span<char> payload = nodes_.link(i).begin_message(values.size() * sizeof(float));
    std::memcpy(payload.data(), values.data(), payload.size());
    ESP_RETURN_IF_ERROR(nodes_.link(i).send_message(type, kPartWait));
  }
  return {};
}

Status NodeCollectives::reduce_block(int64_t begin, int64_t count) {
  values_.assign(data_[0] + begin, data_[0] + begin + count);
  const auto add = [&](const float* from) {
    for (int64_t i = 0; i < count; ++i) values_[static_cast<size_t>(i)] += from[i];
  };
  for (size_t rank = 1; rank < data_.size(); ++rank) add(data_[rank] + begin);
  received_.resize(static_cast<size_t>(count) * data_.size());
  for (int32_t i = 0; i < nodes_.num_links(); ++i) {
    ESP_RETURN_IF_ERROR(
        nodes_.link(i).receive_exactly(MessageType::kPart, bytes_of(received_), kPartWait));
    for (size_t rank = 0; rank < data_.size(); ++rank)
      add(received_.data() + static_cast<int64_t>(rank) * count);
  }
  ESP_RETURN_IF_ERROR(send_to_all(MessageType::kSum, values_));
  for (float* to : data_) std::copy_n(values_.data(), count, to + begin);
  return {};
}

Status NodeCollectives::follow_block(int64_t begin, int64_t count) {
  values_.clear();
  for (const float* from : data_) values_.insert(values_.end(), from + begin, from + begin + count);
  ESP_RETURN_IF_ERROR(send_to_all(MessageType::kPart, values_));
  values_.resize(static_cast<size_t>(count));
  ESP_RETURN_IF_ERROR(
      nodes_.link(0).receive_exactly(MessageType::kSum, bytes_of(values_), kPartWait));
  for (float* to : data_) std::copy_n(values_.data(), count, to + begin);
  return {};
}

void NodeCollectives::gather() {
  const Collective::Gather& g = gathers_[0];
  const int64_t row = int64_t{num_ranks_} * g.columns;
  if (row == 0) return;
  const int64_t rows_max = std::max<int64_t>(1, kBlockFloats / row);
  for (int64_t first = 0; first < g.rows && nodes_.ok(); first += rows_max) {
    const int64_t rows = std::min(rows_max, g.rows - first);
    const Status status = nodes_.is_leader() ? gather_rows(first, rows) : follow_rows(first, rows);
    if (!status.ok()) return static_cast<void>(nodes_.set_broken(status));
  }
}

// [ranks of this node, rows, columns]
void NodeCollectives::pack_rows(int64_t first, int64_t rows, float* to) const {
  for (const Collective::Gather& g : gathers_) {
    for (int64_t row = first; row < first + rows; ++row) {
      to = std::copy_n(g.part + row * g.part_stride, g.columns, to);
    }
  }
}

// from: [rows, ranks of all nodes, columns]
void NodeCollectives::place_rows(int64_t first, int64_t rows, const float* from) const {
  const int64_t width = int64_t{num_ranks_} * gathers_[0].columns;
  for (const Collective::Gather& g : gathers_) {
    for (int64_t row = 0; row < rows; ++row)
      std::copy_n(from + row * width, width, g.out + (first + row) * g.out_stride);
  }
}

Status NodeCollectives::gather_rows(int64_t first, int64_t rows) {
  const int64_t columns = gathers_[0].columns, here = size(), width = num_ranks_ * columns;
  values_.resize(static_cast<size_t>(rows * width));
  received_.resize(static_cast<size_t>(rows * here * columns));
  for (int32_t node = 0; node < nodes_.num_nodes(); ++node) {
    if (node == 0) {
      pack_rows(first, rows, received_.data());
    } else {
      ESP_RETURN_IF_ERROR(nodes_.link(node - 1).receive_exactly(MessageType::kPart,
                                                                bytes_of(received_), kPartWait));
    }
    for (int64_t part = 0; part < here * rows; ++part) {
      const int64_t rank = node * here + part / rows, row = part % rows;
      std::copy_n(received_.data() + part * columns, columns,
                  values_.data() + row * width + rank * columns);
    }
  }
  ESP_RETURN_IF_ERROR(send_to_all(MessageType::kSum, values_));
  place_rows(first, rows, values_.data());
  return {};
}

Status NodeCollectives::follow_rows(int64_t first, int64_t rows) {
  const int64_t columns = gathers_[0].columns;
  values_.resize(static_cast<size_t>(rows * size() * columns));
  pack_rows(first, rows, values_.data());
  ESP_RETURN_IF_ERROR(send_to_all(MessageType::kPart, values_));
  values_.resize(static_cast<size_t>(rows * num_ranks_ * columns));
  ESP_RETURN_IF_ERROR(
      nodes_.link(0).receive_exactly(MessageType::kSum, bytes_of(values_), kPartWait));
  place_rows(first, rows, values_.data());
  return {};
}

}  // namespace espalier::nodes
