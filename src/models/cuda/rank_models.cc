#include "models/cuda/rank_models.h"

#include <numeric>
#include <utility>

#include "base/check.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {
namespace kc = kernels::cuda;
}  // namespace

// fn(rank, the rank's model) with the rank's device the current one.
template <typename Fn>
void CudaRankModels::each(const Fn& fn) {
  threads_.run([&](int32_t rank) {
    const Status status = cuda::use_device(rank);
    ESP_CHECK(status.ok(), "{}", status.to_string());
    fn(rank, models_[static_cast<size_t>(rank)]);
  });
}

Result<std::unique_ptr<CudaRankModels>> CudaRankModels::load(const ModelPlan& plan,
                                                             const ModelLoadOptions& options,
                                                             int32_t num_ranks) {
  std::unique_ptr<CudaRankModels> out(new CudaRankModels(num_ranks));
  std::vector<int32_t> devices(static_cast<size_t>(num_ranks));
  std::iota(devices.begin(), devices.end(), 0);
  for (const int32_t device : devices) {
    const auto opened = cuda::open_device(device);
    if (!opened) return fail(opened.error());
  }
  ESP_ASSIGN_OR_RETURN(out->group_,
                       kc::DeviceGroup::create({.devices = devices, .stall_seconds = 20}));
  out->models_.resize(devices.size());
  std::vector<Status> failures(devices.size());
  out->each([&](int32_t rank, std::unique_ptr<CudaTestModel>& model) {
    auto decoder = CudaDecoder::begin_load(plan, options, {}, {&out->group_->rank(rank)});
    Status& failure = failures[static_cast<size_t>(rank)];
    if (!decoder) {
      failure = decoder.error();
    } else if (failure = (*decoder)->finish_loading(); failure.ok()) {
      model = std::make_unique<CudaTestModel>(std::move(*decoder));
    }
  });
  for (Status& failure : failures) {
    if (!failure.ok()) return fail(std::move(failure));
  }
  return out;
}

Status CudaRankModels::reserve(int32_t max_tokens, int32_t max_entries) {
  each([&](int32_t, std::unique_ptr<CudaTestModel>& model) {
    const Status status = model->reserve(max_tokens, max_entries);
    ESP_CHECK(status.ok(), "{}", status.to_string());
  });
  return Status();
}

ForwardOutput CudaRankModels::forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                                      const KvView& kv, const InputLogitsSink& input_logits) {
  each([&](int32_t, std::unique_ptr<CudaTestModel>& model) { model->prepare(kv); });
  const Status connected = group_->connect();
  ESP_CHECK(connected.ok(), "{}", connected.to_string());
  ForwardOutput out;
  each([&](int32_t rank, std::unique_ptr<CudaTestModel>& model) {
    if (rank == 0) {
      out = model->forward(batch, token_ids, kv, input_logits);
    } else {
      model->forward(batch, token_ids, kv, [](int32_t, int32_t, std::span<const float>) {});
    }
  });
  const Status status = group_->status();
  ESP_CHECK(status.ok(), "{}", status.to_string());
  return out;
}

}  // namespace espalier
