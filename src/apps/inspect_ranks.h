// For espalier inspect: what each rank has of a model that several divide.
#pragma once

#include <boost/json/array.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/model.h"

namespace espalier::apps {

// Of the last layer, which has experts where the model has some. Sizes that it lacks are 0.
struct RankShare {
  int32_t num_heads = 0, num_kv_heads = 0;
  int32_t num_features = 0;  // of the MLP, or of the shared expert
  int32_t first_expert = 0, num_experts = 0;
  int32_t num_expert_features = 0;
};

// For tp_size ranks, in their order; none for one rank. Reads config.json. kInvalidArgument says
// what of the model is not divided by so many.
Result<std::vector<RankShare>> share_among_ranks(const ModelLoadOptions& options, int32_t tp_size);

std::string describe(const RankShare& share);
boost::json::array ranks_json(const std::vector<RankShare>& shares);

}  // namespace espalier::apps
