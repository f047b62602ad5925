#include "models/draft_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace espalier {
namespace {

// Tokens that the draft model does not have are padding of the model's vocabulary: it reads another
// in their place, and proposes none that the model does not have.
class DraftModel final : public DraftHead {
 public:
  DraftModel(std::unique_ptr<Model> model, const ModelInfo& target)
      : model_(std::move(model)),
        vocab_size_(std::min(model_->info().vocab_size, target.vocab_size)),
        info_{.draft_vocab_size = vocab_size_,
              .num_parameters = model_->info().num_parameters,
              .weight_bytes = model_->info().weight_bytes,
              .context_length = model_->info().context_length,
              .reads_states = false} {}

  const DraftHeadInfo& info() const override { return info_; }
  DraftKvInfo kv_info() const override {
    const ModelInfo& own = model_->info();
    return {.num_kv_heads = own.num_kv_heads,
            .head_dim = own.head_dim,
            .num_layers = own.num_kv_layers()};
  }
  // Of each entry it reads the token behind the model's too.
  Status reserve(int32_t max_tokens, int32_t max_entries) override {
    best_.reserve(static_cast<size_t>(max_entries));
    kv_.layers.reserve(static_cast<size_t>(model_->info().num_kv_layers()));
    return model_->reserve(max_tokens + max_entries, max_entries);
  }

  std::span<const TokenId> draft(const ForwardBatch& batch, std::span<const int32_t>,
                                 const KvView& kv) override {
    kv_.page_size = kv.page_size;
    kv_.layers.assign(kv.layers.end() - model_->info().num_kv_layers(), kv.layers.end());
    known_ids_ = batch.token_ids;
    for (TokenId& id : known_ids_) id = std::min(id, vocab_size_ - 1);
    const auto no_logits = [](int32_t, int32_t, std::span<const float>) {};
    logits_ = model_->forward(batch, known_ids_, kv_, no_logits).sample_logits;
    take_best();
    return best_;
  }
  std::span<const TokenId> draft_next(const ForwardBatch& batch, std::span<const int32_t> rows,
                                      const KvView& kv) override {
    return draft(batch, rows, kv);
  }
  std::span<const float> logits() const override { return logits_; }

 private:
  void take_best() {
    const auto width = static_cast<size_t>(model_->info().vocab_size);
    best_.clear();
    for (size_t at = 0; at < logits_.size(); at += width) {
      const auto row = logits_.subspan(at, static_cast<size_t>(vocab_size_));
      best_.push_back(static_cast<TokenId>(std::ranges::max_element(row) - row.begin()));
    }
  }

  const std::unique_ptr<Model> model_;
  const int32_t vocab_size_;  // ids that both have
  const DraftHeadInfo info_;
  KvView kv_;  // of its layers alone
  std::vector<TokenId> known_ids_;
  std::span<const float> logits_;
  std::vector<TokenId> best_;
};

}  // namespace

Status check_draft_model(const ModelInfo& target, const ModelInfo& draft) {
  for (const ModelInfo* info : {&target, &draft}) {
    if (!info->pooled && !info->images) continue;
    return error(StatusCode::kUnimplemented,
                 "{} {}, and a draft model and its model are for text that they generate: leave "
                 "--speculative-algorithm out",
                 info->architecture, info->pooled ? "makes vectors" : "reads pictures");
  }
  if (target.kv_planes != draft.kv_planes) {
    const bool latents = draft.kv_planes == 1;
    return error(StatusCode::kUnimplemented,
                 "the draft model {} keeps {}, and {} keeps {}: take a draft model that keeps what "
                 "the model does, or set --speculative-algorithm to COMBINED",
                 draft.architecture, latents ? "latents" : "keys and values", target.architecture,
                 latents ? "keys and values" : "latents");
  }
  return {};
}

std::unique_ptr<DraftHead> make_draft_model(std::unique_ptr<Model> model, const ModelInfo& target) {
  ESP_CHECK(check_draft_model(target, model->info()).ok());
  return std::make_unique<DraftModel>(std::move(model), target);
}

}  // namespace espalier
