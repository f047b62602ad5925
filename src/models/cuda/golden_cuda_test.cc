// The tiny random models of golden_test.cc on the GPU: the logits and greedy tokens of
// transformers, the same however a sequence is cut, and parts left out on purpose that must be
// noticed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <tuple>

#include "models/cuda/test_model.h"
#include "models/golden.h"
#include "models/program/fault_injection.h"
#include "tensor/cuda/testing.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using golden::Piece;

// As golden_test.cc's, but for activations: here they are of the weights' type, as transformers has
// them, and rounded at other places than there.
float tolerance(DType type, const golden::Golden& golden) {
  if (type == DType::kFloat32) return 1e-4f;
  // Queries and values are rounded once more on their way into the latents' space and back.
  if (golden.spec.layers[0].attention.latent) return 2e-2f;
  return golden.spec.checkpoint_dtype == DType::kBFloat16 ? 1.5e-2f : 3e-2f;
}
KvType kv_type(DType type) {
  return type == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16;
}
const char* name_of(DType type) { return type == DType::kFloat32 ? "float32" : "bfloat16"; }

std::unique_ptr<CudaTestModel> load(const DecoderSpec& spec, DType type,
                                    const ModelLoadOptions& options,
                                    std::optional<program::Fault> fault = std::nullopt) {
  CudaDecoder::Rewrite rewrite;
  if (fault) {
    rewrite = [fault](program::Program lowered) {
      return program::inject(std::move(lowered), *fault);
    };
  }
  auto decoder = CudaDecoder::load({spec, type}, options, rewrite);
  EXPECT_TRUE(decoder) << decoder.error().to_string();
  return decoder ? std::make_unique<CudaTestModel>(std::move(*decoder)) : nullptr;
}

class GoldenModelCuda : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    auto decoder = CudaDecoder::load({golden_.spec, type_}, {.path = golden_.folder});
    ASSERT_TRUE(decoder) << decoder.error().to_string();
    model_ = std::make_unique<CudaTestModel>(std::move(*decoder));
  }
  // Of each row of logits the largest error, in units of the golden's spread.
  void add_errors(const std::vector<float>& got, const float* expected,
                  std::vector<float>& errors) const {
    const auto vocab = static_cast<size_t>(golden_.spec.vocab_size);
    for (size_t j = 0; j < got.size(); ++j) {
      if (j % vocab == 0) errors.push_back(0);
      const float error = std::abs(got[j] - expected[j]) / golden_.spread;
      if (!(error <= errors.back())) errors.back() = error;
    }
  }
  const DType type_ = std::get<1>(GetParam());
  const golden::Golden golden_ = golden::read(std::get<0>(GetParam()));
  std::unique_ptr<CudaTestModel> model_;
};

TEST_P(GoldenModelCuda, HasTheLogitsOfTransformers) {
  const float error = golden::largest_error(golden::row_errors(*model_, golden_, kv_type(type_)),
                                            golden::may_jump(type_, golden_));
  RecordProperty("error", std::to_string(error));
  EXPECT_LE(error, tolerance(type_, golden_));
}

TEST_P(GoldenModelCuda, DrawsTheSameGreedyTokens) {
  ASSERT_TRUE(model_->reserve(64, 4).ok());
  const bool jumps = golden::may_jump(type_, golden_);
  int compared = 0, agreed = 0;
  for (const golden::Greedy& greedy : golden_.greedy) {
    Rng rng(3);
    golden::KvMemory kv(model_->info(), kv_type(type_), 4, 128, rng);
    golden::Track track{greedy.prompt, 0, {}, {}};
    golden::run_step(*model_, kv,
                     {{&track, static_cast<int32_t>(greedy.prompt.size()), Piece::Want::kLast}});
    for (size_t i = 0; i < greedy.tokens.size(); ++i) {
      const std::vector<float>& logits = track.logits.at(track.done - 1);
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      if (greedy.margins[i] > tolerance(type_, golden_) * golden_.spread) {
        if (!jumps) {
          ASSERT_EQ(best, greedy.tokens[i]) << i << ", margin " << greedy.margins[i];
        }
        ++compared;
        agreed += best == greedy.tokens[i] ? 1 : 0;
      }
      track.tokens.push_back(greedy.tokens[i]);
      golden::run_step(*model_, kv, {{&track, 1, Piece::Want::kLast}});
    }
  }
  EXPECT_GE(compared, 48);  // of 128
  EXPECT_GE(agreed, static_cast<int>(golden::kTokensThatAgree * compared));
}

