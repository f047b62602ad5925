// A decoder-only transformer as data: what a family's file makes from config.json, and all that the
// forward pass and the loader know of a model. Plain values; anyone may copy and change one (tests
// do, to see a golden fail).
//
//   x = embedding[token]
//   for each layer:  x += attention(input_norm(x));  x += mlp(post_attention_norm(x))
//   logits = head(final_norm(x))
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "seams/vocab_view.h"
#include "tensor/dtype.h"

namespace espalier {

// Rotary position embedding (Su et al. 2021) and the ways to stretch it over longer contexts.
struct RopeSpec {
  enum class Pairing {
    kHalves,       // element i turns with i + rotary_dim / 2: every Hugging Face family so far
    kInterleaved,  // 2i with 2i + 1: GPT-J, and Llama as Meta released it
  };
  enum class Scaling { kNone, kLinear, kLlama3, kYarn };

  Pairing pairing = Pairing::kHalves;
  int32_t rotary_dim = 0;  // even, at most head_dim; the elements from there on are not rotated
  double theta = 10000.0;

  Scaling scaling = Scaling::kNone;
  double factor = 1.0;                 // linear, llama3, yarn
  double low_freq_factor = 1.0;        // llama3
  double high_freq_factor = 4.0;       // llama3
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  bool truncate = true;                // yarn: whole numbers bound the ramp
  double attention_factor = 1.0;       // yarn: multiplies cosine and sine
  int32_t original_max_positions = 0;  // llama3, yarn: the context of pretraining, tokens
};

// Root-mean-square norm with a weight. A layer without one has no norm in that place.
struct NormSpec {
  float epsilon = 1e-6f;
};

// Grouped-query attention: query head h reads key/value head h / (num_heads / num_kv_heads).
struct AttentionSpec {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  bool qkv_bias = false;
  bool output_bias = false;
  std::optional<NormSpec> qk_norm;  // over head_dim, on q and k before they are rotated
  std::optional<int32_t> rope;  // index into DecoderSpec::ropes; none: positions are not encoded
  float scale = 0;              // of the scores
  int32_t sliding_window = 0;   // tokens that a query sees, itself included; 0: all before it

  int32_t q_dim() const { return num_heads * head_dim; }
  int32_t kv_dim() const { return num_kv_heads * head_dim; }
};

// down(silu(gate(x)) * up(x))
struct MlpSpec {
  int32_t intermediate_size = 0;
  bool bias = false;
};

struct LayerSpec {
  std::optional<NormSpec> input_norm;
  AttentionSpec attention;
  std::optional<NormSpec> post_attention_norm;
  MlpSpec mlp;
};

// Names of a checkpoint's tensors. "{}" stands for the layer's index; ".weight" and ".bias" follow.
// The defaults are those of Llama, which most families took over.
struct WeightNames {
  std::string embedding = "model.embed_tokens";
  std::string final_norm = "model.norm";
  std::string head = "lm_head";
  std::string input_norm = "model.layers.{}.input_layernorm";
  std::string post_attention_norm = "model.layers.{}.post_attention_layernorm";
  std::string q = "model.layers.{}.self_attn.q_proj";
  std::string k = "model.layers.{}.self_attn.k_proj";
  std::string v = "model.layers.{}.self_attn.v_proj";
  std::string attention_output = "model.layers.{}.self_attn.o_proj";
  std::string q_norm = "model.layers.{}.self_attn.q_norm";
  std::string k_norm = "model.layers.{}.self_attn.k_norm";
  std::string gate = "model.layers.{}.mlp.gate_proj";
  std::string up = "model.layers.{}.mlp.up_proj";
  std::string down = "model.layers.{}.mlp.down_proj";
  // Tensors whose names end so may lie in a checkpoint without being read.
  std::vector<std::string> unused_suffixes = {".rotary_emb.inv_freq"};
};

// For tests alone: parts of the forward pass broken on purpose, to show that goldens notice.
struct DecoderFaults {
  bool drop_attention_residual = false;
  bool drop_mlp_residual = false;
  bool linear_activation = false;  // gate * up without silu
};

struct DecoderSpec {
  std::string architecture;  // config.json's architectures[0]
  std::string model_type;
  int32_t vocab_size = 0;  // rows of the embedding and of the head
  int32_t hidden_size = 0;
  int32_t context_length = 0;  // tokens
  bool tied_embeddings = false;
  std::optional<NormSpec> final_norm;
  std::vector<RopeSpec> ropes;
  std::vector<LayerSpec> layers;
  DType checkpoint_dtype = DType::kBFloat16;  // what config.json says that the weights are
  std::vector<TokenId> eos_ids;               // sorted
  WeightNames names;
  DecoderFaults faults;

  int64_t num_parameters() const;
};

// What every part below relies on: sizes positive and within their kernels' limits, heads
// divisible, ropes that exist, and the same key/value shape in all layers (KvView knows one). The
// message names config.json's fields.
Status validate(const DecoderSpec& spec);

// "a {} b" with the layer's index.
std::string layer_name(const std::string& pattern, int32_t layer);

}  // namespace espalier
