// A model that runs: weights in memory and a forward pass over a ForwardBatch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/control_vectors.h"
#include "models/expert_placement.h"
#include "models/load_progress.h"
#include "seams/control_use.h"
#include "seams/forward_batch.h"
#include "seams/kv_view.h"
#include "seams/stored_vocabulary.h"

namespace espalier {

class WeightSource;
class WorkPool;
struct Ranks;

// Of a model whose texts become vectors.
struct PooledInfo {
  int32_t size = 0;                 // numbers in a vector
  bool all_tokens = false;          // it is a mean over all of them, not the last one's
  bool normalize = false;           // to length 1
  bool is_scores = false;           // of a head for classification or reward, not an embedding
  std::vector<std::string> labels;  // [size] of scores, where the model names them
  // Of encoders of texts, whose rows of a text see each other:
  bool each_token = false;  // every token has a vector (late interaction)
  bool pairs = false;       // scores are of a query and a document as a pair (a cross-encoder)
  bool sigmoid = false;     // of a pair's one score, which then is between 0 and 1
};

// Of a model that reads pictures.
struct ImagesInfo {
  TokenId placeholder = -1;  // the prompt's token that stands for a picture
  int32_t num_rows = 0;      // positions that a picture takes in a prompt; 0: its size decides
  int32_t width = 0;         // of a row
  // As ImagesSpec's.
  std::string_view mark = {}, marked = {};
  TokenId line_end = -1, picture_end = -1;
  TokenId video_placeholder = -1;  // of models that read videos
  TokenId grid_begin = -1, grid_end = -1;
  bool bidirectional = false;
  // Of cross attention: a picture is one token, whose rows these layers read, and nothing of the
  // layers lies in pages. 0: a row is a token.
  int32_t num_cross_layers = 0;
  bool sounds = false;  // it reads sounds in the place of pictures
};

// Of a draft head or model beside a model: what each of its layers keeps of a token, in as many
// planes as the model's layers have.
struct DraftKvInfo {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t num_layers = 1;
};

// What the engine must know of a model to size its memory and check its inputs.
struct ModelInfo {
  std::string architecture;  // "LlamaForCausalLM"
  std::string model_type;    // "llama"
  int32_t vocab_size = 0;    // width of the logits
  int32_t context_length = 0;
  int32_t hidden_size = 0;
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  // Of a layer: K and V, or one that is both (latent attention). See KvView.
  int32_t kv_planes = 2;
  // Layers that see no more than the last positions: the largest such window, its own position
  // included (0: there are none), and which they are, [num_layers] (empty: none).
  int32_t sliding_window = 0;
  std::vector<bool> window_layers;
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;  // as loaded
  // What weight_bytes are of, where ranks have some parameters each (whole attention); 0: of
  // num_parameters.
  int64_t num_loaded_parameters = 0;
  std::vector<TokenId> eos_ids;      // from generation_config.json, else config.json
  std::optional<PooledInfo> pooled;  // the model makes vectors of texts, and does not generate
  std::optional<ImagesInfo> images;  // the model reads pictures
  // The model has a draft head or a draft model, whose keys and values lie in layers of their own
  // behind the others.
  std::optional<DraftKvInfo> draft_kv;
  bool returns_hidden_states = false;        // takes entries with hidden_begin >= 0
  std::vector<std::string> control_vectors;  // names, in the order of ControlUse::index

  int32_t num_kv_layers() const { return num_layers - (images ? images->num_cross_layers : 0); }
  int32_t num_window_layers() const {
    return static_cast<int32_t>(std::count(window_layers.begin(), window_layers.end(), true));
  }
  int64_t kv_bytes_per_layer_token(KvType type) const {
    return int64_t{kv_planes} * num_kv_heads * head_dim * kv_element_bytes(type);
  }
  int64_t draft_kv_bytes_per_token(KvType type) const {
    if (!draft_kv) return 0;
    return int64_t{kv_planes} * draft_kv->num_layers * draft_kv->num_kv_heads * draft_kv->head_dim *
           kv_element_bytes(type);
  }
  // Of all layers together.
  int64_t kv_bytes_per_token(KvType type) const {
    return num_kv_layers() * kv_bytes_per_layer_token(type) + draft_kv_bytes_per_token(type);
  }
};

// Of a LoRA adapter that was loaded.
struct AdapterInfo {
  int32_t rank = 0;         // the largest of its modules
  int32_t num_modules = 0;  // matrices that it adapts
  int64_t size_bytes = 0;
};

// The sampling defaults of generation_config.json, or of a GGUF; a field that is absent there is
// absent here.
struct GenerationDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k, max_new_tokens;
};

class DraftHead;
class ExpertCounts;

enum class LoadFormat {
  kAuto,   // safetensors of the folder, or the GGUF
  kDummy,  // weights drawn from a seed for any config.json
};

