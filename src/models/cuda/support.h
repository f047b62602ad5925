// Which models the GPU's kernels run. A pure function: it makes no call to a device.
#pragma once

#include "base/status.h"
#include "models/decoder_spec.h"

namespace espalier {

// kUnimplemented names the first part or size that the GPU does not do.
Status check_cuda_support(const DecoderSpec& spec);
// The same of an encoder of pictures.
Status check_cuda_encoder(const DecoderSpec& spec);
// The same of an encoder of texts.
Status check_cuda_text_encoder(const DecoderSpec& spec);

}  // namespace espalier
