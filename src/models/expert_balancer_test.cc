// Experts that lie in several groups of ranks and change places while a model runs: its logits stay
// those of one rank, and groups get about as many tokens.
#include "models/expert_balancer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/temp_folder.h"
#include "models/expert_locations.h"
#include "models/golden.h"
#include "models/model.h"
#include "models/model_weights.h"
#include "models/program/partition.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using testing::HasSubstr;

// Two layers of four experts in two groups; the second one is uneven.
struct Counted {
  explicit Counted(const RebalanceConfig& config) {
    counts.add(tally, {.num_experts = 4, .num_groups = 2, .layers = {{0, 1, 2, 3}, {0, 1, 2, 3}}});
    balancer.emplace(config, counts);
  }
  void count() {
    tally->count(0, std::vector<int32_t>{0, 1, 2, 3});
    tally->count(1, std::vector<int32_t>{0, 0, 0, 1, 1, 1, 2});
  }
  std::vector<LayerMove> next() { return balancer->next().value(); }

  std::shared_ptr<HostExpertTally> tally = std::make_shared<HostExpertTally>(2, 4);
  ExpertCounts counts;
  std::optional<ExpertBalancer> balancer;
};

TEST(ExpertBalancer, MovesTheExpertsOfUnevenLayersAfterSoManySteps) {
  Counted c({.num_iterations = 3});
  c.count();
  EXPECT_TRUE(c.next().empty());
  EXPECT_TRUE(c.next().empty());
  const std::vector<LayerMove> moves = c.next();
  ASSERT_EQ(moves.size(), 1U);
  EXPECT_EQ(moves[0].layer, 1);
  ASSERT_TRUE(c.balancer->moved(moves).ok());
  EXPECT_EQ(c.counts.places().layers[1], moves[0].slots);
  EXPECT_GT(c.counts.read().value().num_moved, 0);
  for (int step = 0; step < 3; ++step) EXPECT_TRUE(c.next().empty()) << "nothing new was counted";
}

TEST(ExpertBalancer, MovesLayersInChunks) {
  Counted c({.num_iterations = 1, .layers_per_chunk = 1});
  c.tally->count(0, std::vector<int32_t>{2, 2, 3, 3});
  c.count();
  for (const int32_t layer : {0, 1}) {
    const std::vector<LayerMove> moves = c.next();
    ASSERT_EQ(moves.size(), 1U);
    EXPECT_EQ(moves[0].layer, layer);
    ASSERT_TRUE(c.balancer->moved(moves).ok());
  }
  EXPECT_TRUE(c.next().empty());
}

TEST(ExpertBalancer, EvenGroupsStay) {
  Counted c({.num_iterations = 1, .utilization_max = 0.6});
  c.count();  // group 0 gets 8 of 11: a mean of 69 % of the busiest one
  EXPECT_TRUE(c.next().empty());
}

bool is_mixture(const DecoderSpec& spec) {
  return std::ranges::any_of(spec.layers,
                             [](const LayerSpec& layer) { return layer.experts.has_value(); });
}
std::vector<std::string> names_with_experts() {
  std::vector<std::string> out;
  for (const std::string& name : golden::names())
    if (is_mixture(golden::read(name).spec)) out.push_back(name);
  return out;
}

