// A transformer as data: what a family's file makes from config.json, and all that the forward pass
// and the loader know of a model. It is a decoder, or (PatchesSpec) the encoder of its pictures, or
// (TextsSpec) an encoder of texts.
// Plain values; anyone may copy and change one (tests do, to see a golden fail).
//
//   x = embedding_scale * embedding[token] (+ position_embedding[position])
//   for each layer:
//     x += residual_scale * attention_output_norm(attention(input_norm(x)))
//     x += residual_scale * mlp_output_norm(mlp(post_attention_norm(x)))
//   logits = softcap(logits_scale * head(final_norm(x)))
// or, where a text becomes a vector (PoolingSpec): pooling_head(pool(final_norm(x))).
// An encoder begins with x = input_norm(patch_embedding(patches) + position_embedding), with the
// class embedding in front of the patches, and ends with projector(final_norm(x)).
// A norm that a family lacks is left out; most families have the two before the blocks alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "checkpoint/control_vectors.h"
#include "kernels/activation/gelu.h"
#include "kernels/activation/op.h"
#include "kernels/router/op.h"
#include "media/processor.h"
#include "seams/vocab_view.h"
#include "tensor/dtype.h"

namespace espalier {

// Rotary position embedding (Su et al. 2021) and the ways to stretch it over longer contexts.
struct RopeSpec {
  enum class Pairing {
    kHalves,       // element i turns with i + rotary_dim / 2: every Hugging Face family so far
    kInterleaved,  // 2i with 2i + 1: GPT-J, and Llama as Meta released it
  };
  enum class Scaling { kNone, kLinear, kDynamic, kLlama3, kYarn, kLongRope };

  Pairing pairing = Pairing::kHalves;
  int32_t rotary_dim = 0;  // even, at most head_dim; the elements from there on are not rotated
  double theta = 10000.0;

  Scaling scaling = Scaling::kNone;
  double factor = 1.0;                 // linear, dynamic, llama3, yarn
  double low_freq_factor = 1.0;        // llama3
  double high_freq_factor = 4.0;       // llama3
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  bool truncate = true;                // yarn: whole numbers bound the ramp
  double attention_factor = 1.0;       // yarn, longrope: multiplies cosine and sine
  int32_t original_max_positions = 0;  // all but linear: the context of pretraining, tokens
  // longrope: what each pair's frequency is divided by, [rotary_dim / 2]. The long ones hold for
  // every token of a model whose context length is above original_max_positions, so that a key
  // in the cache is the same whatever follows it.
  std::vector<double> short_factors, long_factors;

