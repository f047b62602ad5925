#include "engine/executor/cuda/cuda_stages.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "models/program/stages.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

// Tokens from which on GEMMs of a micro-batch are about as fast as those of a whole chunk.
constexpr int32_t kTokensMin = 1024;
// Entries of a micro-batch from which on a step that decodes is cut, into as many as there are
// stages: each stage then reads its weights once for each micro-batch.
constexpr int32_t kEntriesMin = 16;
// With so many micro-batches for each stage, stages wait for a fifth of a step at most.
constexpr int32_t kMicroBatchesPerStage = 4;

int32_t micro_batches_max(const CudaStagesConfig& config) {
  return static_cast<int32_t>(config.devices.size()) * kMicroBatchesPerStage;
}

Status check_devices(const CudaStagesConfig& config) {
  int32_t last = 0;
  for (const std::vector<int32_t>& devices : config.devices)
    last = std::max(last, std::ranges::max(devices));
  const int32_t first = config.devices.front().front(), count = cuda::count_devices();
  if (last < count) return Status();
  return invalid_argument(
      "pp_size is {} with tp_size {}, which takes the GPUs {} to {}, but this system has {}; "
      "choose "
      "a smaller --pp-size or --tp-size, or another --base-gpu-id",
      config.devices.size(), config.devices.front().size(), first, last, count);
}

}  // namespace

CudaStages::CudaStages(const ModelPlan& plan, const CudaStagesConfig& config)
    : config_(config),
      info_(describe_model(plan.spec)),
      steps_(Executor::kMaxInFlight + 1,
             StagedStep(MicroBatches(
                 config.micro_batch_tokens > 0 ? config.micro_batch_tokens : kTokensMin,
                 micro_batches_max(config), token_costs(plan.spec),
                 {.entries_min = kEntriesMin,
                  .count_max = static_cast<int32_t>(config.devices.size())}))) {}

Result<std::unique_ptr<CudaStages>> CudaStages::begin_load(const ModelPlan& plan,
                                                           const ModelLoadOptions& options,
                                                           const CudaStagesConfig& config) {
  const auto num_stages = static_cast<int32_t>(config.devices.size());
  ESP_RETURN_IF_ERROR(program::check_stages(plan.spec, num_stages));
  ESP_RETURN_IF_ERROR(check_devices(config));
  std::unique_ptr<CudaStages> out(new CudaStages(plan, config));
  std::vector<DecoderSpec> specs =
      program::divide_layers(plan.spec, num_stages, program::StageBalance::kPrompts);
  for (size_t i = 0; i < specs.size(); ++i) {
    ModelPlan own = plan;
    own.spec = std::move(specs[i]);
    ModelLoadOptions own_options = options;
    if (i > 0) own_options.progress = [](int64_t, int64_t) {};  // the first stage reports
    const auto first = own.spec.stage.first_layer;
    const auto count = std::ssize(own.spec.layers);
    auto stage = CudaRanks::begin_load(own, own_options, config.devices[i]);
    if (!stage) return fail(stage.error().with_context("stage " + std::to_string(i)));
    log_info("stage={} layers={}-{} devices={}-{}", i, first, first + count - 1,
             config.devices[i].front(), config.devices[i].back());
    out->info_.weight_bytes += (*stage)->info().weight_bytes;
    out->stages_.push_back(*std::move(stage));
  }
  ESP_RETURN_IF_ERROR(cuda::use_device(config.devices.front().front()));
  return out;
}

std::vector<const CudaDecoder*> CudaStages::decoders() const {
  std::vector<const CudaDecoder*> out;
  for (const auto& stage : stages_) std::ranges::copy(stage->decoders(), std::back_inserter(out));
  return out;
}

Status CudaStages::set_kv_type(KvType type) {
  for (const auto& stage : stages_) ESP_RETURN_IF_ERROR(stage->set_kv_type(type));
  return Status();
}

// A rank of a stage with the same rank of the others.
Status CudaStages::connect(int64_t row_bytes) {
  const int64_t rows = limits_.max_tokens + int64_t{limits_.max_draft_samples};
  for (size_t rank = 0; rank < config_.devices.front().size(); ++rank) {
    StageLinkConfig config{.rows_bytes = rows * row_bytes,
                           .max_slots = limits_.max_slots,
                           .max_in_flight = limits_.max_in_flight};
    for (const std::vector<int32_t>& devices : config_.devices)
      config.devices.push_back(devices[rank]);
    ESP_ASSIGN_OR_RETURN(links_.emplace_back(), StageLink::create(config));
  }
  return Status();
}

