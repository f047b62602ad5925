// A model's forward pass as data: named buffers and a flat list of operations over them. lower.h
// makes the list from a DecoderSpec, passes.h rewrites it, check.h proves that it is well formed,
// print.h shows it, and each back end has one interpreter that runs it. Nothing else states the
// order of a decoder's operations.
//
// Plain values without pointers: cheap to copy, safe to share while nobody changes them.
//
//   buffers   [rows, columns], rows symbolic; residuals are buffers like all others
//   ops       run from the first to the last; those whose result has kOutputs rows form the output
//             section, which runs once for each block of rows whose logits are wanted; those with
//             kTexts rows run once for each text that becomes a vector
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/activation/gelu.h"
#include "kernels/activation/op.h"
#include "kernels/router/op.h"
#include "models/decoder_spec.h"
#include "models/weight_id.h"

namespace espalier::program {

// How many rows a buffer has in a step; known when the step runs.
enum class RowCount : uint8_t {
  kTokens,   // query tokens of the batch
  kWanted,   // those whose final hidden state is needed, at most kTokens
  kOutputs,  // a block of rows of logits, or all rows that are pooled, at most kWanted
  kTexts,    // texts that become vectors
  // Where ranks have rows of their own (DecoderSpec::whole_attention): those of all ranks.
  kRankTokens,  // kTokens of the first rank, then of the second ...
  kRankWanted,  // kWanted in the same way
};
struct Rows {
  RowCount count = RowCount::kTokens;
  int32_t per_row = 1;  // top_k of (token, expert) pairs: count * per_row rows
  friend bool operator==(const Rows&, const Rows&) = default;
};

enum class ElementType : uint8_t {
  kActivation,  // float32 on the CPU, the weights' type on a GPU
  kFloat32,
  kInt32,
};

using BufferId = int32_t;
struct Buffer {
  std::string name;
  Rows rows;
  int32_t columns = 0;  // elements from one row to the next
  ElementType type = ElementType::kActivation;
  // Buffers of one storage share memory: the one that was written last is the one that may be
  // read. A storage is as large as its largest buffer.
  int32_t storage = -1;
};

// Columns [column, column + columns) of all rows of a buffer.
struct Operand {
  BufferId buffer = -1;
  int32_t column = 0;
  int32_t columns = 0;
  friend bool operator==(const Operand&, const Operand&) = default;
};

// Inputs -> outputs, in the order of Op::inputs and Op::outputs; [x] may be absent. An output that
// is also an input is changed in place. The attributes of a kind are the struct of its name.
enum class OpKind : uint8_t {
  kEmbed,           // -> x: row of the token; zero where another rank has it (VocabularyPart)
  kEmbedPosition,   // -> x: row of the position
  kEmbedType,       // -> x: row of the token's type
  kGridPosition,    // -> x: of each patch what its place makes of the rows of four positions
  kPatches,         // -> x: of each picture its patches, below a row of zeros where it has a class
  kInput,           // -> x: rows that the step is given
  kOutput,          // x -> : rows that the step gives to the next stage
  kClassEmbed,      // x -> x: each picture's first row becomes the class embedding
  kAddSpans,        // x -> x: a part of pictures' rows is added (SpanPart)
  kAddControl,      // x -> x: the rows' control vectors of the layer are added
  kScale,           // x -> y = factor * x
  kSoftcap,         // x -> x = cap * tanh(x / cap)
  kNorm,            // x -> y: of each group of columns by itself
  kMatmul,          // x, [residual] -> y = activation(norm(x) W^T + b) + residual
  kHeadMatmul,      // x -> y: of each head by its own matrix
  kHeadCopy,        // x -> y: some columns of each head
  kRope,            // x -> x: some columns of each head
  kKvAppend,        // k, [v] -> : to the layer's pages
  kAttention,       // q, [k, v of the new tokens] -> y: over the layer's pages
  kSelectRows,      // x ... -> y ...: the rows that the result's row count names
  kMeanParts,       // x -> y: the mean of the parts of a row, each as wide as y
  kTilePosition,    // -> x: row of the picture's shape and the tile
  kKeepRows,        // x -> x: an encoder's padding, and tokens that see no picture, become zeros
  kCrossAttention,  // q -> y: over the pictures that the token sees; zeros where it sees none
  kFill,            // -> x: one number
  kActivation,      // gate_up (or up) -> y = activation(gate) * up
  kResidualAdd,     // residual, x -> residual + scale * x
  kGatedAdd,        // residual, x, gate -> residual + sigmoid(gate) * x; gate: [rows, 1]
  kMoeRoute,        // x -> experts, weights: of each row's (token, expert) pairs
  kMoeMatmul,       // x (rows or pairs), experts -> y (pairs)
  kMoeCombine,      // pairs, weights, experts, [shared], [gate], [residual] -> y
  kPool,            // x -> y: one row of each text
  kRelu,            // x -> x
  // Where several ranks have a part of the model each.
  kAllReduce,    // x, [residual] -> x, or residual + x, [norm of that]; x: the sum of all ranks' x
  kAllGather,    // x -> y: all ranks' columns side by side
  kBarrier,      // x -> : what all ranks wrote to pages can be read; x says which rows there are
  kGatherRows,   // x -> y: all ranks' rows one behind the other
  kScatterSums,  // x -> y: the rank's own rows of the sum of all ranks' x
  // What passes make of several of those above.
  kQkRopeAppend,   // q, k, [v] -> q, [k]: norms of heads, rope, and keys and values to pages
  kMoeExperts,     // x, experts, weights -> y: matmul, activation, matmul and combination
  kMoeBlock,       // x, [residual] -> y: norm, route, experts, shared expert, residual
  kLatentPrefill,  // queries, rotated q -> values: attention with keys and values of each head
  kMegakernel,     // -> x: embedding and all layers of one token
};

// The tokens whose embeddings a rank has: [first, first + count).
struct VocabularyPart {
  int32_t first = 0;
  int32_t count = 0;
};

// Rows that the step of a draft head, or of a stage of a pipeline, is given.
struct Input {
  enum class Kind : uint8_t {
    kStates,      // the target's, or the head's own of the row before
    kEmbeddings,  // of the tokens, from the target's table
    kStage,       // what the stage before has made of the tokens
  };
  Kind kind = Kind::kStates;
};

struct Scale {
  float factor = 1;
  bool tokens = false;  // of tokens alone: rows of pictures in the step are put back as they were
};
struct Softcap {
  float cap = 0;
};

// Of each row of a picture in a prompt the columns [index * hidden, (index + 1) * hidden); part 0
// is its embedding.
struct SpanPart {
  int32_t index = 0;
};

// How output rows are selected: each output row is `count` rows of x, one behind the other.
struct MergeRows {
  int32_t count = 1;
};

// x: [rows, groups, columns / groups]; each group by itself, with one weight for all.
struct Norm {
  NormSpec spec;
  WeightId weight;  // of a layer norm the weight, then the bias
  int32_t groups = 1;
};

struct Activation {
  kernels::Activation kind = kernels::Activation::kSilu;
  bool gated = true;                  // x: [gate; up], each of `dim`; else up alone
  float limit = 0;                    // kClampedSwiglu
  int32_t dim = 0;                    // of the result
  std::optional<kernels::Gelu> gelu;  // instead of `kind`
};

// W: [out_features, in_features]. With an activation y has its `dim` columns, else out_features.
struct Matmul {
  WeightId weight;
  WeightId bias;
  int32_t in_features = 0;
  int32_t out_features = 0;  // of the matrix: both halves of [gate; up]
  // Fused by passes.
  std::optional<Norm> norm;              // of x, on its way in
  std::optional<Activation> activation;  // of x W^T + b
  bool residual = false;                 // the second input is added to the result
  bool adapters = false;  // each row's LoRA adapter adds to the result; REQUIRES no activation
};

// y[head * y_head + o] = sum over i of x[head * x_head + i] W[head, o, i], in elements of a row.
struct HeadMatmul {
  WeightId weight;  // [heads, out_features, in_features]
  int32_t heads = 0;
  int32_t in_features = 0, out_features = 0;
  int32_t x_head = 0, y_head = 0;  // from one head to the next
};

// y[head * y_head + y_begin + i] = x[head * x_head + x_begin + i], i < count.
struct HeadCopy {
  int32_t heads = 0;
  int32_t count = 0;
  int32_t x_head = 0, x_begin = 0;
  int32_t y_head = 0, y_begin = 0;
};

// Of each head elements [begin, begin + rotary_dim of the rope).
struct Rope {
  int32_t rope = 0;  // index into DecoderSpec::ropes
  int32_t heads = 0;
  int32_t head_dim = 0;
  int32_t begin = 0;
};

struct KvAppend {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t sliding_window = 0;  // tokens; above 0 the layer may have page tables of its own
};

struct Attention {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 0;
  int32_t sliding_window = 0;  // tokens that a query sees, itself included; 0: all
  float softcap = 0;
  WeightId sinks;
  bool latent = false;    // there is one plane, of keys that are values too
  bool causal = true;     // false: each query sees all of its sequence
  bool windowed = false;  // or its window of the picture, where not causal
  int32_t reach = 0;      // or the rows within this distance of it, where not causal; 0: all
  bool pictures = false;  // a picture's rows see all rows of their picture, where causal
};

// Over keys and values of CrossKvSpec `index`.
struct CrossAttention {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 0;
  int32_t index = 0;
};

struct Fill {
  float value = 0;
};

struct ResidualAdd {
  float scale = 1;
};

struct AllReduce {
  // Fused by passes. With a residual the first output is the second input, changed in place; with
  // a norm the second output is the norm of that.
  bool residual = false;
  std::optional<Norm> norm;
};

struct MoeRoute {
  kernels::RouterSpec router;
  WeightId weight, bias, correction;
  int32_t in_features = 0;
  int32_t num_local = 0;    // experts that have a matrix here
  int32_t first_local = 0;  // of them
  int32_t num_slots = 0;    // experts are replaced by slots of so many that hold them; 0: they stay
};

// Each pair by the matrix of its expert. x has a row for each token, or for each pair.
struct MoeMatmul {
  WeightId weight, bias;
  int32_t num_experts = 0;   // that have a matrix here
  int32_t first_expert = 0;  // of them; pairs of experts that are not here have no result
  int32_t num_routed = 0;    // all experts that the router selects among, or all their slots
  int32_t in_features = 0;
  int32_t out_features = 0;              // of a matrix
  std::optional<Activation> activation;  // fused by passes
};

// y = [residual] + scale * (sum over a row's pairs of weight * pair + [sigmoid(gate) *] shared).
struct MoeCombine {
  int32_t num_experts = 0;
  int32_t top_k = 0;
  bool spread = false;  // some pairs have no result here: their experts are other ranks'
  // Fused by passes; each says that its input is there.
  bool shared = false, gate = false, residual = false;
  float scale = 1;
};

struct Pool {
  PoolingSpec::Kind kind = PoolingSpec::Kind::kLast;
};

// Norms (none: none), then rotation (none: positions are not encoded), then the append.
struct QkRopeAppend {
  std::optional<Norm> q_norm, k_norm;  // groups are heads
  std::optional<Rope> rope;            // of q's heads and k's together
  KvAppend append;
};

struct MoeExperts {
  MoeMatmul gate_up, down;
  std::optional<Activation> activation;  // none: it is gate_up's own
  MoeCombine combine;
};

struct MoeBlock {
  std::optional<Norm> norm;
  MoeRoute route;
  MoeExperts experts;
  // Of the shared expert; no weights where there is none.
  Matmul shared_gate_up, shared_down;
  Activation shared_activation;
  WeightId shared_gate;
};

// Latent attention with each head's keys and values computed from the latents for the step.
struct LatentPrefill {
  WeightId weight;  // [heads, nope_dim + value_dim, rank]
  int32_t heads = 0;
  int32_t nope_dim = 0, rope_dim = 0, value_dim = 0, rank = 0;
  float scale = 0;
};

struct Megakernel {
  int32_t num_layers = 0;
};

using Attributes =
    std::variant<std::monostate, VocabularyPart, Input, Scale, Softcap, SpanPart, MergeRows, Norm,
                 Activation, Matmul, HeadMatmul, HeadCopy, Rope, KvAppend, Attention,
                 CrossAttention, Fill, ResidualAdd, AllReduce, MoeRoute, MoeMatmul, MoeCombine,
                 Pool, QkRopeAppend, MoeExperts, MoeBlock, LatentPrefill, Megakernel>;

struct Op {
  OpKind kind = OpKind::kEmbed;
  int32_t layer = -1;  // -1: before or behind the layers
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;
  Attributes attributes;
  // Weights that stand for themselves: of kEmbed, kEmbedPosition, kEmbedType, kGridPosition,
  // kTilePosition and kClassEmbed the table.
  WeightId table;
  // Launch policy: the kernel may start while the one in front of it ends (programmatic dependent
  // launch); back ends without it ignore it.
  bool dependent_launch = false;

