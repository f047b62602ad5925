#include "engine/executor/cuda/cuda_stages.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "models/program/stages.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

Status check_stage_devices(const std::vector<int32_t>& devices) {
  const int32_t count = cuda::count_devices();
  if (devices.back() < count) return Status();
  return invalid_argument(
      "pp_size is {}, which takes the GPUs {} to {}, but this system has {}; choose a smaller "
      "--pp-size or another --base-gpu-id",
      devices.size(), devices.front(), devices.back(), count);
}

}  // namespace

CudaStages::CudaStages(const std::vector<int32_t>& devices)
    : devices_(devices),
      models_(devices.size()),
      links_(devices.size()),
      executors_(devices.size()),
      stage_infos_(devices.size()),
      threads_(static_cast<int32_t>(devices.size())) {}

// Each executor waits for what its stream still does with the links.
CudaStages::~CudaStages() { executors_.clear(); }

Status CudaStages::each(std::string_view what, const std::function<Status(int32_t)>& fn) {
  std::mutex mutex;
  Status first;
  threads_.run([&](int32_t stage) {
    Status status = cuda::use_device(devices_[static_cast<size_t>(stage)]);
    if (status.ok()) status = fn(stage);
    if (status.ok()) return;
    const std::lock_guard lock(mutex);
    if (first.ok()) first = status.with_context(fmt::format("stage {}: {}", stage, what));
  });
  return first;
}

// Copies between devices without this go through the host's memory.
Status CudaStages::allow_access(int32_t stage) const {
  for (const int32_t device : devices_) {
    if (device == devices_[static_cast<size_t>(stage)]) continue;
    const Status status = cuda::allow_peer_access(device);
    if (!status.ok() && status.code() != StatusCode::kUnavailable) return status;
    if (!status.ok())
      log_warning("stage {} reaches GPU {} through the host's memory alone: {}", stage, device,
                  status.message());
  }
  return Status();
}

Result<std::unique_ptr<CudaStages>> CudaStages::begin_load(const ModelPlan& plan,
                                                           const ModelLoadOptions& options,
                                                           const std::vector<int32_t>& devices) {
  ESP_RETURN_IF_ERROR(program::check_stages(plan.spec, static_cast<int32_t>(devices.size())));
  ESP_RETURN_IF_ERROR(check_stage_devices(devices));
  std::unique_ptr<CudaStages> out(new CudaStages(devices));
  ESP_RETURN_IF_ERROR(out->each("open the GPU", [&](int32_t stage) -> Status {
    const auto info = cuda::open_device(devices[static_cast<size_t>(stage)]);
    if (!info) return info.error();
    return out->allow_access(stage);
  }));
  const std::vector<DecoderSpec> specs = program::divide_layers(plan.spec, out->num_stages());
  ESP_RETURN_IF_ERROR(out->each("load the model", [&](int32_t stage) -> Status {
    const auto at = static_cast<size_t>(stage);
    ModelPlan own = plan;
    own.spec = specs[at];
    ModelLoadOptions of_stage = options;
    if (stage > 0) of_stage.progress = [](int64_t, int64_t) {};  // the first one reports
    ESP_ASSIGN_OR_RETURN(out->models_[at], CudaDecoder::begin_load(std::move(own), of_stage));
    return Status();
  }));
  out->row_bytes_ = plan.spec.hidden_size * static_cast<int64_t>(dtype_size(plan.type));
  out->info_ = describe_model(plan.spec);
  std::string layers;
  for (size_t i = 0; i < specs.size(); ++i) {
    out->stage_infos_[i] = out->models_[i]->info();
    out->info_.weight_bytes += out->stage_infos_[i].weight_bytes;
    layers += fmt::format("{}{}", i > 0 ? "," : "", specs[i].layers.size());
  }
  log_info("stages={} devices={}-{} layers={}", devices.size(), devices.front(), devices.back(),
           layers);
  return out;
}

std::vector<const CudaDecoder*> CudaStages::decoders() const {
  std::vector<const CudaDecoder*> out;
  for (const auto& model : models_) out.push_back(model.get());
  return out;
}

Status CudaStages::set_kv_type(KvType type) {
  for (const auto& model : models_) ESP_RETURN_IF_ERROR(model->set_kv_type(type));
  return Status();
}