TEST_P(GoldenModelCuda, HasThemHoweverASequenceIsCut) {
  std::vector<std::vector<TokenId>> input;
  for (const golden::Sequence& sequence : golden_.sequences) input.push_back(sequence.tokens);
  for (const int32_t page_size : {1, 16}) {
    for (const int32_t chunk : {1, 5, 1 << 20}) {
      for (const bool together : {false, true}) {
        const auto logits =
            golden::run_all(*model_, input, kv_type(type_), page_size, chunk, together);
        std::vector<float> errors;
        for (size_t i = 0; i < logits.size(); ++i) {
          ASSERT_EQ(logits[i].size(), golden_.sequences[i].logits.size());
          add_errors(logits[i], golden_.sequences[i].logits.data(), errors);
        }
        EXPECT_LE(golden::largest_error(errors, golden::may_jump(type_, golden_)),
                  tolerance(type_, golden_))
            << "pages of " << page_size << ", chunks of " << chunk
            << (together ? ", together" : ", one by one");
      }
    }
  }
}

// Chunks that want no logits skip the end of the pass; what comes after must not notice.
TEST_P(GoldenModelCuda, UnwantedRowsChangeNothing) {
  ASSERT_TRUE(model_->reserve(128, 8).ok());
  const golden::Sequence& sequence = golden_.sequences.back();
  const auto count = static_cast<int32_t>(sequence.tokens.size());
  Rng rng(4);
  golden::KvMemory kv(model_->info(), kv_type(type_), 1, 512, rng);
  golden::Track parts{sequence.tokens, 0, {}, {}};
  golden::run_step(*model_, kv, {{&parts, 7, Piece::Want::kNothing}});
  golden::run_step(*model_, kv, {{&parts, 9, Piece::Want::kNothing}});
  golden::run_step(*model_, kv, {{&parts, count - 16, Piece::Want::kAll}});
  ASSERT_EQ(parts.logits.size(), static_cast<size_t>(count - 16));
  const auto vocab = static_cast<size_t>(model_->info().vocab_size);
  std::vector<float> errors;
  for (const auto& [position, logits] : parts.logits) {
    add_errors(logits, sequence.logits.data() + static_cast<size_t>(position) * vocab, errors);
  }
  EXPECT_LE(golden::largest_error(errors, golden::may_jump(type_, golden_)),
            tolerance(type_, golden_));
}

// What is broken on purpose must be seen: else the tests above prove nothing.
struct Breach {
  const char* name;
  // Breaks it, or says whether the fault breaks it; false where the model has no such part.
  bool (*breach)(DecoderSpec& spec);
  std::optional<program::Fault> fault = std::nullopt;
};

template <typename Change>
bool change_layers(DecoderSpec& spec, const Change& change) {
  bool changed = false;
  for (LayerSpec& layer : spec.layers) changed |= change(layer);
  return changed;
}
template <typename T, typename U>
bool replace(T& part, const U& by) {
  const bool changed = !(part == T(by));
  part = T(by);
  return changed;
}