  // Positions have three components, time, height and width (M-RoPE, Wang et al. 2024): so many
  // pairs turn by each, in this order, [3]. Empty: all turn by one position.
  std::vector<int32_t> sections;
  // Pairs take turns instead: of the first 3 n pairs the third, sixth ... by width, and those in
  // front of them by height, n each section's number; all others by time (Qwen3-VL).
  bool interleaved_sections = false;
  // Each section has frequencies of its own, theta ^ (-i / pairs): encoders of pictures.
  bool axial = false;
  // Of height and width instead those of one list, taken in turns: theta ^ (-(2 i + 0 or 1) / all
  // pairs), Pixtral's.
  bool axial_in_turns = false;
};

// A norm with a weight, or a layer scale in a norm's place. A layer without one has nothing there.
struct NormSpec {
  enum class Kind : uint8_t {
    kRms,            // x / rms(x) * weight
    kRmsOneCentred,  // x / rms(x) * (1 + weight), Gemma's
    kLayer,          // (x - mean) / deviation * weight + bias, GPT-2's
    kScale,          // x * weight: the layer scale of encoders (Touvron et al. 2021)
    kGate,           // x * tanh(gate), one number: Mllama
  };
  float epsilon = 1e-6f;
  Kind kind = Kind::kRms;
};

// Multi-head latent attention (DeepSeek-V2, section 2.1), in its absorbed form: keys and values of
// a token are one latent, shared by all heads, [latent; rotated], and only that is cached. A head's
// query is carried into the latent space, and what comes out of attention is carried back.
struct LatentSpec {
  int32_t query_rank = 0;  // of the query's own latent; 0: queries come straight from x
  int32_t rank = 0;        // of the latent of keys and values
  int32_t nope_dim = 0;    // of a head's query: the part that is not rotated, and
  int32_t rope_dim = 0;    // the part that is
  int32_t value_dim = 0;   // of a head's value
  NormSpec norm;           // of either latent
};

// Grouped-query attention: query head h reads key/value head h / (num_heads / num_kv_heads).
struct AttentionSpec {
  enum class NormScope : uint8_t {
    kHead,  // over head_dim, each head by itself, with one weight for all
    kAll,   // over all heads of q together, and of k: OLMo 2
  };
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // of the cache: 1 where keys and values are latents
  int32_t head_dim = 0;      // of the cache: rank + rope_dim where they are
  bool qkv_bias = false;
  bool output_bias = false;
  std::optional<NormSpec> qk_norm;  // on q and k before they are rotated
  NormScope qk_norm_scope = NormScope::kHead;
  std::optional<int32_t> rope;  // index into DecoderSpec::ropes; none: positions are not encoded
  float scale = 0;              // of the scores
  int32_t sliding_window = 0;   // tokens that a query sees, itself included; 0: all before it
  float softcap = 0;            // scores become softcap * tanh(score / softcap); 0: none
  bool causal = true;           // false: a query sees all of its picture, and nothing is cached
  bool windowed = false;        // where not causal: it sees its window alone (PatchesSpec::window)
  int32_t reach = 0;            // where not causal: rows seen on either side; 0: all
  bool sinks = false;           // each head has a score that takes part in the softmax, valueless
  std::optional<LatentSpec> latent;
  // Queries alone are the layer's own: keys and values are those of the pictures that a token sees
  // (CrossSpan), made by the encoder (CrossKvSpec). Nothing of the layer lies in pages.
  bool cross = false;

  int32_t q_dim() const { return num_heads * head_dim; }
  int32_t kv_dim() const { return num_kv_heads * head_dim; }
  // Of one token's row as attention_output takes it.
  int32_t output_dim() const { return latent ? num_heads * latent->value_dim : q_dim(); }
};

// down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate.
struct MlpSpec {
  int32_t intermediate_size = 0;
  bool bias = false;
  kernels::Activation activation = kernels::Activation::kSilu;
  bool gated = true;
  float activation_limit = 0;         // kClampedSwiglu
  std::optional<kernels::Gelu> gelu;  // instead of `activation`; of encoders
};

// The layer's MLP is a set of experts, each an MlpSpec, that a router selects and weighs; and an
// MLP that all tokens pass, where there is a shared one.
struct ExpertsSpec {
  kernels::RouterSpec router;
  MlpSpec expert;
  bool router_bias = false;
  std::optional<MlpSpec> shared;
  bool shared_gate = false;  // the shared one's result times sigmoid(shared_gate(x)): Qwen 2 MoE
  // The expert in each slot of all ranks (models/expert_placement.h); empty: expert i has slot i.
  std::vector<int32_t> slots;
  // Of a rank, the slots that it has: so many from the first on; 0: all.
  int32_t first_local = 0;
  int32_t local_count = 0;

  int32_t num_slots() const {
    return slots.empty() ? router.num_experts : static_cast<int32_t>(slots.size());
  }
  int32_t num_local() const { return local_count > 0 ? local_count : num_slots(); }
  int32_t expert_of(int32_t slot) const {
    return slots.empty() ? slot : slots[static_cast<size_t>(slot)];
  }
};

struct LayerSpec {
  std::optional<NormSpec> input_norm;
  AttentionSpec attention;
  std::optional<NormSpec> attention_output_norm;
  std::optional<NormSpec> post_attention_norm;  // before the MLP
  MlpSpec mlp;                                  // unused where there are experts
  std::optional<ExpertsSpec> experts;
  std::optional<NormSpec> mlp_output_norm;
};

// The logit of a token of the vocabulary that the head does not have
// (ImagesSpec::num_without_logit): finite, and far below all others.
inline constexpr float kNoLogit = -1e30f;

// Names of a checkpoint's tensors. "{}" stands for the layer's index, a second "{}" for the
// expert's; ".weight" and ".bias" follow, but where a name says that it is whole.
// The defaults are those of Llama, which most families took over.
struct WeightNames {
  enum class Experts : uint8_t {
    kEach,        // a tensor for each expert, rows are outputs
    kFused,       // gpt-oss: [expert, in, out] in one tensor, gate and up taking turns as outputs
    kFusedMxfp4,  // the same in MXFP4: [expert, out, in / 32, 16], and scales beside it
  };
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