struct ModelLoadOptions {
  std::filesystem::path path;  // a folder with config.json, or a .gguf file
  LoadFormat format = LoadFormat::kAuto;
  uint64_t seed = 0;           // of dummy weights
  std::string dtype = "auto";  // auto (the checkpoint's), float32, bfloat16
  int32_t context_length = 0;  // 0: the model's own
  // The model makes embeddings whatever config.json's architecture says: last token, length 1.
  bool is_embedding = false;
  std::string config_overrides;  // a JSON object merged into config.json, nested ones too
  WorkPool* pool = nullptr;      // borrowed; outlives the model
  // Ranks that divide the model among themselves: threads, each with its share of the pool's number
  // of threads. Fails where the model's heads or features are not divided evenly.
  int32_t tp_size = 1;
  // Stages of a pipeline that divide the layers among themselves, each of tp_size ranks, and the
  // tokens of their micro-batches (0: chosen).
  int32_t pp_size = 1;
  int32_t pp_micro_batch_tokens = 0;
  bool nccl = false;  // ranks on GPUs exchange by NCCL though they have peer access
  // Groups of these ranks that have whole experts; divides tp_size.
  int32_t ep_size = 1;
  // Each of several ranks has all of attention, for rows of its own (DecoderSpec::whole_attention).
  bool enable_dp_attention = false;
  ExpertLocations experts;  // among these groups. Where they move, expert_counts is not null
  std::filesystem::path draft_path;        // the folder of a draft head; empty: none
  std::filesystem::path draft_model_path;  // of a draft model (draft_model.h); empty: none
  int32_t first_cpu = 0;                   // of the usable ones, where ranks' threads begin
  bool enable_lora = false;                // load_adapter() is to be used
  std::vector<NamedPath> control_vectors;  // that rows may have added (ControlVectors)
  bool return_hidden_states = false;  // entries may ask for them; kUnimplemented where they cannot
  int32_t max_lora_rank = 0;  // of an adapter, where scratch is sized by it; 0: the back end's own
  // Where the model counts the tokens of its experts; borrowed. Null: it does not.
  ExpertCounts* expert_counts = nullptr;
  ReportLoaded progress;  // of a checkpoint; null: progress goes to the log
};

// A forward pass leaves its result here. Rows are in the batch's order.
struct ForwardOutput {
  // [num_rows, vocab_size] float32: for every entry with `sample` its last query token that is no
  // draft, and behind it those of its draft samples, in entry order. Owned by the model; valid
  // until the next forward.
  std::span<const float> sample_logits;
  // [num_rows, hidden_size]: of every entry with pooled_begin >= 0 its query tokens from there on,
  // after the final norm, in entry order. Empty in a batch where any entry wants logits. Owned and
  // valid as the logits are.
  std::span<const float> pooled_rows;
  // Of every entry with hidden_begin >= 0, in entry order: [query tokens from hidden_begin on,
  // hidden_layers, hidden_size]. Owned and valid as the logits are.
  std::span<const float> hidden_states;
};

// Called during forward for prompt positions whose log-probabilities are wanted, a few rows at a
// time so that no more than a block of logits is ever held.
//   entry: index in the batch; target: index into its input_logprob_targets; logits: [vocab_size].
using InputLogitsSink =
    std::function<void(int32_t entry, int32_t target, std::span<const float> logits)>;

// Opens the weights of the whole model for one rank, with that rank's threads, on its thread, all
// ranks at a time. Null from it: the rank drops its weights, and no forward runs until it has some.
using OpenWeights =
    std::function<std::unique_ptr<WeightSource>(const Ranks& ranks, WorkPool& threads)>;

// Not thread-safe: one forward at a time, from one thread (it uses the pool's threads inside).
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelInfo& info() const = 0;

  // Sizes all scratch for batches of at most this; afterwards forward allocates nothing that grows.
  virtual Status reserve(int32_t max_tokens, int32_t max_entries) = 0;

  // Runs `batch`, writing its tokens' keys and values into the pages named by the batch.
  // `token_ids` is batch.token_ids with every kTokenFromSlot already resolved, [num_tokens]; those
  // of embedding spans are not read. An
  // entry's result does not depend on the other entries: the same tokens with the same prefix give
  // the same bits, whatever the batch, the chunking and the number of threads.
  virtual ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                                const KvView& kv, const InputLogitsSink& input_logits) = 0;

  // The vector of a text whose pooled row is `row`, [hidden_size]: through the head's layers where
  // there are some, then as it is (not normalised). REQUIRES: info().pooled.
  virtual std::vector<float> finish_pooled(std::span<const float> row);

  // Drafts what forward() computes next; null where the model was loaded without one.
  virtual DraftHead* draft_head() { return nullptr; }

  // Reads a folder that PEFT saved and lets entries name the adapter by this id, which no other
  // has. rank_max: 0: any. Fails with what does not fit; kFailedPrecondition where the model was
  // loaded without enable_lora. Thread-safe, also beside forward().
  virtual Result<AdapterInfo> load_adapter(AdapterId id, const std::filesystem::path& folder,
                                           int32_t rank_max);
  // Unknown ids are no error. Thread-safe; entries that still name it run without an adapter.
  virtual void unload_adapter(AdapterId) {}

  // The control vector that entries of this slot have from the next forward on. REQUIRES: the model
  // has the vector (ModelInfo::control_vectors).
  virtual void set_control(SlotId, const ControlUse&) {}

  // Loads weights of the same shapes in place of the model's, all of them or, where it fails, none.
  // Holds both until it returns. REQUIRES that no forward runs.
  virtual Status replace_weights(const OpenWeights& open);
};

// Reads config.json and loads the weights. Fails by name: an architecture that is not known (with
// the list of those that are), a tensor that is missing, has the wrong shape, or is left over.
Result<std::unique_ptr<Model>> load_model(const ModelLoadOptions& options);

// config.json and generation_config.json alone, no weights. Uses path, is_embedding and
// config_overrides.
Result<ModelInfo> read_model_info(const ModelLoadOptions& options);
// The vocabulary inside a model's file (a GGUF); nothing where the model is a folder of others.
Result<std::optional<StoredVocabulary>> read_model_vocabulary(const std::filesystem::path& path);
Result<GenerationDefaults> read_generation_defaults(const std::filesystem::path& folder);

}  // namespace espalier