class MovingExperts : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Model> load(int32_t tp_size, int32_t ep_size, const ExpertLocations& experts,
                              const std::string& dtype = "float32") {
    counts_ = std::make_unique<ExpertCounts>();
    auto model = load_model({.path = golden_.folder,
                             .dtype = dtype,
                             .pool = &pool_,
                             .tp_size = tp_size,
                             .ep_size = ep_size,
                             .experts = experts,
                             .expert_counts = counts_.get()});
    EXPECT_TRUE(model) << model.error().to_string();
    return model ? std::move(*model) : nullptr;
  }
  bool divides(int32_t tp_size, int32_t ep_size) const {
    DecoderSpec spec = golden_.spec;
    spec.expert_groups = ep_size;
    return program::check_partition(spec, tp_size).ok();
  }
  std::vector<std::vector<float>> run(Model& model, int32_t chunk, bool together) const {
    std::vector<std::vector<TokenId>> input;
    for (const golden::Sequence& sequence : golden_.sequences) input.push_back(sequence.tokens);
    return golden::run_all(model, input, KvType::kFloat32, 16, chunk, together);
  }
  void expect_near(const std::vector<std::vector<float>>& got,
                   const std::vector<std::vector<float>>& want) const {
    for (size_t i = 0; i < want.size(); ++i)
      for (size_t j = 0; j < want[i].size(); ++j)
        ASSERT_NEAR(got[i][j], want[i][j], 1e-5f * golden_.spread) << i << " " << j;
  }

  const golden::Golden golden_ = golden::read(GetParam());
  WorkPool pool_{2};
  std::unique_ptr<ExpertCounts> counts_;
};

// Replicas take turns by position, so that a token's bits depend on it and its context alone.
TEST_P(MovingExperts, ReplicasHaveTheLogitsOfOneRank) {
  const auto want = run(*load(1, 1, {}), 1 << 20, true);
  for (const auto& [tp_size, ep_size] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
    if (!divides(tp_size, ep_size)) continue;
    SCOPED_TRACE(std::to_string(tp_size) + " ranks, " + std::to_string(ep_size) + " groups");
    const auto model = load(tp_size, ep_size, {.num_redundant = ep_size});
    ASSERT_NE(model, nullptr);
    const auto got = run(*model, 1 << 20, true);
    expect_near(got, want);
    const auto alone = run(*model, 5, false);
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(std::memcmp(alone[i].data(), got[i].data(), got[i].size() * 4), 0) << i;
  }
}

TEST_P(MovingExperts, ExpertsChangePlacesBetweenSteps) {
  const auto want = run(*load(1, 1, {}), 1 << 20, true);
  int64_t num_moved = 0;
  for (const auto& [tp_size, ep_size] : {std::pair{2, 2}, {4, 2}, {4, 4}}) {
    if (!divides(tp_size, ep_size)) continue;
    for (const int32_t num_redundant : {0, ep_size}) {
      SCOPED_TRACE(std::to_string(tp_size) + " ranks, " + std::to_string(ep_size) + " groups, " +
                   std::to_string(num_redundant) + " more slots");
      const auto model = load(tp_size, ep_size,
                              {.num_redundant = num_redundant,
                               .rebalance = {.num_iterations = 3, .layers_per_chunk = 1}});
      ASSERT_NE(model, nullptr);
      for (const int32_t chunk : {1, 3}) expect_near(run(*model, chunk, false), want);
      num_moved += counts_->read().value().num_moved;
      const ExpertPlaces places = counts_->places();
      for (const ExpertSlots& slots : places.layers) {
        if (slots.empty()) continue;
        EXPECT_TRUE(is_placement({places.num_experts, places.num_slots(), ep_size}, slots));
      }
    }
  }
  EXPECT_GT(num_moved, 0);
}

// The second of two equal runs begins with the move that the first one's counts ask for.
TEST_P(MovingExperts, GroupsComputeAboutAsMuchAfterAMove) {
  int64_t num_steps = 1;
  for (const golden::Sequence& sequence : golden_.sequences)
    num_steps += std::ssize(sequence.tokens);
  for (const auto& [tp_size, ep_size] : {std::pair{2, 2}, {4, 4}}) {
    if (!divides(tp_size, ep_size)) continue;
    const auto model = load(tp_size, ep_size,
                            {.num_redundant = ep_size, .rebalance = {.num_iterations = num_steps}});
    ASSERT_NE(model, nullptr);
    run(*model, 1, false);
    const ExpertTotals first = counts_->read().value();
    ASSERT_EQ(first.num_moved, 0);
    run(*model, 1, false);
    const ExpertTotals second = difference(counts_->read().value(), first);
    EXPECT_EQ(second.tokens, first.tokens);
    const double before = balance_of(first).over_groups, after = balance_of(second).over_groups;
    if (second.num_moved > 0) {
      EXPECT_LT(after, before);
    }
    EXPECT_LT(after, 1.25);
    RecordProperty("before_" + std::to_string(ep_size), std::to_string(before));
    RecordProperty("after_" + std::to_string(ep_size), std::to_string(after));
  }
}

