// Layers for multi-token prediction: logits of the model and of its layer as the references have
// them in any cut, each part of a layer noticed where it is changed, and folders that have none
// refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <tuple>

#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/temp_folder.h"
#include "models/drafted_model.h"
#include "models/families/draft.h"
#include "models/head_run.h"
#include "models/load_draft_head.h"
#include "models/model_plan.h"
#include "models/program/cpu_model.h"
#include "models/weight_source.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

using testing::HasSubstr;

const fs::path kMtpGoldens = "tests/golden/mtp";
constexpr float kMtpTolerance = 1e-4f;  // of the logits' spread

using Change = std::function<void(DecoderSpec& target, DecoderSpec& layer)>;

class MtpTest : public testing::Test {
 protected:
  ModelLoadOptions options(const fs::path& folder, const fs::path& layer) {
    return {.path = folder, .dtype = "float32", .pool = &pool_, .draft_path = layer};
  }
  std::unique_ptr<Model> load(const std::string& name) {
    auto model = load_model(options(kMtpGoldens / name, kMtpGoldens / name));
    EXPECT_TRUE(model) << model.error().to_string();
    if (!model) return nullptr;
    EXPECT_TRUE((*model)->reserve(64, 4).ok());
    return *std::move(model);
  }
  // The same with other specs.
  std::unique_ptr<Model> load_changed(const std::string& name, const Change& change) {
    const ModelLoadOptions own = options(kMtpGoldens / name, kMtpGoldens / name);
    auto plan = plan_model(own);
    auto layer = plan_draft_head(own, plan->spec);
    EXPECT_TRUE(layer && *layer) << layer.error().to_string();
    change(plan->spec, **layer);
    const auto checkpoint = Checkpoint::open(own.path);
    CheckpointSource source(*checkpoint, plan->spec, plan->type);
    auto model = program::CpuModel::create(plan->spec, plan->weights, source, pool_);
    EXPECT_TRUE(model) << model.error().to_string();
    auto head = load_draft_head(own.path, **layer, plan->weights, pool_, **model);
    EXPECT_TRUE(head) << head.error().to_string();
    auto joined = join_draft(*std::move(model), *std::move(head));
    EXPECT_TRUE(joined->reserve(64, 4).ok());
    return joined;
  }
  void expect_failure(const fs::path& folder, const fs::path& layer, StatusCode code,
                      const char* message) {
    const auto model = load_model(options(folder, layer));
    ASSERT_FALSE(model) << message;
    EXPECT_EQ(model.error().code(), code) << model.error().message();
    EXPECT_THAT(model.error().message(), HasSubstr(message));
  }
  // A copy of a golden with this text of a file replaced.
  fs::path edited(const char* name, const char* file, const std::string& from,
                  const std::string& to) {
    fs::remove_all(folder_.path() / name);
    fs::copy(kMtpGoldens / name, folder_.path() / name, fs::copy_options::recursive);
    const fs::path path = fs::path(name) / file;
    std::string text = read_text_file(folder_.path() / path).value();
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    folder_.write(path.string(), text.replace(at, from.size(), to));
    return folder_.path() / name;
  }
  WorkPool pool_{2};
  TempFolder folder_;
};

class MtpGoldens : public MtpTest, public testing::WithParamInterface<const char*> {};

TEST_P(MtpGoldens, LogitsAreTheReferencesInAnyCut) {
  const auto model = load(GetParam());
  ASSERT_NE(model, nullptr);
  expect_head_logits(*model, read_head_reference(kMtpGoldens / GetParam()), kMtpTolerance);
}

// Ranks have a part of the model's head each, so the layer has one of its own.
TEST_P(MtpGoldens, LogitsAreTheReferencesBesideRanks) {
  ModelLoadOptions divided = options(kMtpGoldens / GetParam(), kMtpGoldens / GetParam());
  divided.tp_size = 2;
  const auto model = load_model(divided);
  ASSERT_TRUE(model) << model.error().to_string();
  ASSERT_TRUE((*model)->reserve(64, 4).ok());
  expect_head_logits(**model, read_head_reference(kMtpGoldens / GetParam()), kMtpTolerance);
}

// What fills the layer's keys beside a chunk that nothing is sampled from.
TEST_P(MtpGoldens, ChunksWithoutWantedRowsComputeTheirStates) {
  const auto model = load(GetParam());
  ASSERT_NE(model, nullptr);
  const HeadReference reference = read_head_reference(kMtpGoldens / GetParam());
  HeadRun run(*model);
  for (const int32_t chunk : {7, 1, 9}) EXPECT_TRUE(run.add(reference.tokens, chunk, 0).empty());
  const auto logits = run.add(reference.tokens, 3, kHeadSteps);
  for (size_t step = 0; step < logits.size(); ++step)
    EXPECT_LT(head_difference(logits[step], expected_row(reference, step, 20, logits[step].size())),
              kMtpTolerance * reference.spread)
        << step;
}

