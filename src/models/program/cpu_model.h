// A decoder on the CPU: the interpreter of its program.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "models/decoder_spec.h"
#include "models/decoder_weights.h"
#include "models/expert_placement.h"
#include "models/program/cpu_context.h"
#include "models/program/cpu_hidden_states.h"
#include "models/program/cpu_ops.h"
#include "models/program/draft_target.h"
#include "models/program/partition.h"
#include "models/program/program.h"
#include "models/stage_model.h"
#include "models/weight_source.h"
#include "tensor/buffer.h"

namespace espalier::program {

// A rewrite of the lowered program, before the CPU's own passes.
using Rewrite = std::function<Program(Program)>;

// What the CPU runs of a lowered program: SiLU of gate and up in their GEMM, residuals added by
// GEMMs, experts in passes of bounded memory, unwanted rows dropped.
// GEMMs of layers take adapters if so requested; gate and up then are activated in memory.
Program cpu_passes(Program program, bool adapters = false);

struct CpuModelOptions {
  Rewrite rewrite;  // tests inject faults with it
  // Borrowed, outlives the model: of the rank whose part of the model this is, with its own keys
  // and values. Null: the model is whole.
  Collective* collective = nullptr;
  int32_t ranks_per_pool = kAllRanks;  // with a collective: see partition()
  // Adapters can be loaded. REQUIRES: no collective.
  bool adapters = false;
  // Rank 0 counts the tokens of all experts there; borrowed while the model is made. Null: none
  // does.
  ExpertCounts* expert_counts = nullptr;
  bool hidden_states = false;  // entries may ask for them. REQUIRES: no collective, no pooling.
};

class CpuModel final : public StageModel, public DraftTarget {
 public:
  // Checks the spec (of the whole model, or of a stage), lowers it and loads the weights. pool:
  // borrowed, outlives the model. kUnimplemented names an operation that the CPU does not run.
  static Result<std::unique_ptr<CpuModel>> create(const DecoderSpec& spec, const WeightTypes& types,
                                                  WeightSource& source, WorkPool& pool,
                                                  const CpuModelOptions& options = {});

  const ModelInfo& info() const override { return info_; }
  Status reserve(int32_t max_tokens, int32_t max_entries) override;
  ForwardOutput forward_stage(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                              const KvView& kv, const StageRows& rows,
                              const InputLogitsSink& input_logits) override;
  std::vector<float> finish_pooled(std::span<const float> row) override;
  Result<AdapterInfo> load_adapter(AdapterId id, const std::filesystem::path& folder,
                                   int32_t rank_max) override;
  void unload_adapter(AdapterId id) override { adapters_.remove(id); }
  void set_control(SlotId slot, const ControlUse& use) override {
    context_.adapters().set_control(slot, use);
  }
  Result<std::vector<DecoderWeights>> read_weights(const OpenWeights& open) override;
  void set_weights(std::vector<DecoderWeights> weights) override {
    weights_ = std::move(weights.front());
  }

  CpuView kept_states() const override { return context_.view(kept_states_); }
  // Of a rank that has a part of the vocabulary: the rows of that part, and no others.
  void embed(std::span<const TokenId> ids, const CpuView& out) override;
  const kernels::PackedMatrix* head_matrix() const override {
    return has_vocabulary_part() ? nullptr : &weights_.head;
  }

  // Experts that change places between steps (ExpertBalancer), of a rank's part of a model whose
  // spec has slots for them. Room for an expert beside those in slots, which is the spare slot.
  // kUnimplemented where experts of a layer are stored in different ways.
  Status reserve_spare_expert();
  // Copies between slots of this rank and of `source`. REQUIRES: reserve_spare_expert() of both.
  void copy_expert(int32_t layer, const SlotCopy& copy, CpuModel& source);
  // Which expert each slot of all ranks has from here on.
  void set_expert_slots(int32_t layer, const ExpertSlots& slots);

 private:
  struct BoundOp {
    CpuOp run = nullptr;
    const Op* op = nullptr;
    Rows rows;
    bool cross = false;  // a step in which nobody sees a picture leaves it out
  };

  // How the weights are laid out and held.
  struct Storage {
    DecoderSpec whole;  // of all ranks
    WeightTypes types;
    Ranks ranks;              // of which rank
    MlpWeights spare_expert;  // reserve_spare_expert()
  };

  MlpWeights& expert_in(int32_t layer, int32_t slot);
  CpuModel(DecoderSpec spec, Program program, Storage storage, DecoderWeights weights,
           std::unique_ptr<kernels::CpuBackend> backend, const CpuModelOptions& options);
  void bind();
  bool has_vocabulary_part() const { return divides_vocabulary(storage_.whole, storage_.ranks); }
  // Those of [first, last) that have rows in this step.
  void run(size_t first, size_t last);
  // The output section for these wanted rows.
  void run_outputs(std::span<const int32_t> rows, float* out);
  std::span<const float> sample_logits(const ForwardBatch& batch);
  void run_layers(const ForwardBatch& batch);
  void take_final_states(const ForwardBatch& batch);
  std::span<const float> pooled_rows(const ForwardBatch& batch);
  void input_logits(const ForwardBatch& batch, const InputLogitsSink& sink);
  void flush_input_logits(const InputLogitsSink& sink);

  DecoderSpec spec_;  // changed by set_expert_slots() alone,
  const Program program_;
  Storage storage_;  // as this
  DecoderWeights weights_;
  const std::unique_ptr<kernels::CpuBackend> backend_;
  ModelInfo info_;
  CpuContext context_;
  const bool takes_adapters_;
  AdapterTable adapters_;
  std::vector<BoundOp> ops_;
  Operand kept_states_;                           // where there are some
  std::optional<CpuHiddenStates> hidden_states_;  // where entries may ask for them
  // Of ops_, where the output section begins, and what runs for each text that becomes a vector.
  struct Sections {
    size_t output_begin = 0, text_begin = 0;
  };
  Sections sections_;

  int32_t max_tokens_ = 0, max_entries_ = 0;
  espalier::Buffer logits_;        // [max_entries, vocab]
  espalier::Buffer block_logits_;  // [a block of input log-probabilities, vocab]
  std::vector<int32_t> picked_;    // wanted rows whose outputs are computed next
  struct Target {
    int32_t entry = 0, target = 0;
  };
  std::vector<Target> targets_;  // of picked_, for the sink
};

}  // namespace espalier::program
