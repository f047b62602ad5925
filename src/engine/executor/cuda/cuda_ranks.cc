#include "engine/executor/cuda/cuda_ranks.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "models/program/partition.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

constexpr int32_t kSlotsMax = 1 << 16;
constexpr int kPollsBetween = 64;  // of rank 0, between two looks at the other ranks

Status check_devices(const std::vector<int32_t>& devices) {
  const int32_t count = cuda::count_devices();
  if (devices.back() < count) return Status();
  return invalid_argument(
      "tp_size is {}, which takes the GPUs {} to {}, but this system has {}; choose a smaller "
      "--tp-size or another --base-gpu-id",
      devices.size(), devices.front(), devices.back(), count);
}

// Over peer access where the devices have it and NCCL is not wanted; else by NCCL.
Result<std::unique_ptr<kc::DeviceGroup>> make_group(const std::vector<int32_t>& devices, bool nccl,
                                                    const kc::NcclRanks* all) {
  const kc::DeviceGroupOptions options{.devices = devices, .tokens_max = kSlotsMax};
  if (all != nullptr) return kc::DeviceGroup::create_nccl(options, *all);
  if (nccl && devices.size() > 1) return kc::DeviceGroup::create_nccl(options);
  auto group = kc::DeviceGroup::create(options);
  if (group || group.error().code() != StatusCode::kUnavailable) return group;
  auto by_nccl = kc::DeviceGroup::create_nccl(options);
  if (!by_nccl)
    return fail(error(StatusCode::kUnavailable, "{}; and without peer access: {}",
                      group.error().message(), by_nccl.error().message()));
  log_warning("ranks exchange by NCCL reason=\"{}\"", group.error().message());
  return by_nccl;
}

const StepResult& fail_all(const ForwardBatch& batch, const Status& why, StepResult& out) {
  out.step = batch.step;
  out.forward_seconds = 0;
  out.entries.assign(batch.entries.size(), {});
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    out.entries[i].status = why;
    out.entries[i].input_logprobs.resize(batch.entries[i].input_logprob_targets.size());
  }
  return out;
}

}  // namespace

CudaRanks::CudaRanks(const std::vector<int32_t>& devices)
    : devices_(devices),
      models_(devices.size()),
      executors_(devices.size()),
      threads_(static_cast<int32_t>(devices.size())) {}

// What waits for a rank that will not come has to end first.
CudaRanks::~CudaRanks() {
  if (!lost_.ok()) group_->stop();
}

Status CudaRanks::each(std::string_view what, const std::function<Status(int32_t)>& fn) {
  std::mutex mutex;
  Status first;
  threads_.run([&](int32_t rank) {
    Status status = cuda::use_device(devices_[static_cast<size_t>(rank)]);
    if (status.ok()) status = fn(rank);
    if (status.ok()) return;
    const std::lock_guard lock(mutex);
    if (first.ok()) first = status.with_context(fmt::format("rank {}: {}", rank, what));
  });
  return first;
}

Result<std::unique_ptr<CudaRanks>> CudaRanks::begin_load(const ModelPlan& plan,
                                                         const ModelLoadOptions& options,
                                                         const std::vector<int32_t>& devices,
                                                         const kc::NcclRanks* all) {
  ESP_RETURN_IF_ERROR(check_devices(devices));
  std::unique_ptr<CudaRanks> out(new CudaRanks(devices));
  ESP_RETURN_IF_ERROR(out->each("open the GPU", [&](int32_t rank) -> Status {
    const auto info = cuda::open_device(devices[static_cast<size_t>(rank)]);
    return info ? Status() : info.error();
  }));
  ESP_ASSIGN_OR_RETURN(out->group_, make_group(devices, options.nccl, all));
  ESP_RETURN_IF_ERROR(out->each("load the model", [&](int32_t rank) -> Status {
    auto model = CudaDecoder::begin_load(plan, options, {}, {&out->group_->rank(rank)});
    if (!model) return model.error();
    out->models_[static_cast<size_t>(rank)] = *std::move(model);
    return Status();
  }));
  ESP_RETURN_IF_ERROR(out->reserve_moves(options));
  out->own_rows_ = plan.spec.whole_attention;
  out->info_ = describe_model(plan.spec);
  if (plan.spec.whole_attention)
    out->info_.num_loaded_parameters =
        program::num_loaded_parameters(plan.spec, static_cast<int32_t>(devices.size()));
  out->rank_info_ = out->models_.front()->info();
  for (const auto& model : out->models_) {
    const int64_t bytes = model->info().weight_bytes;
    out->info_.weight_bytes += bytes;
    out->rank_info_.weight_bytes = std::max(out->rank_info_.weight_bytes, bytes);
  }
  log_info("ranks={} devices={}-{} collectives=\"{}\" messages_mib={:.1f}", devices.size(),
           devices.front(), devices.back(), out->group_->name(),
           static_cast<double>(out->group_->device_bytes()) / (1 << 20));
  return out;
}

