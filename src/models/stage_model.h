// A model that may be one stage of a pipeline (program/stages.h): its forward pass begins with rows
// of the stage before it, or ends with rows for the next one. Thread safety as Model's.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "models/decoder_weights.h"
#include "models/input_observer.h"
#include "models/model.h"

namespace espalier {

// Where each rank has rows of its own (DecoderSpec::whole_attention): those of all ranks, which
// follow each other from rank to rank.
struct RankRows {
  std::span<const int64_t> num_tokens, num_wanted;       // of each rank
  std::span<const int32_t> positions, wanted_positions;  // of all ranks' rows
  float* sample_logits = nullptr;                        // of this rank's samples
};

// Rows of hidden states, [num_tokens of the batch, hidden_size]. Null at the ends of the pipeline.
struct StageRows {
  const float* received = nullptr;    // REQUIRED unless the stage embeds
  float* handed_on = nullptr;         // of the first rank of a stage that does not sample
  InputObserver* observer = nullptr;  // of the step on the CPU; null: none
  const RankRows* ranks = nullptr;    // REQUIRED of a rank of several that has whole attention
};

class StageModel : public Model {
 public:
  // As forward(); kv has the stage's own layers. Only the stage that samples has outputs.
  virtual ForwardOutput forward_stage(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                                      const KvView& kv, const StageRows& rows,
                                      const InputLogitsSink& input_logits) = 0;
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView& kv, const InputLogitsSink& input_logits) final {
    return forward_stage(batch, token_ids, kv, {}, input_logits);
  }

  // The two steps of replace_weights(): weights of this model's shapes, of each rank, that nothing
  // uses yet; and the exchange, which cannot fail.
  virtual Result<std::vector<DecoderWeights>> read_weights(const OpenWeights& open) = 0;
  virtual void set_weights(std::vector<DecoderWeights> weights) = 0;
  Status replace_weights(const OpenWeights& open) final {
    ESP_ASSIGN_OR_RETURN(std::vector<DecoderWeights> weights, read_weights(open));
    set_weights(std::move(weights));
    return Status();
  }
};

}  // namespace espalier
