// Compiled on every system, with or without CUDA: it checks that the CUDA contracts need no CUDA
// header and that what the host copies to the device is plain data.
#include <type_traits>

#include "kernels/activation/cuda.h"
#include "kernels/attention/cuda.h"
#include "kernels/draft/cuda.h"
#include "kernels/embedding/cuda.h"
#include "kernels/kv_append/cuda.h"
#include "kernels/linear/cuda.h"
#include "kernels/lora/cuda.h"
#include "kernels/norm/cuda.h"
#include "kernels/page_table/cuda.h"
#include "kernels/random/cuda.h"
#include "kernels/sampling/cuda.h"

namespace espalier::kernels::cuda {

static_assert(std::is_trivially_copyable_v<SlotSampling> && alignof(SlotSampling) == 8);
static_assert(std::is_trivially_copyable_v<LoraTile> && std::is_trivially_copyable_v<LoraPart>);
static_assert(std::is_trivially_copyable_v<ChainStart>);
static_assert(std::is_trivially_copyable_v<EntryArrays> && std::is_trivially_copyable_v<KvPlanes>);

}  // namespace espalier::kernels::cuda