  // One tensor instead of several, its rows one part under the other; empty: none.
  std::string qkv;
  std::string gate_up;
  bool transposed = false;  // matrices of layers lie [in, out]: GPT-2's Conv1D

  std::string draft_input;      // of DraftSpec's fc, as is
  std::string hidden_norm;      // the next
  std::string patch_embedding;  // a convolution, [hidden, channels, patch, patch]
  std::string class_embedding;  // whole
  std::string embedding_norm;   // of PatchesSpec, TextsSpec or DraftSpec
  std::string position_embedding;
  std::string type_embedding;
  bool whole_positions = false;  // position_embedding is whole
  std::string attention_output_norm;
  std::string mlp_output_norm;
  // Layers from `begin` on have names that begin with the second in place of the first, and are
  // counted from there; 0: there are none.
  struct LaterLayers {
    int32_t begin = 0;
    std::string prefix, other;
  };
  LaterLayers later;
  // Of layers of cross attention, in place of those above.
  std::string cross_q, cross_q_norm, cross_output;
  std::string sinks = "model.layers.{}.self_attn.sinks";  // whole

  std::string router = "model.layers.{}.mlp.gate";
  std::string router_correction = "model.layers.{}.mlp.gate.e_score_correction_bias";  // whole
  std::string expert_gate = "model.layers.{}.mlp.experts.{}.gate_proj";
  std::string expert_up = "model.layers.{}.mlp.experts.{}.up_proj";
  std::string expert_down = "model.layers.{}.mlp.experts.{}.down_proj";
  Experts experts = Experts::kEach;
  std::string fused_gate_up;  // whole, without "_bias", "_blocks" and "_scales"
  std::string fused_down;
  std::string shared_gate = "model.layers.{}.mlp.shared_expert_gate";
  std::string shared_expert = "model.layers.{}.mlp.shared_experts";  // then ".gate_proj" ...

  std::string q_a = "model.layers.{}.self_attn.q_a_proj";
  std::string q_a_norm = "model.layers.{}.self_attn.q_a_layernorm";
  std::string q_b = "model.layers.{}.self_attn.q_b_proj";
  std::string kv_a = "model.layers.{}.self_attn.kv_a_proj_with_mqa";
  std::string kv_a_norm = "model.layers.{}.self_attn.kv_a_layernorm";
  std::string kv_b = "model.layers.{}.self_attn.kv_b_proj";