TEST_P(MtpGoldens, TheModelsOwnLogitsAreTheReferencesAndStayTheSameBits) {
  const auto with_layer = load(GetParam());
  ModelLoadOptions plain = options(kMtpGoldens / GetParam(), {});
  const auto without = load_model(plain);
  ASSERT_TRUE(without) << without.error().to_string();
  ASSERT_NE(with_layer, nullptr);
  EXPECT_FALSE((*without)->info().draft_kv);
  ASSERT_TRUE(with_layer->info().draft_kv);
  const HeadReference reference = read_head_reference(kMtpGoldens / GetParam());
  const auto run = [&](Model& model) {
    return golden::run_all(model, {reference.tokens}, KvType::kFloat32, 4, 9, true)[0];
  };
  const std::vector<float> logits = run(**without);
  EXPECT_EQ(run(*with_layer), logits);
  const auto file = SafetensorsFile::open(kMtpGoldens / GetParam() / "reference.safetensors");
  const auto expected = tensor_values<float>(*file, "target_logits");
  ASSERT_EQ(logits.size(), expected.size());
  EXPECT_LT(head_difference(logits, expected), kMtpTolerance * reference.spread);
}

INSTANTIATE_TEST_SUITE_P(Goldens, MtpGoldens,
                         testing::Values("mimo", "mimo_right", "glm4_moe", "deepseek_v3"),
                         [](const auto& name) { return std::string(name.param); });

struct MtpMutation {
  const char* name;
  const char* golden;
  Change change;
};

class MtpMutations : public MtpTest, public testing::WithParamInterface<MtpMutation> {};

// A part left out, or in another's place, is another layer.
TEST_P(MtpMutations, BreakTheLogits) {
  const auto model = load_changed(GetParam().golden, [&](DecoderSpec& target, DecoderSpec& layer) {
    layer.names.unused_prefixes = {""};  // what the change leaves
    GetParam().change(target, layer);
  });
  ASSERT_NE(model, nullptr);
  const HeadReference reference = read_head_reference(kMtpGoldens / GetParam().golden);
  const auto logits = HeadRun(*model).add(reference.tokens, 20, 2)[1];
  EXPECT_GT(head_difference(logits, expected_row(reference, 1, 20, logits.size())),
            30 * kMtpTolerance * reference.spread);
}

LayerSpec& only(DecoderSpec& layer) { return layer.layers[0]; }

const MtpMutation kMtpMutations[] = {
    {"in_other_order", "mimo", [](DecoderSpec&, DecoderSpec& s) { s.draft->states_first = false; }},
    {"mimo_states_normed", "mimo",
     [](DecoderSpec& t, DecoderSpec&) { t.keeps_normed_states = true; }},
    {"state_of_the_layer_before", "mimo",
     [](DecoderSpec& t, DecoderSpec& s) { t.kept_states = s.draft->target_layers = {2}; }},
    {"norms_exchanged", "mimo",
     [](DecoderSpec&, DecoderSpec& s) {
       s.names.hidden_norm = "model.mtp_layers.{}.token_layernorm";
       s.names.embedding_norm = "model.mtp_layers.0.hidden_layernorm";
     }},
    {"the_models_final_norm", "mimo",
     [](DecoderSpec&, DecoderSpec& s) { s.names.final_norm = "model.norm"; }},
    {"no_bias", "mimo", [](DecoderSpec&, DecoderSpec& s) { only(s).attention.qkv_bias = false; }},
    {"other_rope", "mimo", [](DecoderSpec&, DecoderSpec& s) { s.ropes[0].theta *= 3; }},
    {"glm_in_other_order", "glm4_moe",
     [](DecoderSpec&, DecoderSpec& s) { s.draft->states_first = true; }},
    {"glm_states_not_normed", "glm4_moe",
     [](DecoderSpec& t, DecoderSpec&) { t.keeps_normed_states = false; }},
    {"glm_the_models_final_norm", "glm4_moe",
     [](DecoderSpec&, DecoderSpec& s) { s.names.final_norm = "model.norm"; }},
    {"glm_whole_heads_rotated", "glm4_moe",
     [](DecoderSpec&, DecoderSpec& s) { s.ropes[0].rotary_dim *= 2; }},
    {"glm_heads_not_normed", "glm4_moe",
     [](DecoderSpec&, DecoderSpec& s) { only(s).attention.qk_norm.reset(); }},
    {"glm_no_shared_expert", "glm4_moe",
     [](DecoderSpec&, DecoderSpec& s) { only(s).experts->shared.reset(); }},
    {"glm_experts_not_scaled", "glm4_moe",
     [](DecoderSpec&, DecoderSpec& s) { only(s).experts->router.scale = 1; }},
    {"glm_layer_before", "glm4_moe",
     [](DecoderSpec&, DecoderSpec& s) {
       s.names.hidden_norm = "model.layers.3.hnorm";
       s.stage.first_layer = 2;
     }},
    {"deepseek_states_not_normed", "deepseek_v3",
     [](DecoderSpec& t, DecoderSpec&) { t.keeps_normed_states = false; }},
    {"deepseek_pairs_of_halves", "deepseek_v3",
     [](DecoderSpec&, DecoderSpec& s) { s.ropes[0].pairing = RopeSpec::Pairing::kHalves; }},
    {"deepseek_scores_not_scaled", "deepseek_v3",
     [](DecoderSpec&, DecoderSpec& s) { only(s).attention.scale *= 0.5f; }},
};