constexpr Breach kBreaches[] = {
    {"no residual of attention", [](DecoderSpec&) { return true; },
     program::Fault::kDropAttentionResidual},
    {"no residual of the MLP", [](DecoderSpec&) { return true; }, program::Fault::kDropMlpResidual},
    {"no rope",
     [](DecoderSpec& s) {
       return change_layers(s,
                            [](LayerSpec& l) { return replace(l.attention.rope, std::nullopt); });
     }},
    {"uniform attention",
     [](DecoderSpec& s) {
       return change_layers(s, [](LayerSpec& l) { return replace(l.attention.scale, 0); });
     }},
    {"no window",
     [](DecoderSpec& s) {
       return change_layers(s, [](LayerSpec& l) { return replace(l.attention.sliding_window, 0); });
     }},
    {"no cap of scores",
     [](DecoderSpec& s) {
       return change_layers(s, [](LayerSpec& l) { return replace(l.attention.softcap, 0); });
     }},
    {"no cap of logits", [](DecoderSpec& s) { return replace(s.logits_softcap, 0); }},
    {"the embedding's scale", [](DecoderSpec& s) { return replace(s.embedding_scale, 1); }},
    {"norms around 0",
     [](DecoderSpec& s) {
       return change_layers(s, [](LayerSpec& l) {
         return l.input_norm && l.input_norm->kind == NormSpec::Kind::kRmsOneCentred &&
                replace(l.input_norm->kind, NormSpec::Kind::kRms);
       });
     }},
    {"layer norms",
     [](DecoderSpec& s) {
       return change_layers(s, [](LayerSpec& l) {
         return l.input_norm && l.input_norm->kind == NormSpec::Kind::kLayer &&
                replace(l.input_norm->epsilon, 0.3f);
       });
     }},
    {"the activation",
     [](DecoderSpec& s) {
       return change_layers(s, [](LayerSpec& l) {
         MlpSpec& mlp = l.experts ? l.experts->expert : l.mlp;
         return replace(mlp.activation, mlp.gated ? kernels::Activation::kSilu : mlp.activation);
       });
     }},
    {"no experts", [](DecoderSpec& s) { return s.layers.back().experts.has_value(); },
     program::Fault::kDropExperts},
    {"no shared expert",
     [](DecoderSpec& s) {
       return s.layers.back().experts && s.layers.back().experts->shared.has_value();
     },
     program::Fault::kDropSharedExpert},
    {"an expert too few",
     [](DecoderSpec& s) {
       return change_layers(s, [](LayerSpec& l) { return l.experts && l.experts->router.top_k--; });
     }},
    {"weights of experts",
     [](DecoderSpec& s) {
       return change_layers(s, [](LayerSpec& l) {
         return l.experts && replace(l.experts->router.normalise, !l.experts->router.normalise);
       });
     }},
    {"groups of experts",
     [](DecoderSpec& s) {
       return change_layers(s, [](LayerSpec& l) {
         if (!l.experts) return false;
         l.experts->router.top_groups = 1;
         return replace(l.experts->router.num_groups, 1);
       });
     }},
};

// In bfloat16 those that break every model.
TEST_P(GoldenModelCuda, NoticesWhatIsLeftOut) {
  const float limit = 2 * tolerance(type_, golden_);
  int noticed = 0;
  for (const Breach& breach : kBreaches) {
    DecoderSpec spec = golden_.spec;
    if (!breach.breach(spec)) continue;
    const auto model = load(spec, type_, {.path = golden_.folder}, breach.fault);
    ASSERT_NE(model, nullptr) << breach.name;
    EXPECT_GT(golden::max_error(*model, golden_, kv_type(type_)), limit) << breach.name;
    if (++noticed == 4 && type_ == DType::kBFloat16) break;
  }
  EXPECT_GE(noticed, 3);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModelCuda,
                         testing::Combine(testing::ValuesIn(golden::names()),
                                          testing::Values(DType::kFloat32, DType::kBFloat16)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + "_" +
                                  name_of(std::get<1>(tested.param));
                         });