  // Tensors whose names end so may lie in a checkpoint without being read.
  std::vector<std::string> unused_suffixes = {".rotary_emb.inv_freq"};
  std::vector<std::string> unused_prefixes;  // or begin so
  // Tensors whose names end so are zeros where the checkpoint lacks them: biases that some parts of
  // a fused vector do not have.
  std::vector<std::string> absent_suffixes;
  // A tensor whose name begins with the first may be stored under a name that begins with the
  // second: releases of one family differ.
  std::vector<std::pair<std::string, std::string>> other_prefixes;
};

// What a text becomes where a model does not generate: one vector. The final norm's rows of its
// tokens are pooled into one, which the head's layers, if there are any, make into scores.
struct PoolingSpec {
  enum class Kind : uint8_t {
    kLast,  // the last token's row
    kMean,  // the mean over all tokens: nothing of such a text comes from the cache
    // Of encoders of texts alone:
    kFirst,  // the first token's row, [CLS]
    kMax,    // the largest of each column over all tokens
    kEach,   // every token's row is a vector of its own (late interaction)
  };
  // y = x W^T + b; between two layers stands ReLU.
  struct HeadLayer {
    std::string name;  // of its tensors, before ".weight" and ".bias"
    int32_t outputs = 0;
    bool bias = false;
    // Of projectors.
    bool transposed = false;  // its tensor lies [in, out], and `name` is whole
    bool linear = false;      // no activation stands behind it
  };
  Kind kind = Kind::kLast;
  bool normalize = false;           // to length 1
  std::vector<HeadLayer> head;      // empty: the vector is the pooled row
  std::vector<std::string> labels;  // of the head's outputs, where config.json names them
};

// Of an encoder of sounds (Whisper's, Radford et al. 2022): a sound's log-mel spectrogram behind
// the first of two convolutions over three neighbours (sound_stem.h). A row of the program reads
// three of its results, which stand for the frames of a patch.
struct SoundSpec {
  int32_t num_mels = 0;
  int32_t frames_max = 0;  // of the spectrogram; a row stands for two of them
  int32_t merge = 1;       // neighbouring rows that become one
  std::string stem;        // the first convolution's tensors, before ".weight" and ".bias"

  int32_t rows_max() const { return frames_max / 2; }
};

// Of an encoder of texts (BERT, Devlin et al. 2018): a text is a sequence whose rows see each
// other,
//   x = norm(embedding[token] + position_embedding[first_position + i] + type_embedding[type])
// A text's rows pass the projector, if there is one, are pooled (PoolingSpec), and pass the head.
struct TextsSpec {
  // A layer of the head, computed in float32 on the host: norm(activation(x W^T + b)).
  struct HeadLayer {
    enum class Activation : uint8_t { kNone, kTanh, kGelu, kRelu };
    std::string name;  // of its tensors, before ".weight" and ".bias"
    int32_t outputs = 0;
    bool bias = true;
    Activation activation = Activation::kNone;
    std::optional<NormSpec> norm = {};
    std::string norm_name = {};
    std::string folder = {};  // within the model's, of sentence-transformers' Dense; empty: itself
  };
  int32_t token_types = 0;     // rows of the type embedding; 0: there is none
  int32_t first_position = 0;  // row of a text's first token: RoBERTa's are behind the padding's
  std::optional<NormSpec> norm;
  // Norms stand behind sums: x = norm(x + block(x)). attention_output_norm and mlp_output_norm are
  // those norms then.
  bool norms_of_sums = false;
  std::vector<HeadLayer> head;
  // What is scored is a pair of texts (a cross-encoder), and by which function of its output.
  bool pairs = false;
  bool sigmoid = false;
  // Of late interaction (ColBERT, Khattab and Zaharia 2020): tokens put behind [CLS] of a query and
  // of a document, [MASK], to which queries are filled up, and their length then (0: they are not).
  std::string query_mark, document_mark;
  int32_t query_length = 0;
};

// What an encoder reads in place of tokens: a picture's patches, row by row (Dosovitskiy et al.
// 2021). Each picture is a sequence of its own.
struct PatchesSpec {
  int32_t patch_size = 0;  // pixels along a side
  int32_t channels = 3;
  int32_t frames = 1;       // that a patch reaches through: a still picture is repeated
  int32_t num_patches = 0;  // of a picture; 0: as many as its size demands
  int32_t merge = 1;        // side of the squares of patches that become one row each
  int32_t window = 0;       // side of windows of attention, in squares; 0: there are none
  // Side of the square grid of learned positions that a picture is laid over, its corners on the
  // grid's: a patch has what bilinear interpolation makes of its place. 0: a row for each patch.
  int32_t position_side = 0;
  bool lines = false;  // rows stand in prompts line by line (ImagesSpec::line_end)
  // Videos are read too: `frames` of them are one grid. Rotary positions of a second between two
  // grids; 0: a grid has one.
  bool videos = false;
  // Grids of a video stand apart in the prompt, each behind its time as text, and its bounds are
  // those of all frames together (Qwen3-VL).
  bool grids_apart = false;
  double positions_per_second = 0;
  bool bias = false;             // of the patch embedding
  bool class_token = false;      // a learned row in front of the patches; no result is made of it
  std::optional<NormSpec> norm;  // of the rows, positions added
  std::optional<kernels::Gelu> activation;  // behind the patch embedding
  // Sounds are read instead of pictures: patches are one line of any length, `merge` is 1.
  std::optional<SoundSpec> sound;

