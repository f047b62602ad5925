// Collectives of ranks on GPUs against sums on the host: on two GPUs where there are two, and with
// several ranks on one GPU, whose small kernels run side by side.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/collective/cuda.h"
#include "kernels/cuda/test_device.h"
#include "kernels/norm/cuda.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/stream.h"

namespace espalier::kernels::cuda {
namespace {

using test::DeviceArray;
using ::testing::HasSubstr;
namespace ec = espalier::cuda;

constexpr int64_t kMessageBytes = 64 << 10;  // small, so that tests of in-place sums are quick

template <typename T>
constexpr DType kTypeOf = sizeof(T) == 2 ? DType::kBFloat16 : DType::kFloat32;
float value_of(float x) { return x; }
float value_of(BFloat16 x) { return espalier::to_float(x); }
template <typename T>
T rounded(float x) {
  if constexpr (sizeof(T) == 2) {
    return espalier::to_bfloat16(x);
  } else {
    return x;
  }
}

class CollectiveCuda : public test::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    device_sets_ = {{0, 0}, {0, 0, 0}};
    if (ec::count_devices() > 1) {
      device_sets_ = {{0, 1}, {0, 1, 0, 1}, {1, 0, 1}};
      ASSERT_TRUE(ec::open_device(1));
    }
    ASSERT_TRUE(ec::open_device(0));
    // Kernels that are loaded while others wait for their peers would wait for these.
    DeviceArray<float> row(std::vector<float>(8, 1.0f));
    ASSERT_TRUE(rms_norm({.type = DType::kFloat32,
                          .x = row.get(),
                          .x_stride = 8,
                          .weight = row.get(),
                          .y = row.get(),
                          .y_stride = 8,
                          .rows = 1,
                          .dim = 8},
                         {})
                    .ok());
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void TearDown() override { static_cast<void>(ec::use_device(0)); }

  void start(const std::vector<int32_t>& devices, double stall_seconds = 20) {
    devices_ = devices;
    streams_.clear();
    auto group = DeviceGroup::create({.devices = devices,
                                      .tokens_max = 1000,
                                      .message_bytes_max = kMessageBytes,
                                      .stall_seconds = stall_seconds});
    ASSERT_TRUE(group) << group.error().to_string();
    group_ = std::move(*group);
    for (const int32_t device : devices) {
      ASSERT_TRUE(ec::use_device(device).ok());
      auto stream = ec::Stream::create();
      ASSERT_TRUE(stream);
      streams_.push_back(std::move(*stream));
    }
  }
  size_t num_ranks() const { return devices_.size(); }
  LaunchOptions launch(size_t rank, bool pdl = false) const {
    return {.stream = streams_[rank].get(), .pdl = pdl};
  }
  DeviceCollective& rank(size_t rank) { return group_->rank(static_cast<int32_t>(rank)); }
  // Calls fn(rank) with the rank's device the current one.
  template <typename Fn>
  void each(const Fn& fn) {
    for (size_t r = 0; r < num_ranks(); ++r) {
      ASSERT_TRUE(ec::use_device(devices_[r]).ok());
      fn(r);
    }
  }
  void wait() {
    each([&](size_t r) {
      const Status status = streams_[r].synchronize();
      EXPECT_TRUE(status.ok()) << status.to_string();
    });
    EXPECT_TRUE(group_->status().ok()) << group_->status().to_string();
  }

  template <typename T>
  std::vector<T> draw(size_t count) {
    std::vector<T> out;
    for (size_t i = 0; i < count; ++i)
      out.push_back(rng_.below(16) == 0 ? rounded<T>(-0.0f) : rounded<T>(rng_.normal()));
    return out;
  }

  // Of all ranks' numbers where all have the same.
  template <typename T>
  T sum_of_equals(T value) const {
    float sum = value_of(value);
    for (size_t r = 1; r < num_ranks(); ++r) sum += value_of(value);
    return rounded<T>(sum);
  }

  std::vector<std::vector<int32_t>> device_sets_;
  std::vector<int32_t> devices_;
  std::unique_ptr<DeviceGroup> group_;
  std::vector<ec::Stream> streams_;
};

// One sum: inputs and buffers of each rank, and what is to come.
template <typename T>
struct Sum {
  size_t rows, dim;
  bool residual, norm;
  std::vector<DeviceArray<T>> x, residuals, y, weights;
  std::vector<T> want_sum, want_residual;