// Dummy weights are the same values on both: else the logits would have nothing in common.
struct DrawnModel {
  const char* golden;
  const char* changes;  // of its config.json
};
const DrawnModel kDrawnModels[] = {
    {"qwen3_head_dim", ""},
    // Norms over all heads, of which there is one alone among keys.
    {"olmo2", R"({"num_key_value_heads": 1})"},
};

TEST(DummyModelCuda, HasTheLogitsOfTheCpu) {
  ESPALIER_REQUIRE_DEVICE();
  for (const DrawnModel& drawn : kDrawnModels) {
    SCOPED_TRACE(drawn.golden);
    const golden::Golden golden = golden::read(drawn.golden);
    WorkPool pool(2);
    const ModelLoadOptions options{.path = golden.folder,
                                   .format = LoadFormat::kDummy,
                                   .seed = 11,
                                   .dtype = "float32",
                                   .config_overrides = drawn.changes,
                                   .pool = &pool};
    const auto cpu = load_model(options);
    ASSERT_TRUE(cpu) << cpu.error().to_string();
    auto decoder = CudaDecoder::load(options);
    ASSERT_TRUE(decoder) << decoder.error().to_string();
    CudaTestModel gpu(std::move(*decoder));
    std::vector<std::vector<TokenId>> input;
    for (const golden::Sequence& sequence : golden.sequences) input.push_back(sequence.tokens);
    const auto expected = golden::run_all(**cpu, input, KvType::kFloat32, 16, 1 << 20, true);
    const auto got = golden::run_all(gpu, input, KvType::kFloat32, 16, 1 << 20, true);
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto [low, high] = std::ranges::minmax(expected[i]);
      for (size_t j = 0; j < expected[i].size(); ++j) {
        ASSERT_NEAR(got[i][j], expected[i][j], 1e-4f * (high - low)) << i << " " << j;
      }
    }
  }
}

// Matrices of layers rounded to e4m3, with activations on their way into them, or to 4 bits, of
// every family whose sizes GEMMs take: within the rounding's noise of the reference, and the same
// however the rows are cut.
TEST(RoundedModelCuda, StaysNearTheReference) {
  ESPALIER_REQUIRE_DEVICE();
  for (const std::string format : {"fp8", "int4", "nvfp4"}) {
    const bool four_bits = format != "fp8";
    int rounded = 0;
    for (const std::string& name : golden::names()) {
      SCOPED_TRACE(name + ", " + format);
      const golden::Golden golden = golden::read(name);
      const ModelLoadOptions options{.path = golden.folder};
      auto plain = CudaDecoder::load({golden.spec, DType::kBFloat16}, options);
      ASSERT_TRUE(plain) << plain.error().to_string();
      ModelPlan plan{golden.spec, DType::kBFloat16};
      plan.weights = choose_weight_types(format, DType::kBFloat16);
      auto decoder = CudaDecoder::load(std::move(plan), options);
      if (!decoder && decoder.error().code() == StatusCode::kUnimplemented) {
        EXPECT_THAT(decoder.error().message(), testing::HasSubstr("takes no matrix of the model"));
        continue;
      }
      ASSERT_TRUE(decoder) << decoder.error().to_string();
      if ((*decoder)->info().weight_bytes == (*plain)->info().weight_bytes) continue;
      ++rounded;
      CudaTestModel model(std::move(*decoder));
      std::vector<float> errors = golden::row_errors(model, golden, KvType::kBFloat16);
      std::ranges::sort(errors);
      const float median = errors[errors.size() / 2];
      RecordProperty(name + "_" + format, fmt::format("{:.3f}", median));
      EXPECT_GT(median, 1e-4f) << "it was not rounded";
      EXPECT_LE(median, four_bits ? 0.3f : 0.1f);
    }
    EXPECT_GE(rounded, four_bits ? 3 : 10);
  }
}

