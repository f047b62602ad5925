#include "models/program/cpu_draft_head.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "models/program/check.h"
#include "models/program/cpu_model.h"
#include "models/program/cpu_ops.h"
#include "models/program/lower.h"
#include "models/weight_layout.h"

namespace espalier::program {
namespace {

DecoderSpec with_own_states(DecoderSpec spec, bool own) {
  spec.draft->own_states = own;
  return spec;
}

Program lower_head(const DecoderSpec& spec) { return cpu_passes(lower(spec)); }

}  // namespace

CpuDraftHead::Pass::Pass(const DecoderSpec& of, const Program& lowered,
                         const DecoderWeights& weights, kernels::CpuBackend& backend)
    : spec(of),
      program(lowered),
      context(spec, program, weights, backend),
      output_begin(espalier::program::output_begin(program)),
      next_states(find_buffer(program, kNextStates)) {}

CpuDraftHead::CpuDraftHead(const DecoderSpec& spec, std::vector<TokenId> draft_ids,
                           DecoderWeights weights, std::unique_ptr<kernels::CpuBackend> backend,
                           DraftTarget& target)
    : target_(target),
      draft_ids_(std::move(draft_ids)),
      weights_(std::move(weights)),
      backend_(std::move(backend)),
      info_{.target_layers = spec.draft->target_layers,
            .draft_vocab_size = spec.vocab_size,
            .num_parameters = spec.num_parameters(),
            .weight_bytes = weights_.size_bytes()},
      first_(spec, lower_head(spec), weights_, *backend_),
      next_(with_own_states(spec, true), lower_head(with_own_states(spec, true)), weights_,
            *backend_) {}

Result<std::unique_ptr<CpuDraftHead>> CpuDraftHead::create(const DecoderSpec& spec,
                                                           std::vector<TokenId> draft_ids,
                                                           const WeightTypes& types,
                                                           WeightSource& source, WorkPool& pool,
                                                           DraftTarget& target) {
  ESP_RETURN_IF_ERROR(validate(spec));
  ESP_CHECK(spec.draft && std::ssize(draft_ids) == spec.vocab_size);
  for (const bool own : {false, true}) {
    ESP_RETURN_IF_ERROR(check(lower_head(with_own_states(spec, own))));
  }
  ESP_ASSIGN_OR_RETURN(auto backend, kernels::CpuBackend::create(pool));
  ESP_ASSIGN_OR_RETURN(DecoderWeights weights, load_weights(*backend, spec, weight_layout(spec),
                                                            lower_head(spec), types, source));
  if (spec.draft->is_mtp() && !spec.draft->own_head) weights.target_head = target.head_matrix();
  return std::unique_ptr<CpuDraftHead>(
      new CpuDraftHead(spec, std::move(draft_ids), std::move(weights), std::move(backend), target));
}

Status CpuDraftHead::reserve(int32_t max_tokens, int32_t max_entries) {
  const int64_t hidden = first_.spec.hidden_size;
  ESP_RETURN_IF_ERROR(next_.context.reserve(max_entries, max_entries, max_entries));
  ESP_RETURN_IF_ERROR(first_.context.reserve(max_tokens, max_entries, max_entries));
  ESP_RETURN_IF_ERROR(allocate_floats(std::max(max_tokens, max_entries), hidden, embeddings_));
  ESP_RETURN_IF_ERROR(allocate_floats(max_entries, hidden, states_));
  ESP_RETURN_IF_ERROR(allocate_floats(max_entries, first_.spec.vocab_size, logits_));
  all_rows_.resize(static_cast<size_t>(max_entries));
  std::iota(all_rows_.begin(), all_rows_.end(), 0);
  best_.reserve(static_cast<size_t>(max_entries));
  kv_.layers.reserve(1);
  return Status();
}

std::span<const TokenId> CpuDraftHead::draft(const ForwardBatch& batch,
                                             std::span<const int32_t> rows, const KvView& kv) {
  return run(first_, batch, {.states = target_.kept_states(), .state_rows = rows}, kv);
}

std::span<const TokenId> CpuDraftHead::draft_next(const ForwardBatch& batch,
                                                  std::span<const int32_t> rows, const KvView& kv) {
  const CpuView states{states_.as<float>(), next_.spec.hidden_size};
  return run(next_, batch, {.states = states, .state_rows = rows}, kv);
}

// The states that were read lie where the new ones go: they are copied when all is computed.
std::span<const TokenId> CpuDraftHead::run(Pass& pass, const ForwardBatch& batch,
                                           const GivenRows& given, const KvView& kv) {
  best_.clear();
  if (batch.token_ids.empty()) return best_;
  const int32_t hidden = pass.spec.hidden_size;
  GivenRows all = given;
  all.embeddings = {embeddings_.as<float>(), hidden};
  target_.embed(batch.token_ids, all.embeddings);
  kv_.page_size = kv.page_size;
  kv_.layers.assign(1, kv.layers.back());
  CpuContext& context = pass.context;
  context.begin(batch, batch.token_ids, kv_, all);
  const auto run_ops = [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      const Op& op = pass.program.ops[i];
      if (context.num_rows(rows_of(pass.program, op)) > 0) cpu_op(op.kind)(context, op);
    }
  };
  run_ops(0, pass.output_begin);
  const auto num_drafts = static_cast<size_t>(context.wanted().num_rows());
  if (num_drafts == 0) return best_;
  context.begin_outputs(std::span(all_rows_).first(num_drafts), logits_.as<float>());
  run_ops(pass.output_begin, pass.program.ops.size());
  const CpuView states = context.view(pass.next_states);
  std::copy_n(states.data, static_cast<int64_t>(num_drafts) * hidden, states_.as<float>());
  best_.resize(num_drafts);
  take_best();
  return best_;
}

// Of equal logits the first one. Logits that are no numbers are drafts like any other: a step
// verifies them.
void CpuDraftHead::take_best() {
  const auto width = static_cast<int64_t>(draft_ids_.size());
  const float* logits = logits_.as<float>();
  backend_->pool().parallel_for(std::ssize(best_), 1, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* begin = logits + row * width;
      const auto best = std::max_element(begin, begin + width) - begin;
      best_[static_cast<size_t>(row)] = draft_ids_[static_cast<size_t>(best)];
    }
  });
}

std::span<const float> CpuDraftHead::logits() const {
  return {logits_.as<float>(), best_.size() * draft_ids_.size()};
}

}  // namespace espalier::program