  AllReduceArgs args(size_t r) const {
    AllReduceArgs out{.type = kTypeOf<T>,
                      .x = x[r].get(),
                      .rows = static_cast<int32_t>(rows),
                      .dim = static_cast<int32_t>(dim)};
    if (residual) out.residual = residuals[r].get(), out.residual_stride = stride();
    if (norm) {
      out.norm_weight = weights[r].get(), out.norm_epsilon = 1e-5f, out.norm_offset = 1;
      out.y = y[r].get(), out.y_stride = static_cast<int64_t>(dim);
    }
    return out;
  }
  int64_t stride() const { return static_cast<int64_t>(dim) + 8; }
};

template <typename T, typename Draw>
Sum<T> make_sum(size_t rows, size_t dim, int kind, const std::vector<int32_t>& devices,
                const Draw& draw) {
  Sum<T> sum{.rows = rows, .dim = dim, .residual = kind > 0, .norm = kind > 1};
  const size_t count = rows * dim, padded = rows * (dim + 8);
  const std::vector<T> residual = draw(padded), weight = draw(dim);
  std::vector<float> sums(count);
  for (size_t r = 0; r < devices.size(); ++r) {
    EXPECT_TRUE(ec::use_device(devices[r]).ok());
    const std::vector<T> own = draw(count);
    for (size_t i = 0; i < count; ++i) sums[i] = (r == 0 ? 0 : sums[i]) + value_of(own[i]);
    sum.x.emplace_back(own);
    sum.residuals.emplace_back(residual);
    sum.weights.emplace_back(weight);
    sum.y.emplace_back(count);
  }
  sum.want_residual = residual;
  for (size_t i = 0; i < count; ++i) {
    sum.want_sum.push_back(rounded<T>(sums[i]));
    T& to = sum.want_residual[i / dim * (dim + 8) + i % dim];
    to = rounded<T>(value_of(to) + value_of(sum.want_sum[i]));
  }
  return sum;
}

template <typename T>
void expect_equal(const std::vector<T>& got, const std::vector<T>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  size_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (value_of(got[i]) == value_of(want[i])) continue;
    if (wrong++ == 0)
      ADD_FAILURE() << what << ", element " << i << ": " << value_of(got[i]) << ", not "
                    << value_of(want[i]);
  }
  EXPECT_EQ(wrong, 0u) << what << ", of " << want.size();
}

// The norm's bits are those of rms_norm() on the residual.
template <typename T>
void check_sum(const Sum<T>& sum, const std::vector<int32_t>& devices, const std::string& what) {
  for (size_t r = 0; r < devices.size(); ++r) {
    ASSERT_TRUE(ec::use_device(devices[r]).ok());
    const std::string where = what + ", rank " + std::to_string(r);
    if (!sum.residual) {
      expect_equal(sum.x[r].read(), sum.want_sum, where);
      continue;
    }
    expect_equal(sum.residuals[r].read(), sum.want_residual, where + ", residual");
    if (!sum.norm) continue;
    DeviceArray<T> want(sum.rows * sum.dim);
    ASSERT_TRUE(rms_norm({.type = kTypeOf<T>,
                          .x = sum.residuals[r].get(),
                          .x_stride = sum.stride(),
                          .weight = sum.weights[r].get(),
                          .weight_offset = 1,
                          .y = want.get(),
                          .y_stride = static_cast<int64_t>(sum.dim),
                          .rows = static_cast<int32_t>(sum.rows),
                          .dim = static_cast<int32_t>(sum.dim),
                          .epsilon = 1e-5f},
                         {})
                    .ok());
    expect_equal(sum.y[r].read(), want.read(), where + ", norm");
  }
}

// Rows, columns: one element a thread, several blocks, several chunks a thread, rows of no message.
constexpr size_t kSums[][2] = {{1, 8},    {1, 4096}, {3, 264},  {2, 5120},
                               {1, 9216}, {40, 64},  {200, 40}, {33, 4104}};

TEST_F(CollectiveCuda, SumsAreThoseOfTheHost) {
  for (const auto& devices : device_sets_) {
    ASSERT_NO_FATAL_FAILURE(start(devices));
    const auto check = [&]<typename T>(T, size_t rows, size_t dim, int kind, bool messages) {
      auto sum = make_sum<T>(rows, dim, kind, devices, [&](size_t n) { return draw<T>(n); });
      each([&](size_t r) { rank(r).set_buffers({sum.x[r].get()}); });
      ASSERT_TRUE(group_->connect().ok());
      group_->set_message_bytes(messages ? kMessageBytes : 0);
      each([&](size_t r) {
        const Status status = rank(r).all_reduce(sum.args(r), launch(r));
        ASSERT_TRUE(status.ok()) << status.to_string();
      });
      wait();
      check_sum(sum, devices,
                fmt::format("{} ranks, {} x {}, kind {}, messages {}", devices.size(), rows, dim,
                            kind, messages));
    };
    for (const auto& [rows, dim] : kSums) {
      for (const int kind : {0, 1, 2}) {
        for (const bool messages : {true, false}) {
          check(float{}, rows, dim, kind, messages);
          check(BFloat16{}, rows, dim, kind, messages);
        }
      }
    }
  }
}

