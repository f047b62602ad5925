// What a layer for multi-token prediction launches on the GPU behind its model, on systems without
// one: recording_kernels.h names the launches that each one reads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "models/cuda/draft_head.h"
#include "models/cuda/recording_kernels.h"
#include "models/load_draft_head.h"
#include "models/model_plan.h"

namespace espalier {
namespace {

struct LayerNames {
  const char* golden;
  const char* state_norm;
  const char* embedding_norm;
  const char* project;
  const char* final_norm;
  bool normed;  // the model's states
};
constexpr LayerNames kLayerNames[] = {
    {"mimo", "model.mtp_layers.0.hidden_layernorm.weight",
     "model.mtp_layers.0.token_layernorm.weight", "model.mtp_layers.0.input_proj.weight",
     "model.mtp_layers.0.final_layernorm.weight", false},
    {"glm4_moe", "model.layers.3.hnorm.weight", "model.layers.3.enorm.weight",
     "model.layers.3.eh_proj.weight", "model.layers.3.shared_head.norm.weight", true},
    {"deepseek_v3", "model.layers.3.hnorm.weight", "model.layers.3.enorm.weight",
     "model.layers.3.eh_proj.weight", "model.layers.3.shared_head.norm.weight", true},
};
constexpr int32_t kNumTokens = 40, kNumChains = 2;

// Launches from `begin` on.
class Launches {
 public:
  explicit Launches(size_t begin) : lines_(recording::lines()), begin_(begin) {}

  // The number of the first launch whose line has all of these, e.g. "%7"; empty: there is none.
  std::string find(const std::vector<std::string>& parts) const {
    for (size_t i = begin_; i < lines_.size(); ++i) {
      bool all = true;
      for (const std::string& part : parts) all &= lines_[i].find(part) != std::string::npos;
      if (all) return lines_[i].substr(0, lines_[i].find(' '));
    }
    return "";
  }
  std::string text() const {
    std::string out;
    for (size_t i = begin_; i < lines_.size(); ++i) out += lines_[i] + "\n";
    return out;
  }

 private:
  const std::vector<std::string> lines_;
  const size_t begin_;
};

class MtpLaunches : public testing::TestWithParam<LayerNames> {
 protected:
  void SetUp() override {
    const std::filesystem::path folder =
        std::filesystem::path("tests/golden/mtp") / GetParam().golden;
    const ModelLoadOptions options{
        .path = folder, .format = LoadFormat::kDummy, .draft_path = folder};
    auto plan = plan_model(options);
    const auto spec = plan_draft_head(options, plan->spec);
    ASSERT_TRUE(spec && *spec) << spec.error().to_string();
    auto target = CudaDecoder::load(std::move(*plan), options);
    ASSERT_TRUE(target) << target.error().to_string();
    target_ = std::move(*target);
    auto head = CudaDraftHead::load(**spec, options, *target_);
    ASSERT_TRUE(head) << head.error().to_string();
    head_ = std::move(*head);
    ASSERT_TRUE(target_->reserve(64, 64, 16).ok());
    ASSERT_TRUE(
        head_->reserve({.max_tokens = 64, .max_entries = 64, .max_chains = 4, .page_size = 16})
            .ok());
    view_.page_size = 16;
    for (int32_t i = 0; i <= target_->info().num_layers; ++i)
      view_.layers.push_back(
          {.kind = target_->info().kv_planes == 1 ? KvLayerKind::kLatent : KvLayerKind::kPages,
           .type = target_->kv_type(),
           .k = at(16 + 2 * i),
           .v = at(17 + 2 * i),
           .num_kv_heads = target_->info().num_kv_heads,
           .head_dim = target_->info().head_dim});
    logits_.resize(static_cast<size_t>(64 * target_->logits_stride()));
    recording::begin();
  }
  void TearDown() override { recording::begin(); }

  CudaStep step(int32_t tokens, int32_t entries, int32_t wanted) {
    CudaStep step{.ids = at(0)};
    step.entries = {.query_begin = at(3),
                    .prefix_len = at(4),
                    .page_begin = at(5),
                    .page_tables = at(6),
                    .num_entries = entries,
                    .num_tokens = tokens,
                    .max_query_tokens = tokens - entries + 1};
    step.num_rows = wanted;
    step.keeps_states = true;
    return step;
  }
  int32_t* at(int32_t index) { return addresses_.data() + index; }

