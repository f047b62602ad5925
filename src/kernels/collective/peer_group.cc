// The ranks of one process: memory through which their kernels meet, and which kernel a call takes.
#include <algorithm>
#include <atomic>
#include <span>
#include <utility>

#include "kernels/collective/collective_args.h"
#include "kernels/collective/kernels.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/memory.h"

namespace espalier::kernels::cuda {
namespace {

namespace ec = espalier::cuda;

class PeerGroup;

class PeerRank final : public DeviceCollective {
 public:
  PeerRank(PeerGroup& group, Ranks ranks) : group_(group), ranks_(ranks) {}

  Ranks ranks() const override { return ranks_; }
  void set_buffers(std::vector<const void*> buffers) override { buffers_ = std::move(buffers); }
  Status all_reduce(const AllReduceArgs& args, const LaunchOptions& launch) override;
  Status all_gather(const AllGatherArgs& args, const LaunchOptions& launch) override;
  Status gather_rows(const RankRowsArgs& args, const LaunchOptions& launch) override;
  Status scatter_sums(const RankRowsArgs& args, const LaunchOptions& launch) override;
  Status share_tokens(const ShareTokensArgs& args, const LaunchOptions& launch) override;

 private:
  friend class PeerGroup;
  Result<PeerBuffers> peers_of(const void* own) const;

  PeerGroup& group_;
  const Ranks ranks_;
  ec::DeviceBuffer block_;
  PeerView view_{};
  std::vector<const void*> buffers_;
};

class PeerGroup final : public DeviceGroup {
 public:
  explicit PeerGroup(const DeviceGroupOptions& options)
      : options_(options), message_bytes_(options.message_bytes_max) {
    const auto num_ranks = static_cast<int32_t>(options.devices.size());
    for (int32_t r = 0; r < num_ranks; ++r)
      ranks_.push_back(std::make_unique<PeerRank>(*this, Ranks{r, num_ranks}));
  }
  Status allocate();

  std::string_view name() const override { return "peer access"; }
  bool keeps_order() const override { return true; }
  DeviceCollective& rank(int32_t rank) override { return *ranks_[static_cast<size_t>(rank)]; }
  Status connect() override;
  void set_message_bytes(int64_t bytes) override {
    message_bytes_ = std::clamp<int64_t>(bytes, 0, options_.message_bytes_max);
  }
  int64_t message_bytes() const override { return message_bytes_; }
  void stop() override { std::atomic_ref(control().stop).store(1); }
  Status status() const override;
  int64_t device_bytes() const override { return ranks_.front()->block_.size_bytes(); }

 private:
  friend class PeerRank;
  struct Parts {
    RankCounters* counters = nullptr;
    RankFlags* flags = nullptr;
    uint64_t* mailbox = nullptr;
    std::byte* inbox = nullptr;
  };
  Parts lay_out(ec::Arena& arena) const;
  int64_t inbox_bytes() const {
    return int64_t{kMessageBuffers} * std::ssize(ranks_) * options_.message_bytes_max;
  }
  Status allow_access() const;
  GroupControl& control() const { return *reinterpret_cast<GroupControl*>(control_.data()); }

