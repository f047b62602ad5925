#include "models/test_adapter.h"

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "checkpoint/adapter_writer.h"
#include "checkpoint/checkpoint.h"

namespace espalier {

void write_test_adapter(const std::filesystem::path& model, uint64_t seed,
                        const std::filesystem::path& folder, int32_t rank) {
  const auto checkpoint = Checkpoint::open(model);
  ESP_CHECK(checkpoint.has_value(), "{}", model.string());
  // Of any rank B A is about as large.
  const double deviation = 0.2 / std::sqrt(static_cast<double>(rank));
  Rng rng(seed);
  std::vector<AdapterFactors> modules;
  for (const CheckpointTensor& t : checkpoint->tensors()) {
    if (t.shape.size() != 2 || t.name.find(".experts.") != std::string::npos) continue;
    for (const std::string_view end :
         {"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}) {
      const std::string suffix = std::string(end) + ".weight";
      if (!t.name.ends_with(suffix)) continue;
      modules.push_back(random_factors(rng, t.name.substr(0, t.name.size() - 7), rank, t.shape[1],
                                       t.shape[0], deviation));
    }
  }
  write_adapter(folder, modules, rank, 2 * rank);
}

}  // namespace espalier