  int32_t features() const { return channels * frames * patch_size * patch_size; }
  int32_t num_rows() const { return num_patches + (class_token ? 1 : 0); }
  // Patches that become one row.
  int32_t square() const { return sound ? sound->merge : merge * merge; }
};

// Of a decoder: how a picture stands in a prompt.
struct ImagesSpec {
  TokenId placeholder = -1;
  int32_t num_rows = 0;  // that the encoder makes of a picture; 0: its size decides
  // In a text, before it becomes tokens, `mark` stands for a picture and becomes `marked`, as
  // transformers' processors replace it: a line of its own, tokens around the placeholder. Empty:
  // the placeholder stands for itself.
  std::string_view mark, marked;  // of static storage
  // Rows of a picture stand in the prompt line by line, the first of these tokens behind each line
  // and the second behind the last one (Pixtral); -1: they are one run.
  TokenId line_end = -1, picture_end = -1;
  TokenId video_placeholder = -1;  // of models that read videos
  // Around each grid of a video, whose time stands in front of them as text (Qwen3-VL); -1: grids
  // follow each other.
  TokenId grid_begin = -1, grid_end = -1;
  // A picture's rows see all rows of their picture, also those behind them (Gemma 3).
  bool bidirectional = false;
  bool sounds = false;  // the model reads sounds in the place of pictures
  // Parts of a row behind its embedding, each hidden_size wide: the first is added to the result of
  // the first layer, the second to that of the second layer, and so on (DeepstackSpec).
  int32_t num_deep_parts = 0;
  // A picture takes one position, and so many of the decoder's layers read its rows by cross
  // attention (AttentionSpec::cross).
  int32_t num_cross_layers = 0;
  // So many of the vocabulary's last tokens, the placeholder among them, are none of the head's.
  int32_t num_without_logit = 0;
};

// Of an encoder whose tiles see each other (Mllama, Grattafiori et al. 2024, section 7): a picture
// is always as many tiles as there can be, black ones behind its own. Each has a class row, and
// rows of zeros fill it up to a multiple of `row_multiple`. Such rows, and those of black tiles,
// see the picture's rows alone, which see all. Layers from `global_begin` on read the others'
// result, normed, with an embedding of the tile.
struct JointTilesSpec {
  int32_t row_multiple = 8;
  int32_t num_shapes = 0;  // grids of tiles: all of at most counts.max, by rows, then columns
  int32_t global_begin = 0;
  NormSpec norm;
  std::string norm_name;  // before ".weight" and ".bias"
  // Positions and tiles have learned embeddings with gates, by the number of the picture's shape.
  std::string positions;                  // before ".embedding", ".tile_embedding" and ".gate"
  std::string tiles_before, tiles_after;  // before ".embedding" and ".gate"
};

// Of an encoder that reads a picture whole and in tiles (LLaVA-NeXT, Liu et al. 2024): the rows of
// its tiles form one grid, without what pads the picture, and a learned row ends each of its lines.
struct TilesSpec {
  // The tiles' rows, then the whole picture's, one run without learned rows; a picture of one tile
  // is read once (InternVL, Chen et al. 2024). Else what follows.
  bool in_sequence = false;
  ImageProcessorSpec::TileCounts counts;              // of a picture, there
  std::vector<ImageProcessorSpec::Size> resolutions;  // that pictures are fitted into
  std::string line_end;                               // the learned row's tensor
  // Grids of more rows than so many tiles' are reduced to about that (LLaVA-OneVision); 0: none.
  int32_t tiles_max = 0;
  bool alone = false;                   // pictures beside others in a prompt are read whole only
  std::optional<JointTilesSpec> joint;  // no whole picture; `counts.max` is the most tiles

