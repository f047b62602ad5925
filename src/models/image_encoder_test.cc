// Encoders of pictures against transformers, and broken on purpose: each part must be noticed.
#include "models/image_encoder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <stop_token>
#include <thread>

#include "checkpoint/checkpoint.h"
#include "media/drawn.h"
#include "models/families/family.h"
#include "models/golden.h"
#include "models/image_processor_config.h"
#include "models/program/cpu_encoder.h"
#include "models/program/lower.h"
#include "models/program/print.h"
#include "models/seen_prompt.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using testing::HasSubstr;

std::filesystem::path folder_of(const std::string& name) { return "tests/golden/images/" + name; }

float error_of(ImageEncoder& encoder, const std::string& name) {
  return golden::encoder_error(encoder, folder_of(name));
}

size_t rows_size(const ImageEncoder& encoder, const PreparedImage& image) {
  return static_cast<size_t>(image.num_rows) * static_cast<size_t>(encoder.info().width);
}

class ImageEncoderGolden : public testing::TestWithParam<const char*> {
 protected:
  Result<std::unique_ptr<program::CpuEncoder>> load(
      const program::Rewrite& rewrite = {},
      const std::function<void(DecoderSpec&, ImageProcessorSpec&)>& change = {}) {
    const std::filesystem::path folder = folder_of(GetParam());
    ESP_ASSIGN_OR_RETURN(const JsonObject config, read_model_config(folder));
    ESP_ASSIGN_OR_RETURN(std::optional<DecoderSpec> spec, make_encoder_spec(config));
    ESP_ASSIGN_OR_RETURN(ImageProcessorSpec processor,
                         read_image_processor(folder, *spec->patches, spec->tiles));
    ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
    if (change) change(*spec, processor);
    CheckpointSource source(checkpoint, *spec, DType::kFloat32);
    return program::CpuEncoder::create(*spec, processor, DType::kFloat32, source, pool_, rewrite);
  }

  WorkPool pool_{2};
};

TEST_P(ImageEncoderGolden, EqualsTransformers) {
  auto encoder = load();
  ASSERT_TRUE(encoder) << encoder.error().message();
  const std::string name = GetParam();
  EXPECT_EQ((*encoder)->info().width, name == "qwen3_vl" ? 3 * 32
                                      : name == "mllama" ? 2 * 2 * 16
                                                         : 32);
  const float error = error_of(**encoder, GetParam());
  RecordProperty("error", fmt::format("{:.1e}", error));
  EXPECT_LT(error, 1e-4f);
}

TEST_P(ImageEncoderGolden, IsFoundByItsFolder) {
  auto encoder = load_image_encoder({.path = folder_of(GetParam()), .pool = &pool_});
  ASSERT_TRUE(encoder) << encoder.error().message();
  ASSERT_NE(*encoder, nullptr);
  EXPECT_LT(error_of(**encoder, GetParam()), 1e-4f);
}

TEST_P(ImageEncoderGolden, EqualsTransformersInBFloat16) {
  auto encoder =
      load_image_encoder({.path = folder_of(GetParam()), .dtype = "bfloat16", .pool = &pool_});
  ASSERT_TRUE(encoder) << encoder.error().message();
  const float error = error_of(**encoder, GetParam());
  RecordProperty("error", fmt::format("{:.1e}", error));
  EXPECT_LT(error, 1e-2f);
}

