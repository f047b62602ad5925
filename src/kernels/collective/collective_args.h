// What every group of ranks checks of a collective's arguments, and what follows a sum that stands
// in x. Internal to kernels/collective.
#pragma once

#include "kernels/collective/cuda.h"

namespace espalier::kernels::cuda {

Status check_all_reduce(const AllReduceArgs& args);
Status check_all_gather(const AllGatherArgs& args, int32_t num_ranks);
Status check_rank_rows(const char* name, const RankRowsArgs& args, const Ranks& ranks);
Status check_share_tokens(const ShareTokensArgs& args, int32_t tokens_max);

// args.x has the sum: adds it to the residual and normalises that, where there is one.
Status finish_all_reduce(const AllReduceArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