  const DeviceGroupOptions options_;
  int64_t message_bytes_;
  ec::PinnedBuffer control_;
  std::vector<std::unique_ptr<PeerRank>> ranks_;
  std::vector<std::vector<const void*>> connected_;  // of each rank its buffers
};

PeerGroup::Parts PeerGroup::lay_out(ec::Arena& arena) const {
  return {.counters = arena.take<RankCounters>(1),
          .flags = arena.take<RankFlags>(1),
          .mailbox = arena.take<uint64_t>(options_.tokens_max),
          .inbox = arena.take<std::byte>(inbox_bytes())};
}

Status PeerGroup::allow_access() const {
  for (const int32_t device : options_.devices) {
    ESP_RETURN_IF_ERROR(ec::use_device(device));
    for (const int32_t peer : options_.devices)
      if (peer != device) ESP_RETURN_IF_ERROR(ec::allow_peer_access(peer));
  }
  return {};
}

Status PeerGroup::allocate() {
  const ec::RestoredDevice restored;
  ESP_RETURN_IF_ERROR(allow_access());
  ESP_ASSIGN_OR_RETURN(control_,
                       ec::PinnedBuffer::allocate(sizeof(GroupControl), "the ranks' state"));
  control() = {};
  std::vector<Parts> parts;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ESP_RETURN_IF_ERROR(ec::use_device(options_.devices[r]));
    ec::Arena measured;
    lay_out(measured);
    ec::DeviceBuffer& block = ranks_[r]->block_;
    ESP_ASSIGN_OR_RETURN(
        block, ec::DeviceBuffer::allocate(measured.used_bytes(), "messages between ranks"));
    ec::Arena arena(block.data());
    parts.push_back(lay_out(arena));
    ESP_ASSIGN_OR_RETURN(const ec::Stream stream, ec::Stream::create());
    ESP_RETURN_IF_ERROR(ec::fill_bytes(block.data(), 0, block.size_bytes(), stream));
    ESP_RETURN_IF_ERROR(
        clear_messages(parts.back().inbox, inbox_bytes(), {.stream = stream.get()}));
    ESP_RETURN_IF_ERROR(stream.synchronize());
  }
  for (size_t r = 0; r < ranks_.size(); ++r) {
    PeerView& view = ranks_[r]->view_;
    view = {.rank = static_cast<int32_t>(r),
            .num_ranks = static_cast<int32_t>(ranks_.size()),
            .counters = parts[r].counters,
            .message_capacity = options_.message_bytes_max,
            .control = &control(),
            .stall_nanoseconds = static_cast<uint64_t>(options_.stall_seconds * 1e9)};
    for (size_t p = 0; p < parts.size(); ++p) {
      view.flags[p] = parts[p].flags;
      view.inbox[p] = parts[p].inbox;
      view.mailbox[p] = parts[p].mailbox;
    }
  }
  return {};
}

Status PeerGroup::connect() {
  connected_.clear();
  for (const auto& rank : ranks_) {
    if (rank->buffers_.size() != ranks_.front()->buffers_.size())
      return invalid_argument("rank {} has {} buffers for collectives, but rank 0 has {}",
                              rank->ranks_.rank, rank->buffers_.size(),
                              ranks_.front()->buffers_.size());
    connected_.push_back(rank->buffers_);
  }
  return {};
}

Status PeerGroup::status() const {
  const int32_t stalled = std::atomic_ref(control().stalled).load();
  if (stalled == 0) return {};
  return error(StatusCode::kDeadlineExceeded, "rank {} waited {} s for rank {} in a collective",
               stalled - 1, options_.stall_seconds, control().stalled_for);
}

Result<PeerBuffers> PeerRank::peers_of(const void* own) const {
  const auto found = std::ranges::find(buffers_, own);
  if (found == buffers_.end() || group_.connected_.empty())
    return fail(error(StatusCode::kInternal,
                      "rank {}: a collective's buffer is not known to the other ranks",
                      ranks_.rank));
  const auto index = static_cast<size_t>(found - buffers_.begin());
  PeerBuffers out{};
  for (size_t r = 0; r < group_.connected_.size(); ++r)
    out.of[r] = const_cast<void*>(group_.connected_[r][index]);
  return out;
}

Status PeerRank::all_reduce(const AllReduceArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_all_reduce(args));
  if (args.rows == 0) return {};
  const int64_t elements = int64_t{args.rows} * args.dim;
  const int64_t bytes = elements * static_cast<int64_t>(dtype_size(args.type));
  if (bytes <= group_.message_bytes_) return all_reduce_messages(view_, args, launch);
  ESP_ASSIGN_OR_RETURN(const PeerBuffers buffers, peers_of(args.x));
  ESP_RETURN_IF_ERROR(all_reduce_in_place(view_, buffers, args.type, elements, launch));
  return finish_all_reduce(args, launch);
}

Status PeerRank::all_gather(const AllGatherArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_all_gather(args, ranks_.num_ranks));
  if (args.rows == 0) return {};
  ESP_ASSIGN_OR_RETURN(const PeerBuffers parts, peers_of(args.part));
  return gather_parts(view_, parts, args, launch);
}

Status PeerRank::gather_rows(const RankRowsArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_rank_rows("gather_rows", args, ranks_));
  if (std::ranges::max(args.counts) == 0) return {};
  ESP_ASSIGN_OR_RETURN(const PeerBuffers own, peers_of(args.own));
  return gather_rank_rows(view_, own, args, launch);
}

Status PeerRank::scatter_sums(const RankRowsArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_rank_rows("scatter_sums", args, ranks_));
  if (std::ranges::max(args.counts) == 0) return {};
  ESP_ASSIGN_OR_RETURN(const PeerBuffers all, peers_of(args.all));
  return sum_rank_rows(view_, all, args, launch);
}

Status PeerRank::share_tokens(const ShareTokensArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_share_tokens(args, group_.options_.tokens_max));
  if (args.rows == 0) return {};
  return share_slot_tokens(view_, args, launch);
}

}  // namespace

Result<std::unique_ptr<DeviceGroup>> DeviceGroup::create(const DeviceGroupOptions& options) {
  const auto num_ranks = std::ssize(options.devices);
  if (num_ranks < 1 || num_ranks > kRanksMax)
    return fail(
        invalid_argument("{} ranks, but GPUs of one process can be 1 to {}", num_ranks, kRanksMax));
  if (options.message_bytes_max % 16 != 0 || options.tokens_max < 1)
    return fail(invalid_argument("messages of {} bytes, {} tokens", options.message_bytes_max,
                                 options.tokens_max));
  auto group = std::make_unique<PeerGroup>(options);
  ESP_RETURN_IF_ERROR(group->allocate());
  return group;
}

}  // namespace espalier::kernels::cuda