  // Of joint tiles: of each shape of pictures, and of none, the tiles.
  int32_t num_positions() const { return (joint->num_shapes + 1) * counts.max; }
};

// Of an encoder whose decoder reads states of several of its layers (DeepStack, Meng et al. 2024):
// the states behind one of them, merged, normed and projected, are a part of a picture's rows.
struct DeepstackSpec {
  int32_t layer = 0;                           // of the encoder
  NormSpec norm;                               // of the rows that are merged, side by side
  std::string norm_name;                       // of its tensors, before ".weight" and ".bias"
  std::vector<PoolingSpec::HeadLayer> layers;  // as ProjectorSpec's
};

// Keys and values of one of the decoder's layers of cross attention, which all have one shape.
struct CrossKvSpec {
  std::string k, v, k_norm;  // of its tensors, before ".weight"
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  NormSpec norm;  // of keys, each head by itself

  int32_t kv_dim() const { return num_kv_heads * head_dim; }
};

// Carries an encoder's rows to the decoder's: matrices with an activation between two of them.
struct ProjectorSpec {
  // How rows that are merged become one.
  enum class Merge : uint8_t {
    kSideBySide,  // [row, feature]
    kByFeature,   // [feature, row]: Pixtral's patch merger
    kMean,        // Gemma 3's average pooling
  };
  std::vector<PoolingSpec::HeadLayer> layers;
  kernels::Gelu gelu = kernels::Gelu::kErf;
  int32_t merge = 1;  // rows that become one before the first matrix
  Merge how = Merge::kSideBySide;
  std::optional<NormSpec> norm;          // of the rows that were merged
  std::string norm_name;                 // of its tensors, before ".weight" and ".bias"
  std::vector<DeepstackSpec> deepstack;  // by their layers, rising
  // Layers whose states stand behind the last one's, of each feature side by side (Mllama); rising.
  std::vector<int32_t> beside;
  // What is projected becomes the keys and values of these layers of the decoder, which are the
  // rows, side by side.
  std::vector<CrossKvSpec> cross;

  // Rows of the first matrix's input, side by side.
  int32_t merged_width() const { return how == Merge::kMean ? 1 : merge; }

  // Of a picture's row with all its parts.
  int32_t row_width() const {
    if (!cross.empty())
      return static_cast<int32_t>(cross.size()) * 2 * cross[0].num_kv_heads * cross[0].head_dim;
    return layers.back().outputs * (1 + static_cast<int32_t>(deepstack.size()));
  }
};

// Of a draft head: a decoder of one layer behind a target, without an embedding of its own. A row
// reads what the target made of position p and the embedding of the token at p + 1, and predicts
// the token at p + 2. vocab_size counts the tokens that it predicts among.
struct DraftSpec {
  enum class Kind : uint8_t {
    // EAGLE-3 (Li et al. 2025), trained beside a target:
    //   x = fc(the target's states in front of three of its layers)
    //   attention reads cat(input_norm(embedding), hidden_norm(x)); x is the residual
    kEagle3,
    // A layer for multi-token prediction (MTP, DeepSeek-V3, section 2.2), trained with the target:
    //   x = fc(cat(embedding_norm(embedding), hidden_norm(state))), then a layer as the target's
    //   the head's own state is final_norm(x); the target's head makes its logits
    kMtp,
  };
  Kind kind = Kind::kEagle3;
  std::vector<int32_t> target_layers;  // rising; the number of layers: behind the last one
  int32_t target_vocab_size = 0;
  NormSpec hidden_norm;
  bool own_states = false;  // of the row before, behind a draft token, instead of the target's
  // Of kMtp.
  NormSpec embedding_norm;
  bool states_first = false;   // fc reads the state in front of the embedding
  bool normed_states = false;  // the target's states are those behind its final norm
  bool own_head = false;       // it has the target's head once more, for ranks divide that one

