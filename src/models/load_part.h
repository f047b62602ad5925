// The part of a model that the ranks of this process compute, where ranks of other processes
// compute the rest.
#pragma once

#include <memory>

#include "base/status.h"
#include "models/model.h"
#include "tensor/rank_group.h"

namespace espalier {

// As load_model(), of the group's ranks; options.tp_size is the number of all ranks of all
// processes. ModelInfo::num_kv_heads and weight_bytes are those of this process. Only the process
// of rank 0 has results of forward(), and all processes call it for the same steps. group:
// borrowed, outlives the model. kUnimplemented names what is not divided so.
Result<std::unique_ptr<Model>> load_model_part(const ModelLoadOptions& options, RankGroup& group);

}  // namespace espalier
