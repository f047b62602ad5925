#include "models/expert_locations.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/json_object.h"

namespace espalier {
namespace {

constexpr const char* kSlots = "physical_to_logical_map";  // [layers][slots]: experts
constexpr const char* kTokens = "logical_count";           // [layers][experts]: tokens

// A file with one of these fields.
struct LocationFile {
  std::string name;
  std::vector<std::vector<int64_t>> slots, tokens;
};

Result<LocationFile> read_file(const std::string& path, size_t num_layers) {
  ESP_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::read(path));
  LocationFile out{.name = path};
  const bool has_slots = json.has(kSlots);
  if (!has_slots && !json.has(kTokens))
    return fail(invalid_argument("init_expert_location: {} has neither '{}' nor '{}'", path, kSlots,
                                 kTokens));
  auto& lists = has_slots ? out.slots : out.tokens;
  ESP_ASSIGN_OR_RETURN(lists, json.integer_lists(has_slots ? kSlots : kTokens));
  if (lists.size() != num_layers)
    return fail(invalid_argument("init_expert_location: {} is of {} layers, but the model has {}",
                                 path, lists.size(), num_layers));
  return out;
}

Result<ExpertSlots> slots_of(const LocationFile& file, size_t layer, const PlacementShape& shape) {
  if (!file.slots.empty()) {
    const ExpertSlots slots(file.slots[layer].begin(), file.slots[layer].end());
    if (is_placement(shape, slots)) return slots;
    return fail(invalid_argument(
        "init_expert_location: '{}' of layer {} in {} is no placement of {} experts in {} slots, "
        "each expert at most once in each of {} groups",
        kSlots, layer, file.name, shape.num_experts, shape.num_slots, shape.num_groups));
  }
  const std::vector<int64_t>& tokens = file.tokens[layer];
  if (std::ssize(tokens) != shape.num_experts || std::ranges::any_of(tokens, [](int64_t count) {
        return count < 0 || count > int64_t{1} << 50;
      }))
    return fail(invalid_argument(
        "init_expert_location: '{}' of layer {} in {} must be the tokens of {} experts", kTokens,
        layer, file.name, shape.num_experts));
  return balanced_placement(shape, tokens, even_placement(shape));
}

}  // namespace

Status place_experts(const ExpertLocations& locations, DecoderSpec& spec) {
  if (!locations.places()) return {};
  std::optional<LocationFile> file;
  if (!locations.init.empty()) {
    ESP_ASSIGN_OR_RETURN(file, read_file(locations.init, spec.layers.size()));
  }
  bool has_experts = false;
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    if (!spec.layers[layer].experts) continue;
    has_experts = true;
    ExpertsSpec& experts = *spec.layers[layer].experts;
    const int32_t num_experts = experts.router.num_experts;
    const PlacementShape shape{.num_experts = num_experts,
                               .num_slots = num_experts + locations.num_redundant,
                               .num_groups = spec.expert_groups};
    ESP_RETURN_IF_ERROR(check_placement(shape));
    experts.slots = even_placement(shape);
    if (!file) continue;
    ESP_ASSIGN_OR_RETURN(experts.slots, slots_of(*file, layer, shape));
  }
  if (has_experts) return {};
  return invalid_argument(
      "the model has no experts: leave --ep-num-redundant-experts, --enable-eplb and "
      "--init-expert-location out");
}

}  // namespace espalier