  bool is_mtp() const { return kind == Kind::kMtp; }
};

// Which part of a model a spec describes where its layers are divided into stages of a pipeline
// (program/stages.h). The default: all of it.
struct StageSpec {
  int32_t first_layer = 0;  // of the whole model's; DecoderSpec::layers are the stage's own
  bool embeds = true;       // it begins with the embedding, else with rows of the stage before it
  bool samples = true;      // it ends with the head, else its rows go to the next stage
  std::vector<std::string> tensors_elsewhere;  // that other stages alone have

  bool whole() const { return embeds && samples; }
};

struct DecoderSpec {
  std::string architecture;  // config.json's architectures[0]
  std::string model_type;
  int32_t vocab_size = 0;  // rows of the embedding and of the head
  int32_t hidden_size = 0;
  int32_t context_length = 0;  // tokens
  bool tied_embeddings = false;
  std::optional<NormSpec> final_norm;
  float embedding_scale = 1;
  float residual_scale = 1;
  float logits_scale = 1;
  float logits_softcap = 0;       // 0: none
  int32_t learned_positions = 0;  // rows of the position embedding; 0: there is none
  std::vector<RopeSpec> ropes;
  std::vector<LayerSpec> layers;
  // Groups of ranks, where several ranks have the model: each group has whole experts, which its
  // ranks divide among themselves (--ep-size).
  int32_t expert_groups = 1;
  // Data-parallel attention (--enable-dp-attention): each rank has rows and pages of its own, and
  // all of attention, embedding and head. The ranks divide MLPs and experts alone.
  bool whole_attention = false;
  DType checkpoint_dtype = DType::kBFloat16;  // what config.json says that the weights are
  std::vector<TokenId> eos_ids;               // sorted
  std::optional<PoolingSpec> pooling;         // there is no head over the vocabulary then
  std::optional<PatchesSpec> patches;         // it is an encoder: no vocabulary
  std::optional<TextsSpec> texts;             // it is an encoder of texts, with a `pooling`
  std::optional<ProjectorSpec> projector;     // of an encoder
  std::optional<TilesSpec> tiles;             // of an encoder
  std::optional<ImagesSpec> images;           // of a decoder beside an encoder
  std::optional<DraftSpec> draft;             // it is a draft head
  // For a draft head: layers in front of which states are kept. One is the number of layers where
  // those behind the last layer are kept, behind the final norm too where `keeps_normed_states`.
  std::vector<int32_t> kept_states;
  // Rows may have one of these added behind layers (ControlUse). Null: there are none. Shared by
  // the spec's copies.
  std::shared_ptr<const ControlVectors> control_vectors;
  bool keeps_normed_states = false;
  StageSpec stage;
  WeightNames names;

  int64_t num_parameters() const;
  // Of a picture's row in a prompt: its embedding and its parts.
  int64_t span_width() const {
    if (images && images->num_cross_layers > 0)
      return int64_t{images->num_cross_layers} * 2 * layers[0].attention.kv_dim();
    return int64_t{hidden_size} * (1 + (images ? images->num_deep_parts : 0));
  }
  // Of the vector that a text becomes; 0 without pooling.
  int32_t pooled_size() const;
};

// Of the head.
inline int32_t num_logits(const DecoderSpec& spec) {
  return spec.vocab_size - (spec.images ? spec.images->num_without_logit : 0);
}
inline int32_t num_cross_layers(const DecoderSpec& spec) {
  return spec.images ? spec.images->num_cross_layers : 0;
}
// Of pictures or of texts: rows of one entry see each other.
inline bool is_encoder(const DecoderSpec& spec) {
  return spec.patches.has_value() || spec.texts.has_value();
}

// What every part below relies on: sizes positive and within their kernels' limits, heads
// divisible, ropes that exist, and the same key/value shape in all layers (KvView knows one). The
// message names config.json's fields.
Status validate(const DecoderSpec& spec);

// "a {} b" with the layer's index; and "a {} b {} c" with the expert's as well.
std::string layer_name(const std::string& pattern, int32_t layer);
std::string expert_name(const std::string& pattern, int32_t layer, int32_t expert);

}  // namespace espalier
