// The golden models in stages: the bits of the whole model, however a step is cut into
// micro-batches.
#include "models/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "models/golden.h"
#include "models/model_plan.h"
#include "models/program/partition.h"
#include "models/program/stages.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Stages {
  int32_t pp_size = 1, tp_size = 1, micro_batch_tokens = 0;
};

Result<std::unique_ptr<Model>> load(const golden::Golden& golden, const Stages& stages,
                                    WorkPool& pool, const std::string& dtype = "float32",
                                    const std::string& overrides = "") {
  return load_model({.path = golden.folder,
                     .format = overrides.empty() ? LoadFormat::kAuto : LoadFormat::kDummy,
                     .dtype = dtype,
                     .config_overrides = overrides,
                     .pool = &pool,
                     .tp_size = stages.tp_size,
                     .pp_size = stages.pp_size,
                     .pp_micro_batch_tokens = stages.micro_batch_tokens});
}

std::vector<std::vector<TokenId>> inputs(const golden::Golden& golden) {
  std::vector<std::vector<TokenId>> out;
  for (const golden::Sequence& sequence : golden.sequences) out.push_back(sequence.tokens);
  return out;
}

void expect_same_bits(const std::vector<std::vector<float>>& got,
                      const std::vector<std::vector<float>>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size());
    EXPECT_EQ(std::memcmp(got[i].data(), want[i].data(), want[i].size() * sizeof(float)), 0)
        << "sequence " << i;
  }
}

class ModelInStages : public testing::TestWithParam<std::string> {
 protected:
  void expect_bits_of_one_stage(const Stages& stages, const std::string& dtype) {
    SCOPED_TRACE(fmt::format("{} stages of {} ranks, micro-batches of {}, {}", stages.pp_size,
                             stages.tp_size, stages.micro_batch_tokens, dtype));
    const KvType type = dtype == "float32" ? KvType::kFloat32 : KvType::kBFloat16;
    const auto whole = load(golden_, {.tp_size = stages.tp_size}, pool_, dtype);
    const auto model = load(golden_, stages, pool_, dtype);
    ASSERT_TRUE(whole && model) << (model ? whole : model).error().to_string();
    const auto want = golden::run_all(**whole, inputs(golden_), type, 16, 1 << 20, true);
    expect_same_bits(golden::run_all(**model, inputs(golden_), type, 16, 1 << 20, true), want);
    expect_same_bits(golden::run_all(**model, inputs(golden_), type, 1, 5, true), want);
    expect_same_bits(golden::run_all(**model, inputs(golden_), type, 16, 1, false), want);
  }

  const golden::Golden golden_ = golden::read(GetParam());
  WorkPool pool_{2};
};

TEST_P(ModelInStages, HasTheBitsOfTheWhole) {
  expect_bits_of_one_stage({.pp_size = 2}, "float32");
  expect_bits_of_one_stage({.pp_size = 2, .micro_batch_tokens = 3}, "bfloat16");
  expect_bits_of_one_stage({.pp_size = 3, .micro_batch_tokens = 1}, "float32");
}

TEST_P(ModelInStages, OfSeveralRanksHasTheBitsOfTheseRanks) {
  expect_bits_of_one_stage({.pp_size = 2, .tp_size = 2, .micro_batch_tokens = 4}, "float32");
}

INSTANTIATE_TEST_SUITE_P(All, ModelInStages, testing::ValuesIn(golden::names()),
                         [](const auto& tested) { return tested.param; });

TEST(Pipeline, FourStagesOfALongerModel) {
  const golden::Golden golden = golden::read("llama_untied_bias");
  const std::string six = R"({"num_hidden_layers": 6})";
  WorkPool pool(2);
  const auto whole = load(golden, {}, pool, "float32", six);
  const auto model = load(golden, {.pp_size = 4, .micro_batch_tokens = 2}, pool, "float32", six);
  ASSERT_TRUE(whole && model);
  const auto run = [&](Model& of) {
    return golden::run_all(of, inputs(golden), KvType::kFloat32, 16, 1 << 20, true);
  };
  expect_same_bits(run(**model), run(**whole));
}

// Layers of other stages whose weights were not read would leave the logits as they are, had the
// test no mutation: a stage that is skipped must show.
TEST(Pipeline, EachStageMatters) {
  const golden::Golden golden = golden::read("llama_untied_bias");
  WorkPool pool(2);
  const auto three = load(golden, {.pp_size = 3}, pool);
  const auto fewer = load(golden, {.pp_size = 2}, pool, "float32", R"({"num_hidden_layers": 2})");
  ASSERT_TRUE(three && fewer);
  EXPECT_LE(golden::max_error(**three, golden, KvType::kFloat32), 1e-4f);
  EXPECT_GT(golden::max_error(**fewer, golden, KvType::kFloat32), 1e-2f);
}

