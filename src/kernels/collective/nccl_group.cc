// Ranks over NCCL, of one process or of several. Sums stand in x, and residuals and norms are a
// kernel of their own behind them; gathered rows pass a buffer, since NCCL puts parts behind each
// other.
#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>

#include "kernels/collective/collective_args.h"
#include "kernels/collective/kernels.h"
#include "kernels/collective/nccl_library.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/memory.h"

namespace espalier::kernels::cuda {
namespace {

namespace ec = espalier::cuda;

constexpr int64_t kGatherBytes = int64_t{8} << 20;  // of gathered rows at a time

int nccl_type(DType type) {
  return type == DType::kBFloat16 ? NcclLibrary::kBFloat16 : NcclLibrary::kFloat32;
}

class NcclGroup;

class NcclRank final : public DeviceCollective {
 public:
  NcclRank(NcclGroup& group, Ranks ranks) : group_(group), ranks_(ranks) {}

  Ranks ranks() const override { return ranks_; }
  void set_buffers(std::vector<const void*>) override {}
  Status all_reduce(const AllReduceArgs& args, const LaunchOptions& launch) override;
  Status all_gather(const AllGatherArgs& args, const LaunchOptions& launch) override;
  Status gather_rows(const RankRowsArgs& args, const LaunchOptions& launch) override;
  Status scatter_sums(const RankRowsArgs& args, const LaunchOptions& launch) override;
  Status share_tokens(const ShareTokensArgs& args, const LaunchOptions& launch) override;

 private:
  friend class NcclGroup;
  // What the group's buffers of this rank are for.
  struct Buffers {
    std::byte *part = nullptr, *gathered = nullptr;
    int32_t* tokens = nullptr;
  };
  Status gather_block(const AllGatherArgs& args, const LaunchOptions& launch);
  // Calls make(rank, the rank's rows of `all`, their elements) for each rank that has rows, as one
  // operation of NCCL.
  template <typename Make>
  Status each_part(const char* what, const RankRowsArgs& args, const Make& make) const;

  NcclGroup& group_;
  const Ranks ranks_;
  NcclComm comm_ = nullptr;
  ec::DeviceBuffer block_;
  Buffers buffers_;
};

class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(const NcclLibrary& library, const DeviceGroupOptions& options, const NcclRanks& all)
      : library_(library), options_(options) {
    const auto ranks_here = static_cast<int32_t>(options.devices.size());
    const int32_t num_ranks = all.num_ranks > 0 ? all.num_ranks : ranks_here;
    for (int32_t r = 0; r < ranks_here; ++r)
      ranks_.push_back(std::make_unique<NcclRank>(*this, Ranks{all.first_rank + r, num_ranks}));
  }
  ~NcclGroup() override { stop(); }
  Status join(const NcclId& id);

  std::string_view name() const override { return "NCCL"; }
  bool keeps_order() const override { return ranks_.front()->ranks_.num_ranks <= 2; }
  DeviceCollective& rank(int32_t rank) override { return *ranks_[static_cast<size_t>(rank)]; }
  Status connect() override { return {}; }
  void set_message_bytes(int64_t) override {}
  int64_t message_bytes() const override { return 0; }
  void stop() override;
  Status status() const override;
  int64_t device_bytes() const override { return device_bytes_; }

 private:
  friend class NcclRank;
  Status begin_ranks(const NcclId& id);
  Status allocate();
  // Sums a few numbers, so that connections and their memory are there from now on.
  Status meet();
  // Calls NCCL for a rank, unless the group was stopped.
  template <typename Call>
  Status call(const char* what, const Call& make) const {
    const std::shared_lock lock(mutex_);
    if (stopped_) return error(StatusCode::kUnavailable, "{}: the ranks were stopped", what);
    return library_.status(make(), what);
  }

  const NcclLibrary& library_;
  const DeviceGroupOptions options_;
  std::vector<std::unique_ptr<NcclRank>> ranks_;
  int64_t device_bytes_ = 0;
  mutable std::shared_mutex mutex_;  // of the communicators: enqueuing shares them, ending does not
  bool stopped_ = false;
};

Status NcclGroup::join(const NcclId& id) {
  const ec::RestoredDevice restored;
  ESP_RETURN_IF_ERROR(ec::use_device(options_.devices.front()));
  ESP_ASSIGN_OR_RETURN(const ec::DeviceMemory before, ec::read_device_memory());
  if (const Status begun = begin_ranks(id); !begun.ok())
    return error(StatusCode::kUnavailable, "NCCL does not join {} GPUs: {}",
                 ranks_.front()->ranks_.num_ranks, begun.message());
  ESP_RETURN_IF_ERROR(allocate());
  ESP_RETURN_IF_ERROR(meet());
  ESP_RETURN_IF_ERROR(ec::use_device(options_.devices.front()));
  ESP_ASSIGN_OR_RETURN(const ec::DeviceMemory after, ec::read_device_memory());
  device_bytes_ = std::max<int64_t>(0, before.free_bytes - after.free_bytes);
  return {};
}

Status NcclGroup::begin_ranks(const NcclId& id) {
  ESP_RETURN_IF_ERROR(library_.status(library_.group_start(), "begin a group"));
  Status first;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Ranks& r = ranks_[i]->ranks_;
    Status status = ec::use_device(options_.devices[i]);
    if (status.ok())
      status = library_.status(library_.comm_init_rank(&ranks_[i]->comm_, r.num_ranks, id, r.rank),
                               "begin a rank");
    if (first.ok()) first = std::move(status);
  }
  const Status ended = library_.status(library_.group_end(), "begin all ranks");
  return first.ok() ? ended : first;
}

