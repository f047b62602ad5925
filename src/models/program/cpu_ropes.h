// Cosines and sines of a step's positions, for each rope of a model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "models/decoder_spec.h"
#include "seams/forward_batch.h"
#include "tensor/buffer.h"

namespace espalier::program {

// Of one rope, [tokens, rotary_dim / 2] each; row i is of the batch's token i.
struct CpuRope {
  const float* cos = nullptr;
  const float* sin = nullptr;
  const RopeSpec* spec = nullptr;
};

// Used from one thread. Borrows the spec. fill() allocates nothing within what was reserved.
class CpuRopes {
 public:
  explicit CpuRopes(const DecoderSpec& spec);
  Status reserve(int32_t max_tokens);
  // places: of an encoder's patches, [3, patches]: time, height and width, instead of positions.
  void fill(const ForwardBatch& batch, std::span<const int32_t> places = {});
  CpuRope of(int32_t index) const;
  // 0, 1, 2 ...: the rows of the tables, one for each token.
  std::span<const int32_t> rows(int64_t count) const {
    return std::span(rows_).first(static_cast<size_t>(count));
  }

 private:
  // The components of all tokens' rotary positions, [3, tokens].
  std::span<const int32_t> places_of(const ForwardBatch& batch);

  const DecoderSpec& spec_;
  std::vector<std::vector<float>> frequencies_;   // of each rope, [rotary_dim / 2]
  std::vector<std::vector<uint8_t>> components_;  // the same, rope_components()
  espalier::Buffer tables_;                       // of each rope cos, then sin, one after the other
  std::vector<int32_t> rows_;
  std::vector<int32_t> places_;  // of a batch with rotary spans
  int64_t num_tokens_ = 0;       // of the step
};

}  // namespace espalier::program
