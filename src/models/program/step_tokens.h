// The tokens of a step as operations read them: their ids, and the pictures that they see by cross
// attention. Used from one thread. A step allocates nothing within what was reserved.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/decoder_spec.h"
#include "models/program/cross_rows.h"
#include "models/program/program.h"
#include "seams/forward_batch.h"

namespace espalier::program {

class StepTokens {
 public:
  explicit StepTokens(const DecoderSpec& spec) : spec_(spec) {
    for (int32_t next = 0; const LayerSpec& layer : spec.layers)
      kv_layers_.push_back(layer.attention.cross ? -1 : next++);
  }
  void reserve(int32_t max_tokens, bool has_ranks) {
    if (has_ranks || spec_.images) made_.reserve(static_cast<size_t>(max_tokens));
    if (sees_across()) cross_.reserve(static_cast<size_t>(max_tokens));
  }
  // Both outlive the step.
  void begin(const ForwardBatch& batch, std::span<const TokenId> ids) {
    ids_ = ids;
    if (sees_across()) cross_.begin(batch, spec_.span_width());
  }

  std::span<const TokenId> ids() const { return ids_; }
  // The ids as rows of a rank's part of the vocabulary; 0 for tokens of other ranks.
  std::span<const TokenId> local(const VocabularyPart& part) {
    made_.clear();
    for (const TokenId id : ids_) {
      const bool here = id >= part.first && id < part.first + part.count;
      made_.push_back(here ? id - part.first : 0);
    }
    return made_;
  }
  // The ids with that of a placeholder in place of pictures' keys.
  std::span<const TokenId> with_placeholder(TokenId placeholder) {
    made_.clear();
    for (const TokenId id : ids_) made_.push_back(id >= kFirstSpanKey ? placeholder : id);
    return made_;
  }
  CrossRows& cross() { return cross_; }
  // Of a layer its keys and values in a KvView, where layers of cross attention have none.
  int32_t kv_layer(int32_t layer) const { return kv_layers_[static_cast<size_t>(layer)]; }

 private:
  bool sees_across() const { return spec_.images && spec_.images->num_cross_layers > 0; }

  const DecoderSpec& spec_;
  std::vector<int32_t> kv_layers_;  // kv_layer()
  std::span<const TokenId> ids_;
  std::vector<TokenId> made_;
  CrossRows cross_;
};

}  // namespace espalier::program