Status CudaStages::reserve(const CudaExecutorConfig& config) {
  on_device_lost_ = config.on_device_lost;
  ESP_RETURN_IF_ERROR(each("take memory", [&](int32_t stage) -> Status {
    const auto at = static_cast<size_t>(stage);
    ESP_ASSIGN_OR_RETURN(links_[at], StageLink::create({.last = stage + 1 == num_stages(),
                                                        .row_bytes = row_bytes_,
                                                        .max_tokens = config.max_tokens,
                                                        .max_slots = config.max_slots}));
    CudaExecutorConfig own = config;
    own.stage = links_[at].get();
    own.on_device_lost = [](const Status&) {};
    ESP_ASSIGN_OR_RETURN(executors_[at], CudaExecutor::create(std::move(models_[at]), own));
    return Status();
  }));
  for (size_t i = 0; i < links_.size(); ++i)
    links_[i]->connect(i > 0 ? links_[i - 1].get() : nullptr, links_.back().get());
  return Status();
}

Result<int64_t> CudaStages::kv_budget_bytes(int32_t stage) {
  const auto at = static_cast<size_t>(stage);
  ESP_RETURN_IF_ERROR(cuda::use_device(devices_[at]));
  const auto budget = executors_[at]->kv_budget_bytes();
  ESP_RETURN_IF_ERROR(cuda::use_device(devices_.front()));
  return budget;
}

Status CudaStages::allocate_kv(const std::function<KvPoolConfig(const ModelInfo&)>& config_of) {
  return each("keys and values", [&](int32_t stage) {
    const auto at = static_cast<size_t>(stage);
    return executors_[at]->allocate_kv(config_of(stage_infos_[at]));
  });
}

// One stage after the other: each finds what the one before it has sent.
Status CudaStages::warm_up() {
  for (size_t i = 0; i < executors_.size(); ++i) {
    ESP_RETURN_IF_ERROR(cuda::use_device(devices_[i]));
    ESP_RETURN_IF_ERROR(executors_[i]->warm_up().with_context(fmt::format("stage {}: warm up", i)));
  }
  return cuda::use_device(devices_.front());
}

Status CudaStages::finish_loading() {
  return each("load the model", [&](int32_t stage) {
    return executors_[static_cast<size_t>(stage)]->finish_loading();
  });
}

// In the order of stages: a stage waits for what the one before it has recorded.
void CudaStages::launch(const ForwardBatch& batch) {
  in_flight_[batch.step % Executor::kMaxInFlight] = &batch;
  if (!lost_.ok()) return;
  for (const auto& executor : executors_) executor->launch(batch);
}

void CudaStages::provide_masks(uint64_t step, const MaskView& masks) {
  if (lost_.ok()) executors_.back()->provide_masks(step, masks);
}

// The first stages end first; what fails there would not end on the later ones.
const StepResult& CudaStages::wait(uint64_t step) {
  const ForwardBatch& batch = *in_flight_[step % Executor::kMaxInFlight];
  ESP_CHECK(batch.step == step, "step {} is not in flight", step);
  if (!lost_.ok()) return failed(batch);
  const StepResult* result = nullptr;
  for (size_t i = 0; i < executors_.size(); ++i) {
    result = &executors_[i]->wait(step);
    const Result<bool> done = executors_[i]->is_done(step);
    if (done) continue;
    static_cast<void>(lose(done.error().with_context(fmt::format("stage {}", i))));
    return failed(batch);
  }
  return *result;
}

const StepResult& CudaStages::failed(const ForwardBatch& batch) {
  failed_.step = batch.step;
  failed_.forward_seconds = 0;
  failed_.entries.assign(batch.entries.size(), {});
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    failed_.entries[i].status = lost_;
    failed_.entries[i].input_logprobs.resize(batch.entries[i].input_logprob_targets.size());
  }
  return failed_;
}

Status CudaStages::copy_pages(std::span<const PageId> from, std::span<const PageId> to) {
  ESP_RETURN_IF_ERROR(lost_);
  for (const auto& executor : executors_) {
    if (const Status status = executor->copy_pages(from, to); !status.ok()) return lose(status);
  }
  return Status();
}

PageCopier* CudaStages::page_copier() {
  if (page_copier_ != nullptr) return page_copier_.get();
  std::vector<PageCopier*> copiers;
  for (const auto& executor : executors_) copiers.push_back(executor->page_copier());
  static_cast<void>(cuda::use_device(devices_.front()));  // as it was
  if (std::ranges::count(copiers, nullptr) == 0)
    page_copier_ = std::make_unique<RanksPageCopier>(std::move(copiers));
  return page_copier_.get();
}

Status CudaStages::lose(const Status& status) {
  if (!lost_.ok()) return lost_;
  lost_ = status;
  log_error("stages lost error=\"{}\"", lost_.message());
  if (on_device_lost_) on_device_lost_(lost_);
  return lost_;
}

}  // namespace espalier