namespace {

// Slots and prompt tokens of a step are divided evenly among ranks that have requests of their own.
CudaExecutorConfig part_of(const CudaExecutorConfig& all, int32_t num_ranks) {
  CudaExecutorConfig own = all;
  own.own_rows = true;
  own.max_slots = std::max(1, all.max_slots / num_ranks);
  own.max_tokens = std::max(1, (all.max_tokens - all.max_slots) / num_ranks) + own.max_slots;
  return own;
}

// Entries of one token each that is sampled, and nothing else: what has graphs (PackedStep).
bool decodes_alone(const ForwardBatch& part) {
  return part.embedding_spans.empty() &&
         std::ranges::all_of(part.entries, [](const BatchEntry& entry) {
           return entry.num_query_tokens == 1 && entry.sample &&
                  entry.input_logprob_targets.empty();
         });
}

// What all ranks know of each other's parts.
void set_rank_step(const ForwardBatch& batch, RankStep& out) {
  out.tokens.clear();
  out.decode = true;
  for (const ForwardBatch& part : batch.ranks) {
    out.tokens.push_back(part.num_tokens());
    out.decode &= decodes_alone(part);
  }
}

// Waits for all. The longest forward is the step's.
const StepResult& join_results(const std::vector<std::unique_ptr<CudaExecutor>>& executors,
                               uint64_t step, StepResult& joined) {
  joined = {.step = step};
  for (const auto& executor : executors) {
    const StepResult& part = executor->wait(step);
    joined.entries.insert(joined.entries.end(), part.entries.begin(), part.entries.end());
    joined.forward_seconds = std::max(joined.forward_seconds, part.forward_seconds);
    if (joined.graph_use == GraphUse::kNone || part.graph_use == GraphUse::kRecorded)
      joined.graph_use = part.graph_use;
  }
  return joined;
}

}  // namespace

Status CudaRanks::reserve_moves(const ModelLoadOptions& options) {
  const RebalanceConfig& config = options.experts.rebalance;
  if (config.num_iterations == 0) return Status();
  moves_ = std::make_unique<Moves>(config, *options.expert_counts);
  for (const auto& model : models_) moves_->slots.push_back(model->expert_slots());
  moves_->streams.resize(models_.size());
  return each("prepare for experts that move", [&](int32_t rank) -> Status {
    const auto at = static_cast<size_t>(rank);
    ESP_ASSIGN_OR_RETURN(moves_->streams[at], cuda::Stream::create());
    return moves_->slots[at]->reserve_moves(devices_);
  });
}

// Reading counts changes the thread's current device.
Status CudaRanks::move_experts() {
  const auto moves = moves_->balancer.next();
  ESP_RETURN_IF_ERROR(cuda::use_device(devices_.front()));
  if (!moves) return moves.error();
  if (moves->empty()) return Status();
  ESP_RETURN_IF_ERROR(each("wait for steps", [&](int32_t rank) { return executor(rank).drain(); }));
  const auto stream = [&](int32_t rank) -> const cuda::Stream& {
    return moves_->streams[static_cast<size_t>(rank)];
  };
  const auto slots = [&](int32_t rank) { return moves_->slots[static_cast<size_t>(rank)]; };
  for (const LayerMove& move : *moves) {
    // The same part of each expert moves: among ranks that have the same features of it.
    const auto num_slices = static_cast<int32_t>(std::ssize(devices_)) / move.shape.num_groups;
    for (const std::vector<SlotCopy>& step : move.copies) {
      const Status copied = each("copy experts", [&](int32_t rank) -> Status {
        for (const SlotCopy& copy : step) {
          if (move.shape.group_of(copy.to) != rank / num_slices) continue;
          const int32_t source = move.shape.group_of(copy.from) * num_slices + rank % num_slices;
          ESP_RETURN_IF_ERROR(slots(rank)->copy(move.layer, copy, *slots(source), stream(rank)));
        }
        return stream(rank).synchronize();
      });
      if (!copied.ok()) return copied;
    }
    ESP_RETURN_IF_ERROR(each("place experts", [&](int32_t rank) {
      return slots(rank)->set(move.layer, move.slots, stream(rank));
    }));
  }
  ESP_RETURN_IF_ERROR(moves_->balancer.moved(*moves));
  return cuda::use_device(devices_.front());
}