Status NcclGroup::allocate() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    NcclRank* const rank = ranks_[i].get();
    ESP_RETURN_IF_ERROR(ec::use_device(options_.devices[i]));
    const auto lay_out = [&](ec::Arena& arena) -> NcclRank::Buffers {
      return {.part = arena.take<std::byte>(kGatherBytes),
              .gathered = arena.take<std::byte>(kGatherBytes),
              .tokens = arena.take<int32_t>(options_.tokens_max)};
    };
    ec::Arena measured;
    lay_out(measured);
    ESP_ASSIGN_OR_RETURN(rank->block_,
                         ec::DeviceBuffer::allocate(measured.used_bytes(), "rows between ranks"));
    ec::Arena arena(rank->block_.data());
    rank->buffers_ = lay_out(arena);
  }
  return {};
}

Status NcclGroup::meet() {
  std::vector<ec::Stream> streams(ranks_.size());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ESP_RETURN_IF_ERROR(ec::use_device(options_.devices[r]));
    ESP_ASSIGN_OR_RETURN(streams[r], ec::Stream::create());
    ESP_RETURN_IF_ERROR(ec::fill_bytes(ranks_[r]->buffers_.part, 0, kGatherBytes, streams[r]));
  }
  const auto each = [&](const char* what, const auto& enqueue) -> Status {
    ESP_RETURN_IF_ERROR(library_.status(library_.group_start(), what));
    Status first;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Status status = library_.status(enqueue(*ranks_[r], streams[r].get()), what);
      if (first.ok()) first = status;
    }
    const Status ended = library_.status(library_.group_end(), what);
    return first.ok() ? ended : first;
  };
  ESP_RETURN_IF_ERROR(each("the first sum", [&](const NcclRank& rank, Stream stream) {
    std::byte* const x = rank.buffers_.part;
    return library_.all_reduce(x, x, kGatherBytes / 4, NcclLibrary::kFloat32, NcclLibrary::kSum,
                               rank.comm_, stream);
  }));
  ESP_RETURN_IF_ERROR(each("the first parts", [&](const NcclRank& rank, Stream stream) {
    return library_.all_gather(rank.buffers_.part, rank.buffers_.gathered, 1024,
                               NcclLibrary::kFloat32, rank.comm_, stream);
  }));
  ESP_RETURN_IF_ERROR(each("the first tokens", [&](const NcclRank& rank, Stream stream) {
    std::byte* const x = rank.buffers_.part;
    return library_.broadcast(x, x, 16, NcclLibrary::kInt32, 0, rank.comm_, stream);
  }));
  for (size_t r = 0; r < ranks_.size(); ++r) ESP_RETURN_IF_ERROR(streams[r].synchronize());
  return {};
}

void NcclGroup::stop() {
  const std::unique_lock lock(mutex_);
  if (std::exchange(stopped_, true)) return;
  for (const auto& rank : ranks_)
    if (rank->comm_ != nullptr) library_.comm_abort(rank->comm_);
}

Status NcclGroup::status() const {
  for (const auto& rank : ranks_) {
    int code = 0;
    ESP_RETURN_IF_ERROR(
        call("the ranks", [&] { return library_.comm_get_async_error(rank->comm_, &code); }));
    ESP_RETURN_IF_ERROR(library_.status(code, "a collective"));
  }
  return {};
}

Status NcclRank::all_reduce(const AllReduceArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_all_reduce(args));
  if (args.rows == 0) return {};
  ESP_RETURN_IF_ERROR(group_.call("all_reduce", [&] {
    return group_.library_.all_reduce(args.x, args.x, size_t(args.rows) * size_t(args.dim),
                                      nccl_type(args.type), NcclLibrary::kSum, comm_,
                                      launch.stream);
  }));
  return finish_all_reduce(args, launch);
}

// In blocks of as many rows as the buffers have room for.
Status NcclRank::all_gather(const AllGatherArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_all_gather(args, ranks_.num_ranks));
  const auto size = static_cast<int64_t>(dtype_size(args.type));
  const int64_t rows_max = kGatherBytes / (int64_t{args.columns} * ranks_.num_ranks * size);
  if (rows_max == 0)
    return invalid_argument("all_gather: a row of {} x {} columns is too long", ranks_.num_ranks,
                            args.columns);
  for (int64_t first = 0; first < args.rows; first += rows_max) {
    AllGatherArgs block = args;
    block.rows = static_cast<int32_t>(std::min(rows_max, args.rows - first));
    block.part = static_cast<const std::byte*>(args.part) + first * args.part_stride * size;
    if (args.out != nullptr)
      block.out = static_cast<std::byte*>(args.out) + first * args.out_stride * size;
    ESP_RETURN_IF_ERROR(gather_block(block, launch));
  }
  return {};
}

