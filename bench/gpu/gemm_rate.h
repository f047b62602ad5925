// The rate of the GEMMs of an encoder's layers by themselves, which bounds the encoder's.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "models/decoder_spec.h"

namespace espalier::bench {

// FLOP/s of the four GEMMs of a layer with `rows` rows, in bfloat16 on the current device.
Result<double> gemm_rate(const DecoderSpec& spec, int32_t rows);

}  // namespace espalier::bench
