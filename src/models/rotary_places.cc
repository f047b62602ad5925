#include "models/rotary_places.h"

#include <algorithm>

namespace espalier {

bool has_sections(const DecoderSpec& spec) {
  return std::ranges::any_of(spec.ropes,
                             [](const RopeSpec& rope) { return !rope.sections.empty(); });
}

void write_rotary_places(const ForwardBatch& batch, const PlaceStrides& strides, int32_t* out) {
  const auto set = [&](int64_t token, int32_t time, int32_t height, int32_t width) {
    int32_t* const place = out + token * strides.token;
    place[0] = time;
    place[strides.component] = height;
    place[2 * strides.component] = width;
  };
  for (int64_t token = 0; token < std::ssize(batch.positions); ++token) {
    const int32_t position = batch.positions[static_cast<size_t>(token)];
    set(token, position, position, position);
  }
  for (const RotarySpan& span : batch.rotary_spans) {
    for (int32_t i = 0; i < span.count; ++i) {
      const int32_t row = span.first_row + i, token = span.token_begin + i;
      if (span.columns == 0) {
        set(token, span.position + i, span.position + i, span.position + i);
      } else {
        set(token, span.position, span.position + row / span.columns,
            span.position + row % span.columns);
      }
    }
  }
}

}  // namespace espalier