Status CudaStages::reserve(const CudaExecutorConfig& config) {
  limits_ = config;
  limits_.max_in_flight = Executor::kMaxInFlight * micro_batches_max(config_);
  on_device_lost_ = config.on_device_lost;
  limits_.on_device_lost = [this](const Status& status) { lose(status); };
  ESP_RETURN_IF_ERROR(
      connect(info_.hidden_size * static_cast<int64_t>(dtype_size(stages_.front()->type()))));
  for (size_t i = 0; i < stages_.size(); ++i) {
    std::vector<StageLink*> links;
    for (const auto& column : links_) links.push_back(column[i].get());
    const Status status = stages_[i]->reserve(limits_, links);
    if (!status.ok()) return status.with_context("stage " + std::to_string(i));
  }
  return Status();
}

Status CudaStages::allocate_kv(std::span<const KvPoolConfig> pools) {
  ESP_CHECK(pools.size() == stages_.size());
  pools_.assign(pools.begin(), pools.end());
  for (size_t i = 0; i < stages_.size(); ++i)
    ESP_RETURN_IF_ERROR(stages_[i]->allocate_kv(pools_[i]));
  return Status();
}

// The steps go through all stages. Where some have pages of windows, these have page tables too.
Status CudaStages::warm_up() {
  const auto windows = std::ranges::find_if(
      pools_, [](const KvPoolConfig& pool) { return !pool.window_layers.empty(); });
  const KvPoolConfig& pool = windows == pools_.end() ? pools_.front() : *windows;
  return run_warm_up_steps(*this, limits_, true, pool, [this] { return lost_; });
}

Status CudaStages::finish_loading() {
  for (const auto& stage : stages_) ESP_RETURN_IF_ERROR(stage->finish_loading());
  return Status();
}

MemoryPlan CudaStages::memory_plan() const {
  const auto left = [](const auto& stage) { return stage->memory_plan().kv; };
  return (*std::ranges::min_element(stages_, {}, left))->memory_plan();
}

void CudaStages::launch(const ForwardBatch& batch) {
  StagedStep& step = step_of(batch.step);
  step.begin(batch, limits_.page_size, num_micro_batches_ + 1);
  num_micro_batches_ += step.size();
  if (!lost_.ok()) return;
  for (size_t i = 0; i < step.size(); ++i)
    for (const auto& stage : stages_) stage->launch(step.micro_batch(i));
}

// A step with masks is one micro-batch, whose last stage samples.
void CudaStages::provide_masks(uint64_t step, const MaskView& masks) {
  if (lost_.ok()) stages_.back()->provide_masks(step_of(step).micro_batch(0).step, masks);
}

// In the order of the stages, so a stage that failed is found before one that waits for it.
const StepResult& CudaStages::wait(uint64_t step) {
  StagedStep& staged = step_of(step);
  ESP_CHECK(staged.result().step == step, "step {} is not in flight", step);
  for (size_t i = 0; i < staged.size() && lost_.ok(); ++i) {
    const StepResult* last = nullptr;
    for (auto stage = stages_.begin(); stage != stages_.end() && lost_.ok(); ++stage)
      last = &(*stage)->wait(staged.micro_batch(i).step);
    if (lost_.ok()) staged.add(i, *last);
  }
  if (!lost_.ok()) staged.fail(lost_);
  return staged.result();
}

Status CudaStages::copy_pages(std::span<const PageId> from, std::span<const PageId> to) {
  ESP_RETURN_IF_ERROR(lost_);
  for (const auto& stage : stages_) ESP_RETURN_IF_ERROR(stage->copy_pages(from, to));
  return Status();
}

PageCopier* CudaStages::page_copier() {
  if (page_copier_ != nullptr) return page_copier_.get();
  std::vector<PageCopier*> copiers;
  for (const auto& stage : stages_) copiers.push_back(stage->page_copier());
  static_cast<void>(cuda::use_device(config_.devices.front().front()));  // as it was
  if (std::ranges::count(copiers, nullptr) == 0)
    page_copier_ = std::make_unique<RanksPageCopier>(std::move(copiers));
  return page_copier_.get();
}

// As CudaRanks's: what was released is restored where one of them fails.
Result<int64_t> CudaStages::release_memory() {
  int64_t bytes = 0;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const Result<int64_t> released = stages_[i]->release_memory();
    if (released) {
      bytes += *released;
      continue;
    }
    while (i > 0) ESP_RETURN_IF_ERROR(stages_[--i]->restore_memory());
    return fail(released.error());
  }
  return bytes;
}

Status CudaStages::restore_memory() {
  for (size_t i = 0; i < stages_.size(); ++i) {
    const Status status = stages_[i]->restore_memory();
    if (status.ok()) continue;
    while (i > 0) {
      const Result<int64_t> bytes = stages_[--i]->release_memory();
      if (!bytes) return bytes.error();
    }
    return status;
  }
  return Status();
}

void CudaStages::lose(const Status& status) {
  if (!lost_.ok()) return;
  lost_ = status;
  log_error("stages lost error=\"{}\"", lost_.message());
  if (on_device_lost_) on_device_lost_(lost_);
}

}  // namespace espalier