// Experts that stay in MXFP4, whose numbers bfloat16 has exactly: within the tolerance of those
// that become bfloat16, however a sequence is cut.
TEST(Mxfp4ModelCuda, HasTheLogitsOfTransformers) {
  ESPALIER_REQUIRE_DEVICE();
  const golden::Golden golden = golden::read("gpt_oss_mxfp4");
  const DType type = DType::kBFloat16;
  auto decoder = CudaDecoder::load({.path = golden.folder});
  ASSERT_TRUE(decoder) << decoder.error().to_string();
  CudaTestModel model(std::move(*decoder));
  const float error = golden::largest_error(golden::row_errors(model, golden, kv_type(type)),
                                            golden::may_jump(type, golden));
  fmt::print("largest error {:.4f}, tolerance {:.4f}\n", error, tolerance(type, golden));
  EXPECT_LE(error, tolerance(type, golden));
  std::vector<std::vector<TokenId>> input;
  for (const golden::Sequence& sequence : golden.sequences) input.push_back(sequence.tokens);
  const auto vocab = static_cast<size_t>(golden.spec.vocab_size);
  for (const int32_t chunk : {1, 5}) {
    const auto logits = golden::run_all(model, input, kv_type(type), 16, chunk, true);
    std::vector<float> errors;
    for (size_t i = 0; i < logits.size(); ++i) {
      for (size_t j = 0; j < logits[i].size(); ++j) {
        if (j % vocab == 0) errors.push_back(0);
        errors.back() =
            std::max(errors.back(),
                     std::abs(logits[i][j] - golden.sequences[i].logits.data()[j]) / golden.spread);
      }
    }
    EXPECT_LE(golden::largest_error(errors, golden::may_jump(type, golden)),
              tolerance(type, golden))
        << "chunks of " << chunk;
  }
}

// Experts of other models rounded to MXFP4: within the rounding's noise of the reference.
TEST(Mxfp4ModelCuda, RoundedExpertsStayNearTheReference) {
  ESPALIER_REQUIRE_DEVICE();
  int rounded = 0;
  for (const std::string name : {"qwen3_moe", "mixtral", "glm4_moe", "qwen2_moe"}) {
    SCOPED_TRACE(name);
    const golden::Golden golden = golden::read(name);
    const ModelLoadOptions options{.path = golden.folder};
    auto plain = CudaDecoder::load({golden.spec, DType::kBFloat16}, options);
    ASSERT_TRUE(plain) << plain.error().to_string();
    ModelPlan plan{golden.spec, DType::kBFloat16};
    plan.weights.mxfp4 = true;
    auto decoder = CudaDecoder::load(std::move(plan), options);
    if (!decoder && decoder.error().code() == StatusCode::kUnimplemented) continue;
    ASSERT_TRUE(decoder) << decoder.error().to_string();
    EXPECT_NE((*decoder)->info().weight_bytes, (*plain)->info().weight_bytes);
    ++rounded;
    CudaTestModel model(std::move(*decoder));
    std::vector<float> errors = golden::row_errors(model, golden, KvType::kBFloat16);
    std::ranges::sort(errors);
    const float median = errors[errors.size() / 2];
    fmt::print("{}: median {:.3f}\n", name, median);
    EXPECT_GT(median, 1e-4f) << "it was not rounded";
    EXPECT_LE(median, 0.35f);
  }
  EXPECT_GE(rounded, 2);
}

// A model without experts has nothing that could be rounded.
TEST(Mxfp4ModelCuda, IsRefusedWithoutExperts) {
  ESPALIER_REQUIRE_DEVICE();
  const golden::Golden golden = golden::read("llama_tied_llama3");
  const auto decoder = CudaDecoder::load({.path = golden.folder, .dtype = "mxfp4"});
  ASSERT_FALSE(decoder);
  EXPECT_THAT(decoder.error().message(), testing::HasSubstr("mxfp4"));
}