  template <typename T>
  const T& as() const {
    return std::get<T>(attributes);
  }
  template <typename T>
  T& as() {
    return std::get<T>(attributes);
  }
};

struct Program {
  std::string name;  // the architecture
  std::vector<Buffer> buffers;
  std::vector<Op> ops;
  int32_t num_storages = 0;

  const Buffer& buffer(BufferId id) const { return buffers[static_cast<size_t>(id)]; }
  const Buffer& buffer(const Operand& operand) const { return buffer(operand.buffer); }
};

// The buffer of this name and shape as an operand, added where the program has none. Buffers of one
// name and several shapes (layers differ) share a storage and end in ".COLUMNS".
Operand find_or_add_buffer(Program& program, const std::string& name, int32_t columns,
                           Rows rows = {}, ElementType type = ElementType::kActivation);

// The whole of the buffer of this name. REQUIRES: there is one.
Operand find_buffer(const Program& program, std::string_view name);

// Rows that the operation computes: those of its first output, or of its first input where it has
// no output or where all ranks take part (kScatterSums).
Rows rows_of(const Program& program, const Op& op);

// The same rows of all ranks.
Rows rank_rows(const Rows& rows);

// The index of the first operation of the output section; ops.size() where there is none.
size_t output_begin(const Program& program);

// The weights that an operation reads, in the order of its attributes.
std::vector<WeightId> weights_of(const Op& op);

// "moe_route" ...
std::string_view op_name(OpKind kind);
std::string_view row_count_name(RowCount count);

}  // namespace espalier::program