TEST(Pipeline, StagesShareTheBytesAndTheModelIsDescribedWhole) {
  const golden::Golden golden = golden::read("qwen2_sharded");
  WorkPool pool(1);
  const auto whole = load(golden, {}, pool), divided = load(golden, {.pp_size = 3}, pool);
  ASSERT_TRUE(whole && divided);
  const ModelInfo &one = (*whole)->info(), &three = (*divided)->info();
  EXPECT_EQ(three.num_layers, one.num_layers);
  EXPECT_EQ(three.num_parameters, one.num_parameters);
  // A tied embedding is in the first stage and in the last.
  const int64_t table = int64_t{one.vocab_size} * golden.spec.hidden_size * 4;
  EXPECT_EQ(three.weight_bytes, one.weight_bytes + (golden.spec.tied_embeddings ? table : 0));
}

TEST(Pipeline, RefusalsNameWhatIsNotDivided) {
  const golden::Golden golden = golden::read("qwen2_sharded");
  WorkPool pool(1);
  const auto refusal = [&](ModelLoadOptions options) {
    options.path = golden.folder;
    options.pool = &pool;
    const auto model = load_model(options);
    return model ? std::string() : model.error().message();
  };
  EXPECT_THAT(refusal({.pp_size = 4}), HasSubstr("pp_size is 4, but the model has 3 layers"));
  EXPECT_THAT(refusal({.pp_size = 0}), HasSubstr("pp_size is 0, but must be at least 1"));
  EXPECT_THAT(refusal({.pp_size = 2, .enable_lora = true}),
              HasSubstr("leave --enable-lora or --pp-size out"));
  EXPECT_THAT(refusal({.pp_size = 2, .draft_path = golden.folder}),
              HasSubstr("draft heads are not divided into stages"));
  ExpertCounts counts;
  EXPECT_THAT(refusal({.pp_size = 2, .expert_counts = &counts}),
              HasSubstr("--expert-distribution-recorder-mode or --pp-size"));
}

// So a tensor that no stage has is an error, as it is of a whole model.
TEST(Stages, TensorsElsewhereAreThoseOfTheOtherStages) {
  for (const std::string& name : golden::names()) {
    SCOPED_TRACE(name);
    const DecoderSpec whole = golden::read(name).spec;
    const std::vector<DecoderSpec> stages = program::divide_layers(whole, 3);
    const std::string table = whole.names.embedding + ".weight";
    for (size_t i = 0; i < stages.size(); ++i) {
      const std::vector<std::string>& elsewhere = stages[i].stage.tensors_elsewhere;
      const auto is_elsewhere = [&](const std::string& tensor) {
        return std::ranges::find(elsewhere, tensor) != elsewhere.end();
      };
      EXPECT_EQ(is_elsewhere(table), i == 1 || (i == 2 && !whole.tied_embeddings));
      EXPECT_EQ(is_elsewhere(whole.names.final_norm + ".weight"), i != 2);
      for (int32_t layer = 0; layer < 3; ++layer) {
        const std::string output = layer_name(whole.names.attention_output, layer) + ".weight";
        EXPECT_EQ(is_elsewhere(output), layer != static_cast<int32_t>(i)) << output;
      }
    }
  }
}

TEST(Stages, AreBalancedByCost) {
  using program::balance_stages;
  const std::vector<double> even(8, 1.0);
  EXPECT_THAT(balance_stages({.layers = even}, 2), ElementsAre(4, 4));
  EXPECT_THAT(balance_stages({.layers = even}, 3), ElementsAre(3, 3, 2));
  EXPECT_THAT(balance_stages({.layers = even, .head = 2}, 2), ElementsAre(5, 3));
  EXPECT_THAT(balance_stages({.layers = even, .embedding = 2}, 2), ElementsAre(3, 5));
  EXPECT_THAT(balance_stages({.layers = {1, 1, 6, 1, 1}}, 3), ElementsAre(2, 1, 2));
  EXPECT_THAT(balance_stages({.layers = even}, 8), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(balance_stages({.layers = {1, 1}, .head = 9}, 2), ElementsAre(1, 1));
}

TEST(Stages, HaveLayersThatFollowEachOther) {
  const DecoderSpec whole = golden::read("gemma3").spec;
  const std::vector<DecoderSpec> stages = program::divide_layers(whole, 2);
  EXPECT_TRUE(stages[0].stage.embeds && !stages[0].stage.samples);
  EXPECT_TRUE(!stages[1].stage.embeds && stages[1].stage.samples);
  EXPECT_EQ(stages[1].stage.first_layer, std::ssize(stages[0].layers));
  EXPECT_EQ(stages[0].layers.size() + stages[1].layers.size(), whole.layers.size());
  const program::Program first = program::partition(stages[0], {});
  EXPECT_EQ(first.ops.front().kind, program::OpKind::kEmbed);
  EXPECT_EQ(first.ops.back().kind, program::OpKind::kOutput);
  const program::Program last = program::partition(stages[1], {});
  EXPECT_EQ(last.ops.front().kind, program::OpKind::kInput);
}

}  // namespace
}  // namespace espalier