TEST_P(ImageEncoderGolden, OnePictureDoesNotChangeTheNext) {
  auto encoder = load();
  ASSERT_TRUE(encoder);
  const auto a = (*encoder)->prepare(test::drawn(40, 31)).value();
  const auto b = (*encoder)->prepare(test::drawn(9, 50)).value();
  const auto rows_of = [&](const PreparedImage& image) {
    std::vector<float> rows(rows_size(**encoder, image));
    EXPECT_TRUE((*encoder)->encode(image, rows).ok());
    return rows;
  };
  const std::vector<float> first = rows_of(a), other = rows_of(b), again = rows_of(a);
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

// Whenever it is stopped, there are no rows, and the next picture's are what they were.
TEST_P(ImageEncoderGolden, StopsAndGoesOn) {
  auto encoder = load();
  ASSERT_TRUE(encoder);
  const auto image = (*encoder)->prepare(test::drawn(40, 31)).value();
  const auto made_rows = [&](const std::stop_token& stop, Status& status) {
    std::vector<float> rows(rows_size(**encoder, image));
    status = (*encoder)->encode(image, rows, stop);
    return rows;
  };
  Status status;
  const std::vector<float> wanted = made_rows({}, status);
  ASSERT_TRUE(status.ok());
  for (int round = 0; round < 20; ++round) {
    std::stop_source stop;
    if (round == 0) stop.request_stop();
    std::jthread stopping([&] {
      for (int i = 0; i < round; ++i) std::this_thread::yield();
      stop.request_stop();
    });
    const std::vector<float> rows = made_rows(stop.get_token(), status);
    if (status.ok()) {
      EXPECT_NE(round, 0);
      EXPECT_EQ(rows, wanted);
    } else {
      EXPECT_EQ(status.code(), StatusCode::kAborted);
    }
    EXPECT_EQ(made_rows({}, status), wanted);
  }
}

TEST_P(ImageEncoderGolden, PlansWhatItPrepares) {
  auto encoder = load();
  ASSERT_TRUE(encoder);
  for (const auto& [width, height] : {std::pair(40, 31), std::pair(9, 50), std::pair(300, 200),
                                      std::pair(1, 201), std::pair(1, 10000)}) {
    for (const bool alone : {true, false}) {
      const auto plan = (*encoder)->plan({width, height}, alone);
      const auto made = (*encoder)->prepare(test::drawn(width, height), alone);
      ASSERT_EQ(plan.has_value(), made.has_value());
      if (!plan) {
        EXPECT_EQ(plan.error(), made.error());
        continue;
      }
      EXPECT_EQ(plan->num_rows, made->num_rows);
      EXPECT_TRUE(plan->patches.empty());
      EXPECT_EQ(std::ssize(made->patches), int64_t{plan->num_tiles} * plan->grid.size() *
                                               (*encoder)->info().patches.features());
    }
  }
}

// Of pictures that have a fixed number of patches.
class FixedEncoderGolden : public ImageEncoderGolden {};

// A part broken on purpose.
struct Fault {
  const char* name;
  program::Rewrite rewrite;
  std::function<void(DecoderSpec&, ImageProcessorSpec&)> change;
};

program::Rewrite without(program::OpKind kind) {
  return [kind](program::Program program) {
    const auto last = std::find_if(program.ops.rbegin(), program.ops.rend(),
                                   [&](const program::Op& op) { return op.kind == kind; });
    if (last != program.ops.rend()) program.ops.erase(std::prev(last.base()));
    return program;
  };
}

program::Rewrite with_causal_attention() {
  return [](program::Program program) {
    for (program::Op& op : program.ops) {
      if (op.kind == program::OpKind::kAttention) op.as<program::Attention>().causal = true;
    }
    return program;
  };
}

program::Rewrite with_silu() {
  return [](program::Program program) {
    for (program::Op& op : program.ops) {
      if (op.kind != program::OpKind::kActivation) continue;
      auto& activation = op.as<program::Activation>();
      activation.kind = kernels::Activation::kSilu;
      activation.gelu.reset();
    }
    return program;
  };
}

std::vector<Fault> faults() {
  return {
      {"no_positions",
       [](program::Program program) {
         std::erase_if(program.ops, [](const program::Op& op) {
           return op.kind == program::OpKind::kResidualAdd && op.layer < 0;
         });
         return program;
       },
       {}},
      {"causal", with_causal_attention(), {}},
      {"silu", with_silu(), {}},
      {"no_activation_of_projector", without(program::OpKind::kActivation), {}},
      {"a_layer_less",
       {},
       [](DecoderSpec& spec, ImageProcessorSpec&) {
         spec.names.unused_prefixes.emplace_back("vision_tower.");
         spec.layers.pop_back();
       }},
      {"bilinear",
       {},
       [](DecoderSpec&, ImageProcessorSpec& processor) { processor.filter = Resample::kBilinear; }},
      {"no_mean", {}, [](DecoderSpec&, ImageProcessorSpec& processor) { processor.mean = {}; }},
  };
}

TEST_P(FixedEncoderGolden, FaultsAreNoticed) {
  for (const Fault& fault : faults()) {
    auto encoder = load(fault.rewrite, fault.change);
    ASSERT_TRUE(encoder) << fault.name << ": " << encoder.error().message();
    EXPECT_GT(error_of(**encoder, GetParam()), 2e-3f) << fault.name;
  }
}

class AnySizeEncoderGolden : public ImageEncoderGolden {};

TEST_P(AnySizeEncoderGolden, FaultsAreNoticed) {
  const std::vector<Fault> faults = {
      {"no_rope", without(program::OpKind::kRope), {}},
      {"causal", with_causal_attention(), {}},
      {"silu", with_silu(), {}},
      {"rows_for_columns",
       {},
       [](DecoderSpec& spec, ImageProcessorSpec&) {
         spec.ropes[0].sections = {spec.ropes[0].sections[1], spec.ropes[0].sections[2], 0};
       }},
      {"windows_of_another_size",
       {},
       [](DecoderSpec& spec, ImageProcessorSpec&) {
         if (spec.patches->window > 0) spec.patches->window = 3;
         spec.ropes[0].theta = spec.patches->window > 0 ? spec.ropes[0].theta : 100;
       }},
      {"windows_everywhere_or_nowhere",
       {},
       [](DecoderSpec& spec, ImageProcessorSpec&) {
         for (LayerSpec& layer : spec.layers) layer.attention.windowed = spec.patches->window > 0;
         spec.ropes[0].theta = spec.patches->window > 0 ? spec.ropes[0].theta : 100;
       }},
      {"bilinear",
       {},
       [](DecoderSpec&, ImageProcessorSpec& processor) { processor.filter = Resample::kBilinear; }},
  };
  for (const Fault& fault : faults) {
    if (fault.name == std::string("silu") && std::string(GetParam()) == "qwen2_5_vl") continue;
    auto encoder = load(fault.rewrite, fault.change);
    ASSERT_TRUE(encoder) << fault.name << ": " << encoder.error().message();
    EXPECT_GT(error_of(**encoder, GetParam()), 2e-3f) << fault.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnySizeEncoderGolden,
                         testing::Values("qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
                         [](const auto& tested) { return std::string(tested.param); });

// Of Qwen3-VL: learned positions between those of a grid, and states of several layers.
class DeepEncoderGolden : public ImageEncoderGolden {};

TEST_P(DeepEncoderGolden, FaultsAreNoticed) {
  using Change = std::function<void(DecoderSpec&, ImageProcessorSpec&)>;
  const auto deep = [](const std::function<void(std::vector<DeepstackSpec>&)>& change) -> Change {
    return [change](DecoderSpec& spec, ImageProcessorSpec&) { change(spec.projector->deepstack); };
  };
  const std::vector<Fault> faults = {
      {"no_positions",
       [](program::Program program) {
         std::erase_if(program.ops, [](const program::Op& op) {
           return op.kind == program::OpKind::kResidualAdd && op.layer < 0;
         });
         return program;
       },
       {}},
      {"no_bias_of_patches",
       {},
       [](DecoderSpec& spec, ImageProcessorSpec&) {
         spec.patches->bias = false;
         spec.names.unused_prefixes.emplace_back("visual.patch_embed.proj.bias");
         spec.names.unused_prefixes.emplace_back("model.visual.patch_embed.proj.bias");
       }},
      {"no_norm_of_states",
       [](program::Program program) {
         std::erase_if(program.ops, [](const program::Op& op) {
           return op.kind == program::OpKind::kNorm &&
                  op.as<program::Norm>().weight.kind == WeightKind::kDeepstackNorm;
         });
         return program;
       },
       {}},
      {"states_of_another_layer", {}, deep([](auto& parts) { parts[0].layer = 0; })},
      {"states_in_front_of_the_layer", {}, deep([](auto& parts) { parts[1].layer = 2; })},
      {"parts_that_change_places", {}, deep([](auto& parts) {
         std::swap(parts[0], parts[1]);
         std::swap(parts[0].layer, parts[1].layer);
       })},
  };
  for (const Fault& fault : faults) {
    auto encoder = load(fault.rewrite, fault.change);
    ASSERT_TRUE(encoder) << fault.name << ": " << encoder.error().message();
    EXPECT_GT(error_of(**encoder, GetParam()), 2e-3f) << fault.name;
  }
}

// Parts that Gemma 3, Pixtral and InternVL have besides.
class MergedEncoderGolden : public ImageEncoderGolden {};

TEST_P(MergedEncoderGolden, FaultsAreNoticed) {
  using Change = std::function<void(DecoderSpec&)>;
  const auto skip_norms = [](WeightKind kind) {
    return [kind](program::Program program) {
      std::erase_if(program.ops, [&](const program::Op& op) {
        return op.kind == program::OpKind::kNorm && op.as<program::Norm>().weight.kind == kind;
      });
      return program;
    };
  };
  const std::string name = GetParam();
  const auto no_change = [](DecoderSpec&) {};
  struct Part {
    const char* name;
    bool there;
    program::Rewrite rewrite;
    Change change;
  };
  const bool internvl = name.starts_with("internvl");
  const std::vector<Part> parts = {
      {"silu_for_gelu", name != "pixtral" && name != "mistral3", with_silu(), no_change},
      {"causal", true, with_causal_attention(), no_change},
      {"no_norm_of_merged_rows", name == "gemma3" || internvl,
       skip_norms(WeightKind::kProjectorNorm), no_change},
      {"no_layer_scale", internvl, skip_norms(WeightKind::kAttentionOutputNorm), no_change},
      {"no_layer_scale_of_mlp", internvl, skip_norms(WeightKind::kMlpOutputNorm), no_change},
      {"no_norm_of_queries", name == "internvl_norms", skip_norms(WeightKind::kQNorm), no_change},
      {"no_final_norm", name == "gemma3" || name == "mistral3" || name == "internvl_norms",
       [](program::Program program) {
         std::erase_if(program.ops, [](const program::Op& op) {
           return op.kind == program::OpKind::kNorm &&
                  op.as<program::Norm>().weight.kind == WeightKind::kFinalNorm &&
                  op.inputs[0] == op.outputs[0];
         });
         return program;
       },
       no_change},
      {"no_norm_in_front", name == "pixtral" || name == "mistral3",
       skip_norms(WeightKind::kEmbeddingNorm), no_change},
      {"side_by_side",
       name == "mistral3",
       {},
       [](DecoderSpec& spec) { spec.projector->how = ProjectorSpec::Merge::kSideBySide; }},
      {"frequencies_of_their_own",
       name == "pixtral" || name == "mistral3",
       {},
       [](DecoderSpec& spec) { spec.ropes[0].axial_in_turns = false; }},
      {"an_activation_more",
       name == "mistral3",
       {},
       [](DecoderSpec& spec) { spec.projector->layers[0].linear = false; }},
  };
  for (const Part& part : parts) {
    if (!part.there) continue;
    auto encoder =
        load(part.rewrite, [&](DecoderSpec& spec, ImageProcessorSpec&) { part.change(spec); });
    ASSERT_TRUE(encoder) << part.name << ": " << encoder.error().message();
    EXPECT_GT(error_of(**encoder, GetParam()), 2e-3f) << part.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, MergedEncoderGolden,
                         testing::Values("gemma3", "pixtral", "mistral3", "internvl",
                                         "internvl_norms", "internvl_chat"),
                         [](const auto& tested) { return std::string(tested.param); });

INSTANTIATE_TEST_SUITE_P(All, DeepEncoderGolden, testing::Values("qwen3_vl"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(FixedEncoderGolden, ProgramStatesItsParts) {
  const JsonObject config = read_model_config(folder_of(GetParam())).value();
  const std::string text = program::to_string(program::lower(*make_encoder_spec(config).value()));
  EXPECT_THAT(text, HasSubstr("patches, %patch_embedding"));
  EXPECT_THAT(text, HasSubstr("causal=false"));
  EXPECT_THAT(text, HasSubstr("%projector"));
  const bool clip = std::string(GetParam()) == "llava_clip";
  EXPECT_EQ(text.find("class_embed") != std::string::npos, clip);
  EXPECT_EQ(text.find("quick_gelu") != std::string::npos, clip);
}

INSTANTIATE_TEST_SUITE_P(All, ImageEncoderGolden,
                         testing::Values("llava_clip", "llava_siglip", "llava_next",
                                         "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl",
                                         "gemma3", "pixtral", "mistral3", "internvl",
                                         "internvl_norms", "internvl_chat", "mllama"),
                         [](const auto& tested) { return std::string(tested.param); });
INSTANTIATE_TEST_SUITE_P(All, FixedEncoderGolden, testing::Values("llava_clip", "llava_siglip"),
                         [](const auto& tested) { return std::string(tested.param); });

// Sizes of pictures, and how many rows transformers makes of them.
class ManySizes : public ImageEncoderGolden {};

TEST_P(ManySizes, RowsAndPixelsEqualTransformers) {
  const auto encoder = load();
  ASSERT_TRUE(encoder);
  const auto reference = SafetensorsFile::open(folder_of(GetParam()) / "reference.safetensors");
  ASSERT_TRUE(reference);
  std::span<const int32_t> counts, line_rows;
  std::span<const float> pixels;
  for (const CheckpointTensor& tensor : reference->tensors()) {
    const size_t size = tensor.bytes.size() / 4;
    if (tensor.name == "counts") {
      counts = {reinterpret_cast<const int32_t*>(tensor.bytes.data()), size};
    } else if (tensor.name == "line_rows") {
      line_rows = {reinterpret_cast<const int32_t*>(tensor.bytes.data()), size};
    } else if (tensor.name == "pixels") {
      pixels = {reinterpret_cast<const float*>(tensor.bytes.data()), size};
    }
  }
  ASSERT_EQ(counts.size(), 3u * 500);
  ASSERT_EQ(pixels.size(), 9u * 500);
  float error = 0;
  for (size_t i = 0; i < 500; ++i) {
    const std::span count = counts.subspan(3 * i, 3);
    const auto prepared = (*encoder)->prepare(test::drawn(count[0], count[1]));
    ASSERT_TRUE(prepared) << prepared.error().message();
    EXPECT_EQ(prepared->num_rows, count[2]) << count[0] << " x " << count[1];
    EXPECT_EQ(prepared->line_rows, line_rows.empty() ? 0 : line_rows[i]);
    std::vector<float> values = prepared->patches;
    std::ranges::sort(values);
    for (size_t k = 0; k < 9; ++k) {
      error = std::max(error, std::fabs(values[k * (values.size() - 1) / 8] - pixels[9 * i + k]));
    }
  }
  // Over the smallest deviation: one of 255.
  EXPECT_LT(error, 1.0f / 255 / std::ranges::min((*encoder)->info().processor.std));
  RecordProperty("error", std::to_string(error));
}

INSTANTIATE_TEST_SUITE_P(All, ManySizes,
                         testing::Values("llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl",
                                         "qwen3_vl", "gemma3", "pixtral", "mistral3", "internvl",
                                         "mllama"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST_P(ImageEncoderGolden, AnySizeIsEncodedOrRefused) {
  auto encoder = load();
  ASSERT_TRUE(encoder);
  for (const auto& [width, height] :
       {std::pair(1, 1), std::pair(1, 10000), std::pair(10000, 1), std::pair(200, 1),
        std::pair(1, 201), std::pair(3, 500), std::pair(999, 1000)}) {
    const auto prepared = (*encoder)->prepare(test::drawn(width, height));
    if (!prepared) {
      EXPECT_EQ(prepared.error().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(prepared.error().message(), HasSubstr("narrow"));
      continue;
    }
    std::vector<float> rows(rows_size(**encoder, *prepared));
    EXPECT_TRUE((*encoder)->encode(*prepared, rows).ok());
    EXPECT_TRUE(std::ranges::all_of(rows, [](float x) { return std::isfinite(x); }));
  }
}

// In a prompt with others, LLaVA-OneVision reads a picture whole, and one row ends it.
TEST(TiledEncoder, PicturesBesideOthersAreReadWhole) {
  WorkPool pool(1);
  for (const char* name : {"llava_next", "llava_onevision"}) {
    auto encoder = load_image_encoder({.path = folder_of(name), .pool = &pool});
    ASSERT_TRUE(encoder) << encoder.error().message();
    const Image image = test::drawn(100, 90);
    const bool alone = (*encoder)->info().tiles->alone;
    EXPECT_EQ(alone, std::string(name) == "llava_onevision");
    const int32_t beside = (*encoder)->prepare(image, false)->num_rows;
    EXPECT_EQ(beside, alone ? 17 : (*encoder)->prepare(image)->num_rows);
  }
}

// The decoder beside the encoder, on a text without pictures: names and sizes of text_config.
TEST(SeeingDecoder, LogitsOfTextEqualTransformers) {
  for (const char* name : {"llava_clip", "llava_siglip", "llava_next", "llava_onevision",
                           "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3", "pixtral", "mistral3",
                           "internvl", "internvl_norms", "internvl_chat"}) {
    WorkPool pool(2);
    auto model = load_model({.path = folder_of(name), .dtype = "float32", .pool = &pool});
    ASSERT_TRUE(model) << model.error().message();
    const auto reference = SafetensorsFile::open(folder_of(name) / "reference.safetensors");
    ASSERT_TRUE(reference);
    std::vector<TokenId> prompt;
    std::vector<float> logits;
    for (const CheckpointTensor& tensor : reference->tensors()) {
      if (tensor.name == "prompt") {
        const auto* ids = reinterpret_cast<const int32_t*>(tensor.bytes.data());
        prompt.assign(ids, ids + tensor.bytes.size() / sizeof(int32_t));
      } else if (tensor.name == "logits") {
        const auto* data = reinterpret_cast<const float*>(tensor.bytes.data());
        logits.assign(data, data + tensor.bytes.size() / sizeof(float));
      }
    }
    const std::vector<float> made =
        golden::run_all(**model, {prompt}, KvType::kFloat32, 4, 5, true)[0];
    ASSERT_EQ(made.size(), logits.size());
    const auto [low, high] = std::minmax_element(logits.begin(), logits.end());
    for (size_t i = 0; i < made.size(); ++i) {
      ASSERT_NEAR(made[i], logits[i], 1e-4 * (*high - *low)) << name << " " << i;
    }
  }
}

TEST(ImageEncoder, TextModelsHaveNone) {
  WorkPool pool(1);
  const auto encoder = load_image_encoder({.path = "tests/golden/models/qwen2_f32", .pool = &pool});
  ASSERT_TRUE(encoder) << encoder.error().message();
  EXPECT_EQ(*encoder, nullptr);
}

}  // namespace
}  // namespace espalier
