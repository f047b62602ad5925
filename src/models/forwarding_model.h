// A model that hands its calls on to another one, for classes that own that one and change some
// of them.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "models/model.h"

namespace espalier {

class ForwardingModel : public Model {
 public:
  explicit ForwardingModel(Model& inner) : inner_(inner) {}

  const ModelInfo& info() const override { return inner_.info(); }
  Status reserve(int32_t max_tokens, int32_t max_entries) override {
    return inner_.reserve(max_tokens, max_entries);
  }
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView& kv, const InputLogitsSink& input_logits) override {
    return inner_.forward(batch, token_ids, kv, input_logits);
  }
  std::vector<float> finish_pooled(std::span<const float> row) override {
    return inner_.finish_pooled(row);
  }
  Result<AdapterInfo> load_adapter(AdapterId id, const std::filesystem::path& folder,
                                   int32_t rank_max) override {
    return inner_.load_adapter(id, folder, rank_max);
  }
  void unload_adapter(AdapterId id) override { inner_.unload_adapter(id); }
  void set_control(SlotId slot, const ControlUse& use) override { inner_.set_control(slot, use); }
  Status replace_weights(const OpenWeights& open) override { return inner_.replace_weights(open); }
  DraftHead* draft_head() override { return inner_.draft_head(); }

 protected:
  Model& inner() { return inner_; }

 private:
  Model& inner_;
};

}  // namespace espalier