std::vector<const CudaDecoder*> CudaRanks::decoders() const {
  std::vector<const CudaDecoder*> out;
  for (const auto& model : models_) out.push_back(model.get());
  return out;
}

Status CudaRanks::set_kv_type(KvType type) {
  for (const auto& model : models_) ESP_RETURN_IF_ERROR(model->set_kv_type(type));
  return Status();
}

Status CudaRanks::reserve(const CudaExecutorConfig& config, std::span<StageLink* const> links) {
  if (const int32_t most = kSlotsMax - config.max_draft_samples; config.max_slots > most) {
    return invalid_argument("max_running_requests is {}, but several GPUs take at most {}",
                            config.max_slots, most);
  }
  if (config.deterministic && !group_->keeps_order()) {
    return error(StatusCode::kUnimplemented,
                 "NCCL adds up {} ranks in an order that changes with a step's size: leave "
                 "--enable-deterministic-inference or --disable-custom-all-reduce out, or use two "
                 "ranks",
                 devices_.size());
  }
  on_device_lost_ = config.on_device_lost;
  in_flight_.assign(static_cast<size_t>(config.max_in_flight), nullptr);
  ESP_RETURN_IF_ERROR(each("take memory", [&](int32_t rank) -> Status {
    CudaExecutorConfig own =
        own_rows_ ? part_of(config, static_cast<int32_t>(devices_.size())) : config;
    own.collective = &group_->rank(rank);
    own.on_device_lost = [this](const Status&) { group_->stop(); };
    const auto at = static_cast<size_t>(rank);
    if (!links.empty()) own.stage_link = links[at];
    auto executor = CudaExecutor::create(std::move(models_[at]), own);
    if (!executor) return executor.error();
    executors_[at] = *std::move(executor);
    return Status();
  }));
  return group_->connect();
}

Result<int64_t> CudaRanks::kv_budget_bytes() {
  std::vector<int64_t> budgets(executors_.size());
  ESP_RETURN_IF_ERROR(each("measure memory", [&](int32_t rank) -> Status {
    const auto budget = executor(rank).kv_budget_bytes();
    if (!budget) return budget.error();
    budgets[static_cast<size_t>(rank)] = *budget;
    return Status();
  }));
  return *std::ranges::min_element(budgets);
}

Status CudaRanks::allocate_kv(const KvPoolConfig& config) {
  KvPoolConfig own = config;
  if (own_rows_) {
    own.num_pages /= static_cast<int32_t>(devices_.size());
    own.num_window_pages /= static_cast<int32_t>(devices_.size());
  }
  return each("keys and values", [&](int32_t rank) { return executor(rank).allocate_kv(own); });
}

Status CudaRanks::warm_up() {
  return each("warm up", [&](int32_t rank) { return executor(rank).warm_up(); });
}

Status CudaRanks::finish_loading() {
  return each("load the model", [&](int32_t rank) { return executor(rank).finish_loading(); });
}

void CudaRanks::launch(const ForwardBatch& batch) {
  in_flight_[batch.step % in_flight_.size()] = &batch;
  if (!lost_.ok()) return;
  if (moves_ != nullptr) {
    if (const Status status = move_experts(); !status.ok()) {
      static_cast<void>(lose(status));
      return;
    }
  }
  if (own_rows_) set_rank_step(batch, rank_step_);
  threads_.run([&](int32_t rank) {
    if (own_rows_)
      executor(rank).launch(batch.ranks[static_cast<size_t>(rank)], batch.step, rank_step_);
    else
      executor(rank).launch(batch);
  });
}

