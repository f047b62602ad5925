#include "tensor/thread_collective.h"

#include <algorithm>

#include "base/check.h"
#include "tensor/park.h"

namespace espalier {

class ThreadCollectives::Rank final : public Collective {
 public:
  Rank(ThreadCollectives& group, Ranks ranks, WorkPool* threads)
      : group_(group), ranks_(ranks), threads_(threads) {}

  Ranks ranks() const override { return ranks_; }
  void barrier() override { group_.meet(); }

  // Each rank sums a range of the elements and writes the sums to all: nobody else touches the
  // range between the two barriers.
  void all_reduce(std::span<float> data) override {
    if (ranks_.single()) return;
    publish(group_.data_, data.data());
    const auto size = static_cast<int64_t>(data.size());
    const int64_t begin = size * ranks_.rank / ranks_.num_ranks;
    const int64_t end = size * (ranks_.rank + 1) / ranks_.num_ranks;
    if (threads_ != nullptr) {
      threads_->parallel_for(end - begin, kBlock, [&](int64_t first, int64_t last) {
        sum(begin + first, begin + last);
      });
    } else {
      for (int64_t block = begin; block < end; block += kBlock) {
        sum(block, std::min(block + kBlock, end));
      }
    }
    group_.meet();
  }

  void all_gather(const Gather& gather) override {
    ESP_CHECK(gather.out_stride >= ranks_.num_ranks * gather.columns);
    publish(group_.gathers_, gather);
    float* to = gather.out;
    for (const Gather& from : group_.gathers_) {
      for (int64_t row = 0; row < gather.rows; ++row) {
        std::copy_n(from.part + row * from.part_stride, gather.columns,
                    to + row * gather.out_stride);
      }
      to += gather.columns;
    }
    group_.meet();  // the parts have been read
  }

  void gather_rows(const RankParts& parts) override {
    publish(group_.parts_, parts);
    float* to = parts.all;
    for (size_t rank = 0; rank < group_.parts_.size(); ++rank) {
      const auto count = static_cast<size_t>(parts.counts[rank] * parts.columns);
      to = std::copy_n(group_.parts_[rank].own, count, to);
    }
    group_.meet();  // the parts have been read
  }

  // Each rank adds up its own rows.
  void scatter_sums(const RankParts& parts) override {
    publish(group_.parts_, parts);
    const std::span<float> own = part_of_all(parts);
    const int64_t offset = own.data() - parts.all;
    const auto add = [&](int64_t first, int64_t last) {
      std::copy_n(group_.parts_[0].all + offset + first, last - first, parts.own + first);
      for (size_t rank = 1; rank < group_.parts_.size(); ++rank) {
        const float* from = group_.parts_[rank].all + offset;
        for (int64_t i = first; i < last; ++i) parts.own[i] += from[i];
      }
    };
    if (threads_ != nullptr) {
      threads_->parallel_for(std::ssize(own), kBlock, add);
    } else {
      add(0, std::ssize(own));
    }
    group_.meet();  // all have been read
  }

 private:
  static constexpr int64_t kBlock = 4096;  // floats whose sums stay in the nearest cache

  template <typename T>
  void publish(std::vector<T>& all, const T& own) {
    all[static_cast<size_t>(ranks_.rank)] = own;
    group_.meet();
  }

  void sum(int64_t begin, int64_t end) {
    float sums[kBlock];
    const int64_t count = end - begin;
    std::copy_n(group_.data_[0] + begin, count, sums);
    for (size_t rank = 1; rank < group_.data_.size(); ++rank) {
      const float* from = group_.data_[rank] + begin;
      for (int64_t i = 0; i < count; ++i) sums[i] += from[i];
    }
    for (float* to : group_.data_) std::copy_n(sums, count, to + begin);
  }

  ThreadCollectives& group_;
  const Ranks ranks_;
  WorkPool* const threads_;
};

ThreadCollectives::ThreadCollectives(const std::vector<WorkPool*>& threads)
    : data_(threads.size()), gathers_(threads.size()), parts_(threads.size()) {
  const auto num_ranks = static_cast<int32_t>(threads.size());
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    ranks_.push_back(
        std::make_unique<Rank>(*this, Ranks{rank, num_ranks}, threads[static_cast<size_t>(rank)]));
  }
}

ThreadCollectives::~ThreadCollectives() = default;

// The last to come resets the count before the meeting's number moves, so nobody counts for the
// next meeting before that.
void ThreadCollectives::meet() {
  const uint32_t meeting = meeting_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < ranks_.size()) {
    return wait_for_change(meeting_, meeting, parked_);
  }
  arrived_.store(0, std::memory_order_relaxed);
  meeting_.fetch_add(1, std::memory_order_seq_cst);
  wake_all(meeting_, parked_);
}

Collective& ThreadCollectives::rank(int32_t rank) { return *ranks_[static_cast<size_t>(rank)]; }

}  // namespace espalier