// Keys and values in pages of e4m3, of every family whose heads it takes: within the rounding's
// noise of the reference, whatever the pieces that a sequence is run in.
TEST(RoundedKeysCuda, StayNearTheReference) {
  ESPALIER_REQUIRE_DEVICE();
  int rounded = 0;
  for (const std::string& name : golden::names()) {
    SCOPED_TRACE(name);
    const golden::Golden golden = golden::read(name);
    auto decoder = CudaDecoder::load({golden.spec, DType::kBFloat16}, {.path = golden.folder});
    ASSERT_TRUE(decoder) << decoder.error().to_string();
    const Status taken = (*decoder)->set_kv_type(KvType::kFloat8E4M3);
    if (!taken.ok() || golden.spec.layers[0].attention.head_dim % 16 != 0) continue;
    ++rounded;
    CudaTestModel model(std::move(*decoder));
    std::vector<float> errors = golden::row_errors(model, golden, KvType::kFloat8E4M3);
    std::ranges::sort(errors);
    const float median = errors[errors.size() / 2];
    RecordProperty(name, fmt::format("{:.3f}", median));
    EXPECT_GT(median, 1e-4f) << "it was not rounded";
    EXPECT_LE(median, 0.1f);
    std::vector<std::vector<TokenId>> input;
    for (const golden::Sequence& sequence : golden.sequences) input.push_back(sequence.tokens);
    const auto whole = golden::run_all(model, input, KvType::kFloat8E4M3, 16, 1 << 20, true);
    const auto pieces = golden::run_all(model, input, KvType::kFloat8E4M3, 1, 5, false);
    if (golden::may_jump(DType::kBFloat16, golden)) continue;
    for (size_t i = 0; i < whole.size(); ++i)
      for (size_t j = 0; j < whole[i].size(); ++j)
        ASSERT_NEAR(pieces[i][j], whole[i][j], 0.15f * golden.spread) << i << " " << j;
  }
  EXPECT_GE(rounded, 8);
}

// Pieces of 16 tokens attend to latents; whole prompts to keys and values of each head, where the
// device has the kernel. Beside long entries there are short ones, in other orders.
TEST(DummyModelCuda, LatentsExpandedOrNotGiveTheSameLogits) {
  ESPALIER_REQUIRE_DEVICE();
  const golden::Golden golden = golden::read("deepseek_v2");
  auto decoder = CudaDecoder::load(
      {.path = golden.folder,
       .format = LoadFormat::kDummy,
       .seed = 5,
       .dtype = "bfloat16",
       .config_overrides =
           R"({"num_attention_heads": 16, "num_key_value_heads": 16, "qk_nope_head_dim": 128,
               "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512,
               "first_k_dense_replace": 100})"});
  ASSERT_TRUE(decoder) << decoder.error().to_string();
  CudaTestModel model(std::move(*decoder));
  Rng rng(17);
  std::vector<std::vector<TokenId>> input;
  for (const size_t length : {5, 200, 31, 32, 129, 1, 64}) {
    std::vector<TokenId>& tokens = input.emplace_back(length);
    for (TokenId& token : tokens) {
      token = static_cast<TokenId>(rng.below(static_cast<uint64_t>(model.info().vocab_size)));
    }
  }
  const auto absorbed = golden::run_all(model, input, KvType::kBFloat16, 1, 16, false);
  for (const int32_t chunk : {1 << 20, 70, 33}) {
    for (const bool together : {false, true}) {
      const auto expanded = golden::run_all(model, input, KvType::kBFloat16, 16, chunk, together);
      for (size_t i = 0; i < input.size(); ++i) {
        double difference = 0, size = 0;
        for (size_t j = 0; j < absorbed[i].size(); ++j) {
          difference += std::pow(expanded[i][j] - absorbed[i][j], 2);
          size += std::pow(absorbed[i][j], 2);
        }
        EXPECT_LE(std::sqrt(difference / size), 0.02) << i << ", chunks of " << chunk;
      }
    }
  }
}

}  // namespace
}  // namespace espalier
