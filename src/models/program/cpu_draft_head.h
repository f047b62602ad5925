// A draft head on the CPU: the interpreter of its two programs, which differ in where a row's
// states come from. Borrows the model that it drafts for; the pool outlives both.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "models/decoder_spec.h"
#include "models/decoder_weights.h"
#include "models/draft_head.h"
#include "models/model.h"
#include "models/program/cpu_context.h"
#include "models/program/draft_target.h"
#include "models/program/program.h"
#include "models/weight_source.h"
#include "tensor/buffer.h"

namespace espalier::program {

class CpuDraftHead final : public DraftHead {
 public:
  // spec: as make_draft_spec() makes it. draft_ids: [spec.vocab_size] the model's ids of the tokens
  // that it predicts among. The model keeps the states that the spec names, and has a head_matrix()
  // for an MTP layer without own_head.
  static Result<std::unique_ptr<CpuDraftHead>> create(const DecoderSpec& spec,
                                                      std::vector<TokenId> draft_ids,
                                                      const WeightTypes& types,
                                                      WeightSource& source, WorkPool& pool,
                                                      DraftTarget& target);

  const DraftHeadInfo& info() const override { return info_; }
  DraftKvInfo kv_info() const override {
    const AttentionSpec& a = first_.spec.layers[0].attention;
    return {.num_kv_heads = a.num_kv_heads, .head_dim = a.head_dim};
  }
  Status reserve(int32_t max_tokens, int32_t max_entries) override;
  std::span<const TokenId> draft(const ForwardBatch& batch, std::span<const int32_t> rows,
                                 const KvView& kv) override;
  std::span<const TokenId> draft_next(const ForwardBatch& batch, std::span<const int32_t> rows,
                                      const KvView& kv) override;
  std::span<const float> logits() const override;

 private:
  // Behind tokens that the target has computed, or behind its own.
  struct Pass {
    Pass(const DecoderSpec& of, const Program& lowered, const DecoderWeights& weights,
         kernels::CpuBackend& backend);
    const DecoderSpec spec;
    const Program program;
    CpuContext context;
    size_t output_begin = 0;
    Operand next_states;
  };

  CpuDraftHead(const DecoderSpec& spec, std::vector<TokenId> draft_ids, DecoderWeights weights,
               std::unique_ptr<kernels::CpuBackend> backend, DraftTarget& target);
  std::span<const TokenId> run(Pass& pass, const ForwardBatch& batch, const GivenRows& given,
                               const KvView& kv);
  void take_best();

  DraftTarget& target_;
  const std::vector<TokenId> draft_ids_;
  const DecoderWeights weights_;
  const std::unique_ptr<kernels::CpuBackend> backend_;
  DraftHeadInfo info_;
  Pass first_, next_;
  KvView kv_;  // of its layer alone

  espalier::Buffer embeddings_;    // [max_tokens, hidden]
  espalier::Buffer states_;        // [max_entries, hidden]: of the call before
  espalier::Buffer logits_;        // [max_entries, draft vocabulary]
  std::vector<int32_t> all_rows_;  // 0, 1, 2 ...
  std::vector<TokenId> best_;
};

}  // namespace espalier::program