// Sums of any size behind each other, none waited for: buffers of messages take turns.
TEST_F(CollectiveCuda, ManySumsInFlight) {
  for (const auto& devices : device_sets_) {
    ASSERT_NO_FATAL_FAILURE(start(devices));
    std::vector<Sum<BFloat16>> sums;
    for (int i = 0; i < 60; ++i) {
      sums.push_back(make_sum<BFloat16>(1 + rng_.below(i % 4 == 0 ? 60 : 4),
                                        8 * (1 + rng_.below(200)), static_cast<int>(rng_.below(3)),
                                        devices, [&](size_t n) { return draw<BFloat16>(n); }));
    }
    each([&](size_t r) {
      std::vector<const void*> buffers;
      for (const auto& sum : sums) buffers.push_back(sum.x[r].get());
      rank(r).set_buffers(std::move(buffers));
    });
    ASSERT_TRUE(group_->connect().ok());
    group_->set_message_bytes(16 << 10);
    for (size_t i = 0; i < sums.size(); ++i)
      each([&](size_t r) {
        ASSERT_TRUE(rank(r).all_reduce(sums[i].args(r), launch(r, i % 2 == 1)).ok());
      });
    wait();
    for (size_t i = 0; i < sums.size(); ++i) check_sum(sums[i], devices, fmt::format("sum {}", i));
  }
}

// A graph holds messages of several sizes and a sum in place; its inputs come anew each time.
TEST_F(CollectiveCuda, GraphsAreReplayed) {
  const auto& devices = device_sets_.front();
  ASSERT_NO_FATAL_FAILURE(start(devices));
  std::vector<Sum<BFloat16>> sums;
  std::vector<std::vector<std::unique_ptr<DeviceArray<BFloat16>>>> sources(num_ranks());
  for (const auto& [rows, dim] : {std::pair{1u, 4096u}, {3u, 512u}, {20u, 4096u}, {1u, 8u}})
    sums.push_back(
        make_sum<BFloat16>(rows, dim, 0, devices, [&](size_t n) { return draw<BFloat16>(n); }));
  each([&](size_t r) {
    std::vector<const void*> buffers;
    for (const auto& sum : sums) {
      buffers.push_back(sum.x[r].get());
      sources[r].push_back(std::make_unique<DeviceArray<BFloat16>>(sum.x[r].read()));
    }
    rank(r).set_buffers(std::move(buffers));
  });
  ASSERT_TRUE(group_->connect().ok());
  std::vector<ec::Graph> graphs;
  each([&](size_t r) {
    auto graph = ec::Graph::capture(streams_[r], [&]() -> Status {
      for (size_t i = 0; i < sums.size(); ++i) {
        const DeviceArray<BFloat16>& from = *sources[r][i];
        cudaMemcpyAsync(sums[i].x[r].get(), from.get(), from.size() * sizeof(BFloat16),
                        cudaMemcpyDeviceToDevice, streams_[r].get());
        ESP_RETURN_IF_ERROR(rank(r).all_reduce(sums[i].args(r), launch(r)));
      }
      return {};
    });
    ASSERT_TRUE(graph) << graph.error().to_string();
    graphs.push_back(std::move(*graph));
  });
  for (int replay = 0; replay < 20; ++replay)
    each([&](size_t r) { ASSERT_TRUE(graphs[r].launch(streams_[r]).ok()); });
  wait();
  for (const auto& sum : sums) check_sum(sum, devices, "in a graph");
}

