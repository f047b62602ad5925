// The components of tokens' rotary positions where these are three (M-RoPE), and what rows of
// pictures see behind themselves. Pure.
#pragma once

#include <cstdint>

#include "models/decoder_spec.h"
#include "seams/forward_batch.h"

namespace espalier {

// Whether a rope of the model turns by three components.
bool has_sections(const DecoderSpec& spec);

// Between neighbours of an array of components.
struct PlaceStrides {
  int64_t token = 1, component = 1;
};

// out: of the batch's token t the component c at t * strides.token + c * strides.component: time,
// height and width, which are all the token's position where no span says otherwise.
void write_rotary_places(const ForwardBatch& batch, const PlaceStrides& strides, int32_t* out);

// out: of the batch's token t the last position of its picture where it is a row of one, else -1,
// [num_tokens]: what Attention::pictures lets it see.
void write_last_seen(const ForwardBatch& batch, int32_t* out);

}  // namespace espalier
