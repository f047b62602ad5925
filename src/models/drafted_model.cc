#include "models/drafted_model.h"

#include <utility>

#include "base/check.h"
#include "models/forwarding_model.h"

namespace espalier {
namespace {

class DraftedModel final : public ForwardingModel {
 public:
  DraftedModel(std::unique_ptr<Model> target, std::unique_ptr<DraftHead> draft)
      : ForwardingModel(*target),
        target_(std::move(target)),
        draft_(std::move(draft)),
        info_(target_->info()) {
    info_.draft_kv = draft_->kv_info();
    // Together they say what type weights have, by which that of keys and values is chosen.
    info_.weight_bytes += draft_->info().weight_bytes;
    info_.num_parameters += draft_->info().num_parameters;
  }

  const ModelInfo& info() const override { return info_; }
  Status reserve(int32_t max_tokens, int32_t max_entries) override {
    ESP_RETURN_IF_ERROR(draft_->reserve(max_tokens, max_entries));
    kv_.layers.reserve(static_cast<size_t>(info_.num_kv_layers()));
    return inner().reserve(max_tokens, max_entries);
  }
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView& kv, const InputLogitsSink& input_logits) override {
    ESP_CHECK(std::ssize(kv.layers) == info_.num_kv_layers() + info_.draft_kv->num_layers);
    kv_.page_size = kv.page_size;
    kv_.layers.assign(kv.layers.begin(), kv.layers.begin() + info_.num_kv_layers());
    return inner().forward(batch, token_ids, kv_, input_logits);
  }
  DraftHead* draft_head() override { return draft_.get(); }

 private:
  const std::unique_ptr<Model> target_;
  const std::unique_ptr<DraftHead> draft_;
  ModelInfo info_;  // of both
  KvView kv_;       // of the model's own layers
};

}  // namespace

std::unique_ptr<Model> join_draft(std::unique_ptr<Model> target, std::unique_ptr<DraftHead> draft) {
  return std::make_unique<DraftedModel>(std::move(target), std::move(draft));
}

}  // namespace espalier