// Any number of rows a rank, none among them; gathers and sums in turns, as a model's layers have
// them, none waited for: what a rank has read stays until it has been read.
TEST_F(CollectiveCuda, RowsOfRanksAreGatheredAndTheirSumsGivenBack) {
  constexpr int kRounds = 6;
  for (const auto& devices : device_sets_) {
    ASSERT_NO_FATAL_FAILURE(start(devices));
    const auto check = [&]<typename T>(T, std::vector<int32_t> counts, int32_t columns) {
      counts.resize(num_ranks(), 1);
      RankRowsArgs args{.type = kTypeOf<T>, .columns = columns};
      std::ranges::copy(counts, args.counts);
      const auto words = static_cast<size_t>(columns);
      const auto rows = static_cast<size_t>(std::reduce(counts.begin(), counts.end()));
      std::vector<T> want;
      std::vector<std::vector<T>> own;
      std::vector<DeviceArray<T>> owns, alls;
      each([&](size_t r) {
        own.push_back(draw<T>(static_cast<size_t>(counts[r]) * words));
        want.insert(want.end(), own[r].begin(), own[r].end());
        owns.emplace_back(std::max<size_t>(own[r].size(), 8));
        alls.emplace_back(rows * words);
        cudaMemcpy(owns[r].get(), own[r].data(), own[r].size() * sizeof(T), cudaMemcpyDefault);
        rank(r).set_buffers({owns[r].get(), alls[r].get()});
      });
      ASSERT_TRUE(group_->connect().ok());
      // The sum of what all have gathered is as many times what each has.
      for (int round = 0; round < kRounds; ++round)
        each([&](size_t r) {
          args.own = owns[r].get(), args.all = alls[r].get();
          ASSERT_TRUE(rank(r).gather_rows(args, launch(r, round % 2 == 1)).ok());
          ASSERT_TRUE(rank(r).scatter_sums(args, launch(r, round % 2 == 1)).ok());
        });
      wait();
      const std::string what = fmt::format("{} ranks, {} of {}", num_ranks(), rows, columns);
      for (int round = 0; round + 1 < kRounds; ++round)
        for (T& value : want) value = sum_of_equals(value);
      size_t before = 0;
      for (size_t r = 0; r < num_ranks(); ++r) {
        ASSERT_TRUE(ec::use_device(devices[r]).ok());
        expect_equal(alls[r].read(), want, what + ", all");
        std::vector<T> mine = owns[r].read();
        mine.resize(own[r].size());
        std::vector<T> want_mine;
        for (size_t i = 0; i < mine.size(); ++i)
          want_mine.push_back(sum_of_equals(want[before + i]));
        expect_equal(mine, want_mine, what + ", own");
        before += mine.size();
      }
    };
    for (const int32_t columns : {8, 4096, 264}) {
      for (const auto& counts :
           std::vector<std::vector<int32_t>>{{3, 5}, {0, 2}, {200, 0}, {1, 1, 40}, {0, 0, 0, 0}}) {
        check(float{}, counts, columns);
        check(BFloat16{}, counts, columns);
      }
    }
  }
}

TEST_F(CollectiveCuda, PartsLieSideBySide) {
  for (const auto& devices : device_sets_) {
    ASSERT_NO_FATAL_FAILURE(start(devices));
    const auto check = [&]<typename T>(T, size_t rows, size_t columns, size_t pad, bool all) {
      const size_t stride = columns + pad, out_stride = columns * num_ranks() + pad;
      std::vector<DeviceArray<T>> parts, outs;
      std::vector<T> want(rows * out_stride, rounded<T>(7.0f));
      each([&](size_t r) {
        const std::vector<T> part = draw<T>(rows * stride);
        for (size_t i = 0; i < rows * columns; ++i)
          want[i / columns * out_stride + r * columns + i % columns] =
              part[i / columns * stride + i % columns];
        parts.emplace_back(part);
        outs.emplace_back(std::vector<T>(rows * out_stride, rounded<T>(7.0f)));
        rank(r).set_buffers({parts[r].get()});
      });
      ASSERT_TRUE(group_->connect().ok());
      each([&](size_t r) {
        const Status status = rank(r).all_gather({.type = kTypeOf<T>,
                                                  .part = parts[r].get(),
                                                  .part_stride = static_cast<int64_t>(stride),
                                                  .rows = static_cast<int32_t>(rows),
                                                  .columns = static_cast<int32_t>(columns),
                                                  .out = all || r == 0 ? outs[r].get() : nullptr,
                                                  .out_stride = static_cast<int64_t>(out_stride)},
                                                 launch(r));
        ASSERT_TRUE(status.ok()) << status.to_string();
      });
      wait();
      each([&](size_t r) {
        if (all || r == 0) expect_equal(outs[r].read(), want, fmt::format("rank {}", r));
      });
    };
    for (const bool all : {true, false}) {
      check(float{}, 1, 504, 0, all);
      check(float{}, 5, 1001, 3, all);
      check(BFloat16{}, 7, 64, 8, all);
      check(BFloat16{}, 3, 33, 1, all);
      check(float{}, 64, 2048, 8, all);
    }
  }
}