Status NcclRank::gather_block(const AllGatherArgs& args, const LaunchOptions& launch) {
  const int32_t rows = args.rows, columns = args.columns;
  const void* part = args.part;
  if (args.part_stride != columns && rows > 1) {
    ESP_RETURN_IF_ERROR(copy_rows({.type = args.type,
                                   .from = args.part,
                                   .from_stride = args.part_stride,
                                   .to = buffers_.part,
                                   .to_stride = columns,
                                   .rows = rows,
                                   .columns = columns},
                                  launch));
    part = buffers_.part;
  }
  const bool in_place = rows == 1 && args.out != nullptr;
  ESP_RETURN_IF_ERROR(group_.call("all_gather", [&] {
    return group_.library_.all_gather(part, in_place ? args.out : buffers_.gathered,
                                      size_t(rows) * size_t(columns) * dtype_size(args.type),
                                      NcclLibrary::kBytes, comm_, launch.stream);
  }));
  if (in_place || args.out == nullptr) return {};
  return copy_rows({.type = args.type,
                    .from = buffers_.gathered,
                    .from_stride = columns,
                    .from_part = int64_t{rows} * columns,
                    .to = args.out,
                    .to_stride = args.out_stride,
                    .rows = rows,
                    .columns = columns,
                    .parts = ranks_.num_ranks},
                   launch);
}

template <typename Make>
Status NcclRank::each_part(const char* what, const RankRowsArgs& args, const Make& make) const {
  ESP_RETURN_IF_ERROR(check_rank_rows(what, args, ranks_));
  return group_.call(what, [&] {
    const NcclLibrary& library = group_.library_;
    int first = library.group_start();
    auto* rows = static_cast<std::byte*>(args.all);
    for (int32_t rank = 0; rank < ranks_.num_ranks && first == 0; ++rank) {
      const size_t elements = size_t(args.counts[rank]) * size_t(args.columns);
      if (elements > 0) first = make(rank, rows, elements);
      rows += elements * dtype_size(args.type);
    }
    const int ended = library.group_end();
    return first == 0 ? ended : first;
  });
}

Status NcclRank::gather_rows(const RankRowsArgs& args, const LaunchOptions& launch) {
  return each_part("gather_rows", args, [&](int32_t rank, std::byte* rows, size_t elements) {
    return group_.library_.broadcast(rank == ranks_.rank ? args.own : rows, rows, elements,
                                     nccl_type(args.type), rank, comm_, launch.stream);
  });
}

Status NcclRank::scatter_sums(const RankRowsArgs& args, const LaunchOptions& launch) {
  return each_part("scatter_sums", args, [&](int32_t rank, std::byte* rows, size_t elements) {
    return group_.library_.reduce(rows, rank == ranks_.rank ? args.own : rows, elements,
                                  nccl_type(args.type), NcclLibrary::kSum, rank, comm_,
                                  launch.stream);
  });
}

Status NcclRank::share_tokens(const ShareTokensArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_share_tokens(args, group_.options_.tokens_max));
  if (args.rows == 0) return {};
  int32_t* const tokens = buffers_.tokens;
  if (ranks_.rank == 0) ESP_RETURN_IF_ERROR(pack_slot_tokens(args, tokens, launch));
  ESP_RETURN_IF_ERROR(group_.call("share_tokens", [&] {
    return group_.library_.broadcast(tokens, tokens, size_t(args.rows), NcclLibrary::kInt32, 0,
                                     comm_, launch.stream);
  }));
  return ranks_.rank == 0 ? Status() : unpack_slot_tokens(args, tokens, launch);
}

}  // namespace

Result<std::string> new_nccl_id() {
  ESP_ASSIGN_OR_RETURN(const NcclLibrary* library, nccl_library());
  NcclId id{};
  ESP_RETURN_IF_ERROR(library->status(library->get_unique_id(&id), "join the ranks"));
  return std::string(id.bytes, sizeof id.bytes);
}

Result<std::unique_ptr<DeviceGroup>> DeviceGroup::create_nccl(const DeviceGroupOptions& options,
                                                              const NcclRanks& ranks) {
  if (options.devices.empty() || options.tokens_max < 1)
    return fail(
        invalid_argument("{} ranks, {} tokens", options.devices.size(), options.tokens_max));
  ESP_ASSIGN_OR_RETURN(const NcclLibrary* library, nccl_library());
  std::string bytes = ranks.id;
  if (bytes.empty()) {
    ESP_ASSIGN_OR_RETURN(bytes, new_nccl_id());
  }
  NcclId id{};
  if (bytes.size() != sizeof id.bytes)
    return fail(
        invalid_argument("an id of NCCL has {} bytes, not {}", sizeof id.bytes, bytes.size()));
  std::ranges::copy(bytes, id.bytes);
  auto group = std::make_unique<NcclGroup>(*library, options, ranks);
  ESP_RETURN_IF_ERROR(group->join(id));
  return group;
}

}  // namespace espalier::kernels::cuda