  const cuda::Stream stream_ = *cuda::Stream::create();
  std::unique_ptr<CudaDecoder> target_;
  std::unique_ptr<CudaDraftHead> head_;
  KvView view_;
  std::vector<float> logits_;
  std::vector<int32_t> addresses_ = std::vector<int32_t>(1 << 12);
};

// The model's states of all tokens, into the layer, its chain, and the model's head.
TEST_P(MtpLaunches, ReadTheModelsStatesAndThenTheirOwn) {
  const LayerNames& names = GetParam();
  CudaStep prefill = step(kNumTokens, 3, kNumChains);
  prefill.rows = at(8);
  ASSERT_TRUE(target_->forward(prefill, view_, stream_).ok());
  ASSERT_TRUE(target_->logits(0, kNumChains, logits_.data(), stream_).ok());
  const Launches of_model(0);
  const std::string rows = fmt::format("rows={} ", kNumTokens);
  const std::string states = names.normed
                                 ? of_model.find({" rms_norm ", "weight=model.norm.weight", rows})
                                 : of_model.find({" copy_parts "});
  ASSERT_FALSE(states.empty()) << of_model.text();

  size_t begin = recording::lines().size();
  prefill.ids = at(9);
  ASSERT_TRUE(head_->draft(prefill, view_, logits_.data(), stream_).ok());
  const auto check_pass = [&](const std::string& read, int32_t tokens) {
    const Launches launches(begin);
    const auto norm = [&](const char* weight, int32_t count) {
      return launches.find(
          {" rms_norm ", fmt::format("weight={} ", weight), fmt::format("rows={} ", count)});
    };
    const std::string state = launches.find(
        {" rms_norm ", "x=" + read + " ", fmt::format("weight={} ", names.state_norm)});
    EXPECT_FALSE(state.empty()) << launches.text();
    EXPECT_FALSE(launches.find({" gather_rows ", "table=model.embed_tokens.weight"}).empty());
    EXPECT_FALSE(norm(names.embedding_norm, tokens).empty()) << launches.text();
    EXPECT_FALSE(launches
                     .find({" linear ", fmt::format("weight={},-", names.project),
                            fmt::format("shape={}x{}x{}", tokens, 2 * target_->info().hidden_size,
                                        target_->info().hidden_size)})
                     .empty())
        << launches.text();
    const std::string next = norm(names.final_norm, kNumChains);
    EXPECT_FALSE(launches.find({" linear ", "x=" + next + " ", "weight=lm_head.weight,-"}).empty())
        << launches.text();
    return next;
  };
  std::string next = check_pass(states, kNumTokens);
  for (int pass = 0; pass < 2; ++pass) {
    begin = recording::lines().size();
    CudaStep own = step(kNumChains, kNumChains, kNumChains);
    ASSERT_TRUE(head_->draft_next(own, view_, logits_.data(), stream_).ok());
    next = check_pass(next, kNumChains);
  }
}

// A chunk that nothing is sampled from has states all the same.
TEST_P(MtpLaunches, ChunksWithoutWantedRowsHaveStates) {
  const CudaStep prefill = step(kNumTokens, 3, 0);
  ASSERT_TRUE(target_->forward(prefill, view_, stream_).ok());
  const Launches of_model(0);
  const std::string rows = fmt::format("rows={} ", kNumTokens);
  const std::string states = GetParam().normed
                                 ? of_model.find({" rms_norm ", "weight=model.norm.weight", rows})
                                 : of_model.find({" copy_parts "});
  ASSERT_FALSE(states.empty()) << of_model.text();
  const size_t begin = recording::lines().size();
  ASSERT_TRUE(head_->draft(prefill, view_, logits_.data(), stream_).ok());
  const Launches launches(begin);
  EXPECT_FALSE(launches
                   .find({" rms_norm ", "x=" + states + " ",
                          fmt::format("weight={} ", GetParam().state_norm)})
                   .empty())
      << launches.text();
  EXPECT_FALSE(launches.find({" qk_rope_append "}).empty());
  EXPECT_TRUE(launches.find({"weight=lm_head.weight"}).empty());
}

INSTANTIATE_TEST_SUITE_P(Goldens, MtpLaunches, testing::ValuesIn(kLayerNames),
                         [](const auto& names) { return std::string(names.param.golden); });

}  // namespace
}  // namespace espalier