INSTANTIATE_TEST_SUITE_P(Goldens, MtpMutations, testing::ValuesIn(kMtpMutations),
                         [](const auto& mutation) { return std::string(mutation.param.name); });

TEST_F(MtpTest, SharesTheTablesOfTheModel) {
  for (const char* name : {"mimo", "glm4_moe", "deepseek_v3"}) {
    const auto with_layer = load(name);
    const auto without = load_model(options(kMtpGoldens / name, {}));
    ASSERT_TRUE(without && with_layer);
    const ModelInfo& info = with_layer->info();
    const int64_t layer = info.weight_bytes - (*without)->info().weight_bytes;
    const int64_t tables = 2ll * info.vocab_size * info.hidden_size * 4;
    const int64_t others = (*without)->info().weight_bytes - tables;
    EXPECT_GT(layer, 0) << name;
    EXPECT_LT(layer, others / 2) << name;  // of three layers
    EXPECT_EQ(with_layer->draft_head()->info().draft_vocab_size, info.vocab_size);
  }
}

TEST_F(MtpTest, NamesWhatIsWrong) {
  const fs::path mimo = kMtpGoldens / "mimo", glm = kMtpGoldens / "glm4_moe";
  const std::string count = "\"num_nextn_predict_layers\": 1";
  for (const char* other : {"\"num_nextn_predict_layers\": 0", "\"bos_token_id\": 1"}) {
    const fs::path none = edited("mimo", "config.json", count, other);
    expect_failure(none, none, StatusCode::kInvalidArgument, "num_nextn_predict_layers");
  }
  expect_failure(mimo, glm, StatusCode::kInvalidArgument, "is Glm4MoeForCausalLM, and the model's");
  const fs::path llama = "tests/golden/models/llama_tied_llama3";
  expect_failure(llama, llama, StatusCode::kUnimplemented, "'LlamaForCausalLM' is not known");
  const fs::path lacking = edited("mimo", "model.safetensors", "mtp_layers.0.input_proj.weight",
                                  "mtp_layers.0.input_proo.weight");
  expect_failure(lacking, lacking, StatusCode::kNotFound, "model.mtp_layers.0.input_proj.weight");
  const fs::path more = edited("glm4_moe", "model.safetensors", "layers.3.embed_tokens.weight",
                               "layers.3.other_tokens.weight");
  expect_failure(more, more, StatusCode::kInvalidArgument, "model.layers.3.other_tokens.weight");
  const fs::path eagle = "tests/golden/draft/llama_tied_llama3";
  using Kind = DraftSpec::Kind;
  for (const auto& [folder, expected, message] :
       {std::tuple(eagle, Kind::kMtp,
                   "LlamaForCausalLMEagle3 is an EAGLE-3 head, which --speculative-algorithm "
                   "EAGLE3 runs, and NEXTN runs layers for multi-token prediction"),
        std::tuple(mimo, Kind::kEagle3,
                   "MiMoForCausalLM is a model with a layer for multi-token prediction, which "
                   "--speculative-algorithm NEXTN runs, and EAGLE3 runs EAGLE-3 heads")}) {
    const Status status = check_draft_kind_of(folder, expected);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << folder;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  EXPECT_TRUE(check_draft_kind_of(eagle, Kind::kEagle3).ok());
  EXPECT_TRUE(check_draft_kind_of(mimo, Kind::kMtp).ok());
  ModelLoadOptions stages = options(mimo, mimo);
  stages.pp_size = 2;
  const auto divided = load_model(stages);
  ASSERT_FALSE(divided);
  EXPECT_THAT(divided.error().message(), HasSubstr("draft heads are not divided into stages"));
}

// A checkpoint that says of more layers than one: the first one is read, and others are left.
TEST_F(MtpTest, ReadsTheFirstOfSeveralLayers) {
  const fs::path folder = edited("mimo", "config.json", "\"num_nextn_predict_layers\": 1",
                                 "\"num_nextn_predict_layers\": 3");
  const auto model = load_model(options(folder, folder));
  ASSERT_TRUE(model) << model.error().to_string();
  ASSERT_TRUE((*model)->reserve(64, 4).ok());
  expect_head_logits(**model, read_head_reference(kMtpGoldens / "mimo"), kMtpTolerance);
}

}  // namespace
}  // namespace espalier
