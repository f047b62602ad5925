// Names the weights of a decoder, so that an operation of a program, the layout of a checkpoint
// (weight_layout.h) and the loaders speak of the same one. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace espalier {

// Shapes are [rows, columns] of a matrix (rows are outputs) or [size] of a vector.
enum class WeightKind : uint8_t {
  kNone,
  kEmbedding,            // [vocab, hidden]; the head's rows where embeddings are tied
  kPatchEmbedding,       // [hidden, channels * patch * patch]
  kPatchEmbeddingBias,   // [hidden]
  kClassEmbedding,       // [hidden]
  kEmbeddingNorm,        // [hidden]
  kPositionEmbedding,    // [learned_positions, hidden]
  kTypeEmbedding,        // [token_types, hidden]
  kInputNorm,            // [hidden]
  kQkv,                  // [q_dim + 2 kv_dim, hidden]
  kQkvBias,              // [q_dim + 2 kv_dim]
  kQNorm,                // [head_dim], or [q_dim] of a norm over all heads
  kKNorm,                // [head_dim], or [kv_dim]
  kLatentQA,             // [query_rank, hidden]
  kLatentQANorm,         // [query_rank]
  kLatentQ,              // [heads (nope + rope), query_rank or hidden]
  kLatentKvA,            // [rank + rope, hidden]
  kLatentKvANorm,        // [rank]
  kQueryToLatent,        // [heads, rank, nope]: of each head kv_b's keys, transposed
  kLatentToValue,        // [heads, value, rank]: of each head kv_b's values
  kSinks,                // [heads] float32
  kAttentionOutput,      // [hidden, output_dim]
  kAttentionOutputBias,  // [hidden]
  kAttentionOutputNorm,  // [hidden]
  kPostAttentionNorm,    // [hidden]
  kRouter,               // [experts, hidden] float32
  kRouterBias,           // [experts] float32
  kRouterCorrection,     // [experts] float32
  kExpertGateUp,         // [experts, 2 ffn (ffn without a gate), hidden]
  kExpertGateUpBias,     // [experts, 2 ffn]
  kExpertDown,           // [experts, hidden, ffn]
  kExpertDownBias,       // [experts, hidden]
  kSharedGate,           // [1, hidden]
  kGateUp,               // [2 ffn (ffn without a gate), hidden]: dense, or the shared expert's
  kGateUpBias,           // [2 ffn]
  kDown,                 // [hidden, ffn]
  kDownBias,             // [hidden]
  kMlpOutputNorm,        // [hidden]
  kFinalNorm,            // [hidden]
  kHead,                 // [vocab, hidden]
  kPoolingHead,          // [outputs, inputs] float32
  kPoolingHeadBias,      // [outputs] float32
  kProjector,            // [outputs, inputs]; those of DeepstackSpecs behind the projector's own
  kProjectorBias,        // [outputs]
  kLineEnd,              // [outputs of the projector]: TilesSpec
  kDraftInput,           // [hidden, 3 hidden]
  kHiddenNorm,           // [hidden]
  kDeepstackNorm,        // [merge * hidden]: DeepstackSpec
  kProjectorNorm,        // [merge * hidden], or [hidden] of means: ProjectorSpec
  kGlobalNorm,           // [hidden]: JointTilesSpec
  kTilePosition,         // [shapes * tiles, hidden]: JointTilesSpec
  kCrossKv,              // [2 kv_dim, outputs of the projector]: CrossKvSpec
  kCrossKNorm,           // [head_dim]
};
inline constexpr size_t kNumWeightKinds = static_cast<size_t>(WeightKind::kCrossKNorm) + 1;

struct WeightId {
  WeightKind kind = WeightKind::kNone;
  int32_t index =
      -1;  // of the layer, the pooling head's, projector's, DeepstackSpec or CrossKvSpec; -1: one

  explicit operator bool() const { return kind != WeightKind::kNone; }
  friend bool operator==(const WeightId&, const WeightId&) = default;
};

// "qkv", "expert_down_bias" ...; empty of kNone.
std::string_view weight_name(WeightKind kind);

}  // namespace espalier
