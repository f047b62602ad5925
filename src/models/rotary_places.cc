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
        set(token, span.position + span.time, span.position + row / span.columns,
            span.position + row % span.columns);
      }
    }
  }
}

void write_last_seen(const ForwardBatch& batch, int32_t* out) {
  std::fill_n(out, batch.num_tokens(), -1);
  for (const EmbeddingSpan& span : batch.embedding_spans) {
    const int32_t first = batch.positions[static_cast<size_t>(span.token_begin)] - span.first_row;
    std::fill_n(out + span.token_begin, span.count, first + span.rows->num_rows - 1);
  }
}

}  // namespace espalier