TEST_F(CollectiveCuda, TokensOfRankZeroReachAll) {
  for (const auto& devices : device_sets_) {
    ASSERT_NO_FATAL_FAILURE(start(devices));
    constexpr int32_t kSlots = 700;
    std::vector<DeviceArray<int32_t>> tokens, slots, x;
    std::vector<int32_t> want(kSlots, -5), own(kSlots, -5), order;
    for (int32_t i = 0; i < kSlots; ++i) order.push_back(i % 7 == 0 ? -1 : (i * 11 + 3) % kSlots);
    each([&](size_t) {
      tokens.emplace_back(own);
      slots.emplace_back(order);
    });
    for (int round = 0; round < 3; ++round) {
      for (const int32_t slot : order)
        if (slot >= 0) want[static_cast<size_t>(slot)] = static_cast<int32_t>(rng_.below(1000)) - 1;
      ASSERT_TRUE(ec::use_device(devices[0]).ok());
      tokens[0].set(want);
      each([&](size_t r) {
        ASSERT_TRUE(
            rank(r)
                .share_tokens(
                    {.row_slots = slots[r].get(), .rows = kSlots, .slot_tokens = tokens[r].get()},
                    launch(r))
                .ok());
      });
      wait();
      each([&](size_t r) { EXPECT_EQ(tokens[r].read(), want) << "rank " << r; });
    }
  }
}

// A rank that does not come ends the group, not the process.
TEST_F(CollectiveCuda, AMissingRankIsNamed) {
  ASSERT_NO_FATAL_FAILURE(start(device_sets_.front(), 0.2));
  DeviceArray<float> x(std::vector<float>(4096, 1.0f));
  ASSERT_TRUE(ec::use_device(devices_[0]).ok());
  const AllReduceArgs args{.type = DType::kFloat32, .x = x.get(), .rows = 1, .dim = 4096};
  ASSERT_TRUE(rank(0).all_reduce(args, launch(0)).ok());
  ASSERT_TRUE(streams_[0].synchronize().ok());
  const Status status = group_->status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("rank 0 waited 0.2 s for rank 1"));
  ASSERT_TRUE(rank(0).all_reduce(args, launch(0)).ok());  // and then nothing waits any more
  ASSERT_TRUE(streams_[0].synchronize().ok());
}

TEST_F(CollectiveCuda, AStoppedGroupWaitsForNobody) {
  ASSERT_NO_FATAL_FAILURE(start(device_sets_.front(), 600));
  DeviceArray<float> x(std::vector<float>(64, 1.0f));
  ASSERT_TRUE(ec::use_device(devices_[0]).ok());
  const AllReduceArgs args{.type = DType::kFloat32, .x = x.get(), .rows = 1, .dim = 64};
  ASSERT_TRUE(rank(0).all_reduce(args, launch(0)).ok());
  group_->stop();
  ASSERT_TRUE(streams_[0].synchronize().ok());
  EXPECT_TRUE(group_->status().ok());
}

TEST_F(CollectiveCuda, WrongArgumentsAreRefused) {
  ASSERT_NO_FATAL_FAILURE(start(device_sets_.front()));
  DeviceArray<float> x(64);
  const auto refused = [&](const AllReduceArgs& args) {
    const Status status = rank(0).all_reduce(args, launch(0));
    return status.ok() ? std::string() : status.message();
  };
  EXPECT_THAT(refused({.type = DType::kFloat32, .x = x.get(), .rows = 1, .dim = 12}),
              HasSubstr("multiple of 8"));
  EXPECT_THAT(refused({.type = DType::kFloat16, .x = x.get(), .rows = 1, .dim = 8}),
              HasSubstr("F16"));
  EXPECT_THAT(refused({.type = DType::kFloat32, .x = x.get() + 1, .rows = 1, .dim = 8}),
              HasSubstr("16 bytes"));
  EXPECT_THAT(refused({.type = DType::kFloat32, .x = x.get(), .rows = 1, .dim = 8, .y = x.get()}),
              HasSubstr("norm"));
  group_->set_message_bytes(0);
  EXPECT_THAT(refused({.type = DType::kFloat32, .x = x.get(), .rows = 1, .dim = 8}),
              HasSubstr("not known to the other ranks"));
  rank(0).set_buffers({x.get()});
  EXPECT_FALSE(group_->connect().ok());
  EXPECT_FALSE(DeviceGroup::create({.devices = std::vector<int32_t>(9, 0)}));
}

}  // namespace
}  // namespace espalier::kernels::cuda
