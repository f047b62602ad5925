#include "models/test_adapter.h"

#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "checkpoint/adapter_writer.h"
#include "checkpoint/checkpoint.h"

namespace espalier {

void write_test_adapter(const std::filesystem::path& model, uint64_t seed,
                        const std::filesystem::path& folder) {
  constexpr int64_t kTestRank = 4;
  const auto checkpoint = Checkpoint::open(model);
  ESP_CHECK(checkpoint.has_value(), "{}", model.string());
  Rng rng(seed);
  std::vector<AdapterFactors> modules;
  for (const CheckpointTensor& t : checkpoint->tensors()) {
    if (t.shape.size() != 2) continue;
    for (const std::string_view end :
         {"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}) {
      const std::string suffix = std::string(end) + ".weight";
      if (!t.name.ends_with(suffix)) continue;
      modules.push_back(random_factors(rng, t.name.substr(0, t.name.size() - 7), kTestRank,
                                       t.shape[1], t.shape[0], 0.1));
    }
  }
  write_adapter(folder, modules, kTestRank, 2 * kTestRank);
}

}  // namespace espalier
