// What the CPU's operations work on: the weights, the memory of a program's buffers, and the step
// that runs.
//
// Not thread-safe: one step at a time. Borrows all that it is made of; the owner (CpuModel) keeps
// them. Sized by reserve(); a step allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "kernels/embedding/op.h"
#include "models/decoder_spec.h"
#include "models/decoder_weights.h"
#include "models/program/cpu_adapters.h"
#include "models/program/cpu_experts.h"
#include "models/program/cpu_ropes.h"
#include "models/program/picture_rows.h"
#include "models/program/program.h"
#include "models/program/step_tokens.h"
#include "models/program/wanted_rows.h"
#include "models/stage_model.h"
#include "seams/forward_batch.h"
#include "seams/kv_view.h"
#include "tensor/buffer.h"
#include "tensor/collective.h"

namespace espalier::program {

// Rows of an operand in memory.
struct CpuView {
  float* data = nullptr;  // of the first row's first column
  int64_t stride = 0;     // elements from one row to the next
};

// What a step is given in place of tokens: an encoder's the patches of a picture, a draft head's
// the rest (Input). It outlives the step.
struct GivenRows {
  std::span<const float> patches;       // [patches, features]
  std::span<const int32_t> places;      // [3, patches]: components of rotary positions, or empty
  std::span<const BatchEntry> windows;  // of attention; empty: there are none
  std::span<const kernels::MixedRow> positions;  // [patches], of kGridPosition; or empty
  // Where tiles see each other: of each row the row of kTilePosition's table, and how many rows,
  // the first ones, are no padding.
  std::span<const int32_t> tiles;
  int64_t num_kept = 0;
  std::span<const int32_t> types;                // [tokens], of kEmbedType; or empty
  CpuView states;
  std::span<const int32_t> state_rows;  // of each token its row of `states`
  CpuView embeddings;                   // a row for each token
  StageRows stage;                      // of a stage of a pipeline
};

class CpuContext {
 public:
  // collective: of a rank's part of a model; null where the program has no such operations.
  CpuContext(const DecoderSpec& spec, const Program& program, const DecoderWeights& weights,
             kernels::CpuBackend& backend, Collective* collective = nullptr);
  // Memory for steps of at most this; output_rows: of one run of the output section.
  Status reserve(int32_t max_tokens, int32_t max_entries, int64_t output_rows);

  // Starts a step. The batch, the ids and the view outlive it.
  void begin(const ForwardBatch& batch, std::span<const TokenId> token_ids, const KvView& kv,
             const GivenRows& given = {});
  // The rows that the output section selects from here on, among the wanted rows, and where the
  // section's last buffer lies: out, [rows, columns]; null: in memory of the context.
  void begin_outputs(std::span<const int32_t> rows, float* out);

  const GivenRows& given() const { return inputs_.given; }
  const DecoderSpec& spec() const { return spec_; }
  const DecoderWeights& weights() const { return weights_; }
  kernels::CpuBackend& backend() { return backend_; }
  // REQUIRES: the constructor was given one.
  Collective& collective() { return *collective_; }
  CpuExperts& experts() { return experts_; }
  CpuAdapters& adapters() { return adapters_; }

  int64_t num_rows(const Rows& rows) const;
  const Rows& rows_of(const Operand& operand) const { return program_.buffer(operand).rows; }
  int64_t num_rows(const Operand& operand) const { return num_rows(rows_of(operand)); }
  CpuView view(const Operand& operand) const;
  int32_t* ints(const Operand& operand) const;
  // Lets `to`, a whole buffer, be the memory of `from` for the rest of the step.
  void alias(const Operand& to, const Operand& from);

  const ForwardBatch& batch() const { return *batch_; }
  const KvView& kv() const { return *kv_; }
  StepTokens& tokens() { return tokens_; }
  std::span<const TokenId> token_ids() const { return tokens_.ids(); }
  const WantedRows& wanted() const { return wanted_; }
  std::span<const int32_t> output_rows() const { return output_rows_; }
  // The batch's entries, or their wanted tails.
  std::span<const BatchEntry> entries(RowCount count) const;
  // The same rows, each as an entry at the last position of its own entry, so that causal attention
  // lets it see all of that entry, or of its window; or where a reach is above 0 at the last one
  // that it sees, with the windows that attention has then. REQUIRES: the spec is an encoder's.
  struct SeeingRows {
    std::span<const BatchEntry> entries;
    std::span<const int32_t> windows;
  };
  SeeingRows each_row(RowCount count, bool windowed, int32_t reach);
  // The same rows where a picture's rows see each other. REQUIRES: the pictures of a step are in it
  // to their last rows.
  const PictureRows& picture_rows(RowCount count, int32_t sliding_window);
  const CpuRopes& ropes() const { return ropes_; }

 private:
  void place_buffers();
  int64_t max_rows(const Rows& rows) const;
  Status allocate_storages();
  Status reserve_linear();

  const DecoderSpec& spec_;
  const Program& program_;
  const DecoderWeights& weights_;
  kernels::CpuBackend& backend_;
  Collective* const collective_;
  CpuExperts experts_;
  CpuAdapters adapters_;
  WantedRows wanted_;
  std::vector<espalier::Buffer> storages_;
  StepTokens tokens_;
  std::vector<CpuView> views_;  // of each buffer's first column
  BufferId last_output_ = -1;   // what begin_outputs() places
  CpuRopes ropes_;
  int32_t max_tokens_ = 0;
  int64_t max_output_rows_ = 0;

  // Of the step that runs.
  const ForwardBatch* batch_ = nullptr;
  const KvView* kv_ = nullptr;
  std::span<const int32_t> output_rows_;
  struct Inputs {
    GivenRows given;
    std::vector<BatchEntry> rows;  // of each_row()
    std::vector<int32_t> reaches;  // the same
    PictureRows pictures;
  };
  Inputs inputs_;
};

}  // namespace espalier::program
