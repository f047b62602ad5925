#include "ranks_bench.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>

#include "kernels/collective/cuda.h"
#include "kernels/random/cuda.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"
#include "tensor/rank_threads.h"

namespace espalier::bench {
namespace {

namespace kc = kernels::cuda;

constexpr int32_t kDim = 4096;
constexpr int64_t kLargest = int64_t{64} << 20;
constexpr int64_t kLargestMessage = int64_t{4} << 20;
constexpr int kReplays = 20;
constexpr int32_t kVocabulary = 128256;

struct RankMemory {
  cuda::Stream stream;
  cuda::DeviceBuffer x, residual, weight, y;
};

class AllReduceBench {
 public:
  explicit AllReduceBench(int32_t num_ranks)
      : ranks_(static_cast<size_t>(num_ranks)), threads_(num_ranks) {}

  Status prepare() {
    std::vector<int32_t> devices(ranks_.size());
    std::iota(devices.begin(), devices.end(), 0);
    for (const int32_t device : devices) {
      if (const auto opened = cuda::open_device(device); !opened) return opened.error();
    }
    ESP_ASSIGN_OR_RETURN(group_, kc::DeviceGroup::create({.devices = devices,
                                                          .message_bytes_max = kLargestMessage,
                                                          .stall_seconds = 10}));
    ESP_RETURN_IF_ERROR(each([&](int32_t rank) { return allocate(rank); }));
    ESP_RETURN_IF_ERROR(group_->connect());
    auto nccl = kc::DeviceGroup::create_nccl({.devices = devices});
    if (nccl) {
      nccl_ = *std::move(nccl);
    } else {
      std::fprintf(stderr, "without NCCL: %s\n", nccl.error().message().c_str());
    }
    return Status();
  }

  bool has_nccl() const { return nccl_ != nullptr; }
  void set_messages(bool on) { group_->set_message_bytes(on ? kLargestMessage : 0); }

  // Of one all-reduce of rows of kDim. fused: with residual and norm.
  Result<double> microseconds(int32_t rows, bool fused, bool nccl) {
    return microseconds({rows, fused, nccl});
  }
  // Of one gather of rows of logits.
  Result<double> gather_microseconds(int32_t rows) {
    return microseconds({.rows = rows, .gathers = true});
  }

 private:
  struct Case {
    int32_t rows = 0;
    bool fused = false, nccl = false, gathers = false;
  };

  Result<double> microseconds(const Case& of) {
    std::vector<double> medians(ranks_.size());
    const Status status = each([&](int32_t rank) -> Status {
      ESP_ASSIGN_OR_RETURN(medians[static_cast<size_t>(rank)], median_of_rank(rank, of));
      return Status();
    });
    ESP_RETURN_IF_ERROR(status);
    ESP_RETURN_IF_ERROR(group_->status());
    return std::ranges::max(medians);
  }

  Status each(const std::function<Status(int32_t)>& fn) {
    std::vector<Status> failures(ranks_.size());
    threads_.run([&](int32_t rank) {
      Status& failure = failures[static_cast<size_t>(rank)];
      failure = cuda::use_device(rank);
      if (failure.ok()) failure = fn(rank);
      if (!failure.ok()) group_->stop();
    });
    for (const Status& failure : failures) ESP_RETURN_IF_ERROR(failure);
    return Status();
  }

  Status reduce(int32_t rank, const Case& c) {
    RankMemory& own = ranks_[static_cast<size_t>(rank)];
    if (c.gathers) {
      const int32_t columns = kVocabulary / static_cast<int32_t>(ranks_.size());
      return group_->rank(rank).all_gather({.part = own.x.data(),
                                            .part_stride = columns,
                                            .rows = c.rows,
                                            .columns = columns,
                                            .out = rank == 0 ? own.y.data() : nullptr,
                                            .out_stride = kVocabulary},
                                           {.stream = own.stream.get()});
    }
    kc::AllReduceArgs args{.x = own.x.data(), .rows = c.rows, .dim = kDim};
    if (c.fused) {
      args.residual = own.residual.data(), args.residual_stride = kDim;
      args.norm_weight = own.weight.data();
      args.y = own.y.data(), args.y_stride = kDim;
    }
    kc::DeviceGroup& group = c.nccl ? *nccl_ : *group_;
    return group.rank(rank).all_reduce(args, {.stream = own.stream.get()});
  }