void CudaRanks::provide_masks(uint64_t step, const MaskView& masks) {
  if (!lost_.ok()) return;
  if (!own_rows_) return executor(0).provide_masks(step, masks);
  const ForwardBatch& batch = *in_flight_[step % in_flight_.size()];
  std::span<const uint32_t> left = masks.words;
  for (size_t rank = 0; rank < executors_.size(); ++rank) {
    const auto count = static_cast<size_t>(
        std::ranges::count(batch.ranks[rank].entries, true, &BatchEntry::has_mask));
    if (count == 0) continue;
    const size_t words = count * static_cast<size_t>(masks.words_per_mask);
    executors_[rank]->provide_masks(
        step, {.words = left.first(words), .words_per_mask = masks.words_per_mask});
    left = left.subspan(words);
  }
  static_cast<void>(cuda::use_device(devices_.front()));  // as it was
}

// A failure of another rank shows in its own events alone, while rank 0 waits for it on the device.
void CudaRanks::wait_for_all(uint64_t step) {
  for (int polls = 0;; ++polls) {
    const Result<bool> done = executor(0).is_done(step);
    if (!done || *done) break;
    if (polls % kPollsBetween != 0) continue;
    for (size_t rank = 1; rank < executors_.size(); ++rank) {
      static_cast<void>(executors_[rank]->is_done(step));
    }
  }
  if (own_rows_) return;  // join_results() waits for all
  for (size_t rank = 1; rank < executors_.size(); ++rank) executors_[rank]->wait(step);
}

// After all ranks have ended the step.
Status CudaRanks::status_of(uint64_t step) {
  for (size_t rank = 0; rank < executors_.size(); ++rank) {
    const Result<bool> done = executors_[rank]->is_done(step);
    if (!done) return done.error().with_context(fmt::format("rank {}", rank));
  }
  return group_->status();
}

const StepResult& CudaRanks::wait(uint64_t step) {
  const ForwardBatch& batch = *in_flight_[step % in_flight_.size()];
  ESP_CHECK(batch.step == step, "step {} is not in flight", step);
  if (!lost_.ok()) return fail_all(batch, lost_, failed_);
  wait_for_all(step);
  const StepResult& result =
      own_rows_ ? join_results(executors_, step, joined_) : executor(0).wait(step);
  const Status status = status_of(step);
  if (status.ok()) return result;
  static_cast<void>(lose(status));
  return fail_all(batch, lost_, failed_);
}

Status CudaRanks::copy_pages(std::span<const PageId> from, std::span<const PageId> to) {
  ESP_RETURN_IF_ERROR(lost_);
  for (const auto& executor : executors_) {
    if (const Status status = executor->copy_pages(from, to); !status.ok()) return lose(status);
  }
  return Status();
}

PageCopier* CudaRanks::page_copier() {
  if (page_copier_ != nullptr) return page_copier_.get();
  std::vector<PageCopier*> copiers;
  for (const auto& executor : executors_) copiers.push_back(executor->page_copier());
  static_cast<void>(cuda::use_device(devices_.front()));  // as it was
  if (std::ranges::count(copiers, nullptr) == 0)
    page_copier_ = std::make_unique<RanksPageCopier>(std::move(copiers));
  return page_copier_.get();
}

// A rank that keeps its memory would be found by the next call, so what was released is restored.
Result<int64_t> CudaRanks::release_memory() {
  int64_t bytes = 0;
  for (size_t i = 0; i < executors_.size(); ++i) {
    const Result<int64_t> released = executors_[i]->release_memory();
    if (released) {
      bytes += *released;
      continue;
    }
    while (i > 0) ESP_RETURN_IF_ERROR(executors_[--i]->restore_memory());
    return fail(released.error());
  }
  return bytes;
}

Status CudaRanks::restore_memory() {
  for (size_t i = 0; i < executors_.size(); ++i) {
    const Status status = executors_[i]->restore_memory();
    if (status.ok()) continue;
    while (i > 0) {
      ESP_ASSIGN_OR_RETURN(const int64_t bytes, executors_[--i]->release_memory());
      static_cast<void>(bytes);
    }
    return status;
  }
  return Status();
}

Status CudaRanks::lose(const Status& status) {
  if (!lost_.ok()) return lost_;
  lost_ = status;
  group_->stop();
  log_error("ranks lost error=\"{}\"", lost_.message());
  if (on_device_lost_) on_device_lost_(lost_);
  return lost_;
}

}  // namespace espalier