// Weights that replace others lie where experts are by then.
TEST_P(MovingExperts, WeightsAreReplacedWhereExpertsAre) {
  if (!divides(2, 2)) return;
  const auto want = run(*load(1, 1, {}), 1 << 20, true);
  const auto model = load(2, 2, {.num_redundant = 2, .rebalance = {.num_iterations = 2}});
  ASSERT_NE(model, nullptr);
  run(*model, 3, false);
  const auto weights = make_model_weights(*model, {.path = golden_.folder, .dtype = "float32"});
  ASSERT_TRUE(weights) << weights.error().to_string();
  ASSERT_TRUE((*weights)->prepare(golden_.folder).ok());
  const Status committed = (*weights)->commit();
  ASSERT_TRUE(committed.ok()) << committed.to_string();
  expect_near(run(*model, 3, false), want);
}

class ExpertLocationFiles : public testing::Test {
 protected:
  // The slots of the last layer, or the error.
  Result<ExpertSlots> place(const std::string& json, int32_t num_redundant = 2) {
    DecoderSpec spec = golden::read("qwen3_moe").spec;
    spec.expert_groups = 2;
    spec.layers.resize(1);
    spec.layers[0].experts->router.num_experts = 4;
    ESP_RETURN_IF_ERROR(place_experts(
        {.num_redundant = num_redundant, .init = folder_.write("places.json", json).string()},
        spec));
    return spec.layers[0].experts->slots;
  }
  std::string refusal(const std::string& json) { return place(json).error().message(); }

  TempFolder folder_;
};

TEST_F(ExpertLocationFiles, HoldSlotsOrCounts) {
  EXPECT_EQ(place(R"({"physical_to_logical_map":[[3,1,0,2,0,1]]})").value(),
            (ExpertSlots{3, 1, 0, 2, 0, 1}));
  const ExpertSlots slots = place(R"({"ep_size":2,"logical_count":[[90,80,5,5]]})").value();
  EXPECT_TRUE(is_placement({4, 6, 2}, slots));
  EXPECT_EQ(std::ranges::count(slots, 0), 2);
  EXPECT_EQ(std::ranges::count(slots, 1), 2);
  EXPECT_TRUE(place(R"({"logical_count":[[9,8,1,1]]})", 0));
}

TEST_F(ExpertLocationFiles, RefusalsNameTheField) {
  EXPECT_THAT(refusal("{}"), HasSubstr("neither 'physical_to_logical_map' nor 'logical_count'"));
  EXPECT_THAT(refusal(R"({"logical_count":[[1,1,1,1],[1,1,1,1]]})"),
              HasSubstr("is of 2 layers, but the model has 1"));
  EXPECT_THAT(refusal(R"({"logical_count":[[1,1,1]]})"), HasSubstr("the tokens of 4 experts"));
  EXPECT_THAT(refusal(R"({"logical_count":[[1,1,1,-1]]})"), HasSubstr("the tokens of 4 experts"));
  EXPECT_THAT(refusal(R"({"logical_count":[1]})"), HasSubstr("a list of lists of integers"));
  EXPECT_THAT(refusal(R"({"physical_to_logical_map":[[0,0,1,2,3,1]]})"),
              HasSubstr("is no placement of 4 experts in 6 slots"));
}

TEST(ExpertLocations, ModelsWithoutExpertsHaveNone) {
  DecoderSpec spec = golden::read("qwen2_sharded").spec;
  spec.expert_groups = 2;
  EXPECT_TRUE(place_experts({}, spec).ok());
  EXPECT_THAT(place_experts({.num_redundant = 2}, spec).message(),
              HasSubstr("the model has no experts"));
}

INSTANTIATE_TEST_SUITE_P(All, MovingExperts, testing::ValuesIn(names_with_experts()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace espalier