  Result<double> median_of_rank(int32_t rank, const Case& c) {
    const cuda::Stream& stream = ranks_[static_cast<size_t>(rank)].stream;
    const int calls = int64_t{c.rows} * kDim * 2 > (8 << 20) ? 4 : 40;
    const auto reduce_all = [&]() -> Status {
      for (int i = 0; i < calls; ++i) ESP_RETURN_IF_ERROR(reduce(rank, c));
      return Status();
    };
    ESP_RETURN_IF_ERROR(reduce(rank, c));  // loads the kernel
    ESP_RETURN_IF_ERROR(stream.synchronize());
    ESP_ASSIGN_OR_RETURN(const cuda::Graph graph, cuda::Graph::capture(stream, reduce_all));
    ESP_ASSIGN_OR_RETURN(const cuda::Event begin, cuda::Event::create(true));
    ESP_ASSIGN_OR_RETURN(const cuda::Event end, cuda::Event::create(true));
    std::vector<double> times;
    for (int i = 0; i < kReplays; ++i) {
      ESP_RETURN_IF_ERROR(begin.record(stream));
      ESP_RETURN_IF_ERROR(graph.launch(stream));
      ESP_RETURN_IF_ERROR(end.record(stream));
      ESP_RETURN_IF_ERROR(end.synchronize());
      ESP_ASSIGN_OR_RETURN(const double seconds, end.seconds_since(begin));
      times.push_back(seconds * 1e6 / calls);
    }
    std::ranges::nth_element(times, times.begin() + kReplays / 2);
    return times[kReplays / 2];
  }

  Status allocate(int32_t rank) {
    RankMemory& own = ranks_[static_cast<size_t>(rank)];
    ESP_ASSIGN_OR_RETURN(own.stream, cuda::Stream::create());
    for (cuda::DeviceBuffer* buffer : {&own.x, &own.residual, &own.y, &own.weight}) {
      const int64_t bytes = buffer == &own.weight ? kDim * 2
                            : buffer == &own.y    ? kLargest * std::ssize(ranks_)
                                                  : kLargest;
      ESP_ASSIGN_OR_RETURN(*buffer, cuda::DeviceBuffer::allocate(bytes, "rows"));
      ESP_RETURN_IF_ERROR(kc::draw({.out = buffer->data(), .count = bytes / 2, .key = 3},
                                   {.stream = own.stream.get()}));
    }
    group_->rank(rank).set_buffers({own.x.data()});
    return own.stream.synchronize();
  }

  std::unique_ptr<kc::DeviceGroup> group_, nccl_;  // the latter null where NCCL is not there
  std::vector<RankMemory> ranks_;
  RankThreads threads_;
};

}  // namespace

Result<std::vector<AllReduceTime>> time_all_reduces(int32_t num_ranks) {
  AllReduceBench bench(num_ranks);
  ESP_RETURN_IF_ERROR(bench.prepare());
  std::vector<AllReduceTime> out;
  for (const int32_t rows : {1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192}) {
    AllReduceTime row{.bytes = int64_t{rows} * kDim * 2};
    if (row.bytes <= kLargestMessage) {
      bench.set_messages(true);
      ESP_ASSIGN_OR_RETURN(row.message_us, bench.microseconds(rows, false, false));
      ESP_ASSIGN_OR_RETURN(row.fused_us, bench.microseconds(rows, true, false));
    }
    bench.set_messages(false);
    ESP_ASSIGN_OR_RETURN(row.in_place_us, bench.microseconds(rows, false, false));
    if (bench.has_nccl()) {
      ESP_ASSIGN_OR_RETURN(row.nccl_us, bench.microseconds(rows, false, true));
    }
    out.push_back(row);
  }
  return out;
}

Result<std::vector<GatherTime>> time_gathers(int32_t num_ranks) {
  AllReduceBench bench(num_ranks);
  ESP_RETURN_IF_ERROR(bench.prepare());
  std::vector<GatherTime> out;
  for (const int32_t rows : {1, 16, 64, 128, 256}) {
    ESP_ASSIGN_OR_RETURN(const double us, bench.gather_microseconds(rows));
    out.push_back({rows, us});
  }
  return out;
}

}  // namespace espalier::bench
