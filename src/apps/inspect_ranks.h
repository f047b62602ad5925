// For espalier inspect: what each rank, and each stage of a pipeline, has of a model that several
// divide.
#pragma once

#include <boost/json/array.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/model.h"
#include "models/program/stages.h"

namespace espalier::apps {

// Of the last layer, which has experts where the model has some. Sizes that it lacks are 0.
struct RankShare {
  int32_t num_heads = 0, num_kv_heads = 0;
  int32_t num_features = 0;                   // of the MLP, or of the shared expert
  int32_t first_expert = 0, num_experts = 0;  // slots, where experts are redundant or move
  bool has_slots = false;
  int32_t num_expert_features = 0;
};

// For tp_size ranks, in their order; none for one rank. Reads config.json. kInvalidArgument says
// what of the model is not divided by so many.
Result<std::vector<RankShare>> share_among_ranks(const ModelLoadOptions& options, int32_t tp_size);

struct StageShare {
  int32_t first_layer = 0, num_layers = 0;
  bool embeds = false, samples = false;
  double of_step = 0;  // its part of a step's counted cost
};

// For pp_size stages, in their order; none for one. As share_among_ranks().
Result<std::vector<StageShare>> share_among_stages(const ModelLoadOptions& options, int32_t pp_size,
                                                   program::StageBalance balance);

std::string describe(const RankShare& share);
std::string describe(const StageShare& share);
boost::json::array ranks_json(const std::vector<RankShare>& shares);
boost::json::array stages_json(const std::vector<StageShare>& shares);

}  // namespace espalier::apps
