// The weights of decoders on GPUs, replaced in their own memory: pointers stay, in graphs too.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "models/cuda/decoder.h"
#include "models/model_weights.h"

namespace espalier {

// Of one decoder, or of those of all ranks of a model, which outlive the result. They were loaded
// with these options. A read error in commit() leaves the weights a mixture: there is no memory for
// a copy, so all that can be checked is checked by prepare().
//
// keep_copies: pinned memory of the host is taken here for copies of all weights, so that memory
// that is released (ReleasableMemory) is filled again at the link's rate instead of that of files.
Result<std::unique_ptr<ModelWeights>> make_cuda_model_weights(
    std::vector<const CudaDecoder*> decoders, const ModelLoadOptions& options,
    bool keep_copies = false);

}  // namespace espalier
