// Experts of a CPU model that change places with those of other ranks.
#include "base/check.h"
#include "models/program/cpu_model.h"

namespace espalier::program {
namespace {

Status copy_mlp(kernels::CpuBackend& backend, const MlpWeights& from, MlpWeights& to) {
  ESP_RETURN_IF_ERROR(to.gate_up.copy_from(backend, from.gate_up));
  ESP_RETURN_IF_ERROR(to.down.copy_from(backend, from.down));
  to.gate_up_bias = from.gate_up_bias;
  to.down_bias = from.down_bias;
  return Status();
}

size_t matrix_bytes(const MlpWeights& mlp) {
  return mlp.gate_up.size_bytes() + mlp.down.size_bytes();
}

}  // namespace

// The largest expert has room for all.
Status CpuModel::reserve_spare_expert() {
  const MlpWeights* largest = nullptr;
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    const std::vector<MlpWeights>& experts = weights_.layers[layer].experts.experts;
    for (const MlpWeights& expert : experts) {
      if (matrix_bytes(expert) != matrix_bytes(experts.front()))
        return error(StatusCode::kUnimplemented,
                     "experts of layer {} are stored in different formats, so they cannot change "
                     "places: leave --enable-eplb out",
                     layer);
    }
    if (experts.empty()) continue;
    if (largest == nullptr || matrix_bytes(experts.front()) > matrix_bytes(*largest))
      largest = &experts.front();
  }
  ESP_CHECK(largest != nullptr);
  return copy_mlp(*backend_, *largest, storage_.spare_expert);
}

MlpWeights& CpuModel::expert_in(int32_t layer, int32_t slot) {
  const ExpertsSpec& spec = *spec_.layers[static_cast<size_t>(layer)].experts;
  if (slot >= spec.num_slots()) return storage_.spare_expert;
  auto& experts = weights_.layers[static_cast<size_t>(layer)].experts.experts;
  return experts[static_cast<size_t>(slot - spec.first_local)];
}

void CpuModel::copy_expert(int32_t layer, const SlotCopy& copy, CpuModel& source) {
  const Status status =
      copy_mlp(*backend_, source.expert_in(layer, copy.from), expert_in(layer, copy.to));
  ESP_CHECK(status.ok(), "{}: slots of a layer are of one size", status.message());
}

void CpuModel::set_expert_slots(int32_t layer, const ExpertSlots& slots) {
  const auto at = static_cast<size_t>(layer);
  storage_.whole.layers[at].experts->slots = slots;
  ExpertsSpec& spec = *spec_.layers[at].experts;
  spec.slots = slots;
  weights_.layers[at].experts.replicas = replica_table(spec.router.num_experts, slots);
}

}  // namespace espalier::program
