// Pictures that a decoder reads by cross attention (Mllama), against transformers: one, several,
// and some that follow each other; in chunks and beside other entries; and with parts broken on
// purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "models/families/family.h"
#include "models/golden.h"
#include "models/image_encoder.h"
#include "models/image_processor_config.h"
#include "models/program/cpu_encoder.h"
#include "models/program/cpu_model.h"
#include "models/seen_prompt.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using golden::SeenPrompt;
using program::Op;
using program::OpKind;
using program::Program;

const std::filesystem::path kFolder = "tests/golden/images/mllama";
constexpr float kNoticed = 2e-3f;

program::Rewrite without(const std::function<bool(const Op&)>& is) {
  return [is](Program program) {
    std::erase_if(program.ops, is);
    return program;
  };
}
program::Rewrite without_kind(OpKind kind) {
  return without([kind](const Op& op) { return op.kind == kind; });
}
program::Rewrite without_norm(WeightKind kind) {
  return without([kind](const Op& op) {
    return op.kind == OpKind::kNorm && op.as<program::Norm>().weight.kind == kind;
  });
}

template <typename T>
std::vector<T> reference(const std::string& name) {
  const auto file = SafetensorsFile::open(kFolder / "reference.safetensors");
  EXPECT_TRUE(file);
  for (const CheckpointTensor& tensor : file->tensors()) {
    if (tensor.name != name) continue;
    const auto* data = reinterpret_cast<const T*>(tensor.bytes.data());
    return {data, data + tensor.bytes.size() / sizeof(T)};
  }
  ADD_FAILURE() << name;
  return {};
}

class CrossAttention : public testing::Test {
 protected:
  void SetUp() override {
    auto encoder = load_image_encoder({.path = kFolder, .dtype = "float32", .pool = &pool_});
    ASSERT_TRUE(encoder) << encoder.error().message();
    encoder_ = *std::move(encoder);
    seen_ = golden::read_seen_prompt(kFolder, *encoder_);
    first_ = golden::read_seen_prompt(kFolder, *encoder_, "first", {0, 2, 1});
  }

  std::unique_ptr<program::CpuModel> load(
      const program::Rewrite& rewrite = {},
      const std::function<void(DecoderSpec&)>& change = [](DecoderSpec&) {}) {
    const JsonObject config = read_model_config(kFolder).value();
    const Checkpoint checkpoint = Checkpoint::open(kFolder).value();
    DecoderSpec spec = make_decoder_spec(config).value();
    change(spec);
    CheckpointSource source(checkpoint, spec, DType::kFloat32);
    auto model =
        program::CpuModel::create(spec, DType::kFloat32, source, pool_, {.rewrite = rewrite});
    EXPECT_TRUE(model) << model.error().message();
    return *std::move(model);
  }
  static std::vector<float> run(Model& model, const SeenPrompt& prompt, int32_t chunk = 1000,
                                std::vector<TokenId> beside = {}) {
    return golden::run_seen_prompt(model, prompt, KvType::kFloat32, chunk, std::move(beside));
  }

  WorkPool pool_{2};
  std::unique_ptr<ImageEncoder> encoder_;
  SeenPrompt seen_, first_;
};

TEST_F(CrossAttention, LogitsEqualTransformers) {
  const auto model = load();
  const ModelInfo& info = model->info();
  ASSERT_TRUE(info.images);
  EXPECT_EQ(info.images->num_cross_layers, 2);
  EXPECT_EQ(info.images->num_rows, 1);
  EXPECT_EQ(info.images->width, encoder_->info().width);
  EXPECT_EQ(info.num_layers, 5);
  EXPECT_EQ(info.num_kv_layers(), 3);
  EXPECT_LT(seen_.error(run(*model, seen_)), 1e-4f);
  EXPECT_LT(first_.error(run(*model, first_)), 1e-4f);
}

TEST_F(CrossAttention, ChunksAndCompanyDoNotMatter) {
  const auto model = load();
  for (const SeenPrompt* prompt : {&seen_, &first_}) {
    const std::vector<float> whole = run(*model, *prompt);
    for (const int32_t chunk : {1, 2, 5}) EXPECT_EQ(run(*model, *prompt, chunk), whole);
    EXPECT_EQ(run(*model, *prompt, 5, {1, 2, 3, 4, 5, 6, 7, 8, 9}), whole);
  }
}

// A text passes the layers of cross attention by, alone and beside a picture.
TEST_F(CrossAttention, TextsEqualTransformers) {
  const auto model = load();
  const auto prompt = reference<TokenId>("prompt");
  const auto logits = reference<float>("logits");
  const auto made = golden::run_all(*model, {prompt}, KvType::kFloat32, 4, 5, true)[0];
  const size_t width = made.size() / prompt.size(), own = logits.size() / prompt.size();
  ASSERT_EQ(width, own + 8);
  const auto [low, high] = std::ranges::minmax(logits);
  for (size_t i = 0; i < made.size(); ++i) {
    const size_t row = i / width, column = i % width;
    if (column >= own) {
      EXPECT_EQ(made[i], kNoLogit);
    } else {
      ASSERT_NEAR(made[i], logits[row * own + column], 1e-4 * (high - low)) << i;
    }
  }
}

TEST_F(CrossAttention, GreedyTokensEqualTransformers) {
  const auto model = load();
  const auto wanted = reference<TokenId>("seen_tokens");
  SeenPrompt prompt = seen_;
  for (const TokenId token : wanted) {
    const std::vector<float> logits = run(*model, prompt);
    const auto last = logits.end() - model->info().vocab_size;
    EXPECT_EQ(std::max_element(last, logits.end()) - last, token);
    prompt.tokens.push_back(token);
  }
}

TEST_F(CrossAttention, BFloat16StaysNear) {
  auto model = load_model({.path = kFolder, .dtype = "bfloat16", .pool = &pool_});
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_LT(seen_.error(run(**model, seen_)), 3e-2f);
}

TEST_F(CrossAttention, OtherPicturesAreNoticed) {
  const auto model = load();
  SeenPrompt swapped = seen_;
  std::swap(swapped.spans[0].rows, swapped.spans[1].rows);
  EXPECT_GT(seen_.error(run(*model, swapped)), kNoticed);
  SeenPrompt words = seen_;
  words.spans.clear();
  std::ranges::replace_if(
      words.tokens, [](TokenId id) { return id >= kFirstSpanKey; }, golden::kSeenPlaceholder);
  EXPECT_GT(seen_.error(run(*model, words)), kNoticed);
  // Of two pictures that follow each other the text behind sees both.
  SeenPrompt last = first_;
  last.spans[1] = last.spans[2];
  last.spans.pop_back();
  EXPECT_GT(first_.error(run(*model, last)), kNoticed);
}

TEST_F(CrossAttention, FaultsAreNoticed) {
  const auto error_of = [&](const program::Rewrite& rewrite) {
    return seen_.error(run(*load(rewrite), seen_));
  };
  EXPECT_LT(error_of({}), 1e-4f);
  EXPECT_GT(error_of(without_kind(OpKind::kKeepRows)), kNoticed);
  EXPECT_GT(error_of(without_norm(WeightKind::kQNorm)), kNoticed);
  EXPECT_GT(error_of(without_norm(WeightKind::kAttentionOutputNorm)), kNoticed);
  EXPECT_GT(error_of(without_norm(WeightKind::kMlpOutputNorm)), kNoticed);
  EXPECT_GT(error_of([](Program program) {
              for (Op& op : program.ops) {
                if (op.kind == OpKind::kCrossAttention) op.as<program::CrossAttention>().index = 0;
              }
              return program;
            }),
            kNoticed);
  EXPECT_GT(error_of([](Program program) {
              for (Op& op : program.ops) {
                if (op.kind == OpKind::kCrossAttention) op.as<program::CrossAttention>().scale *= 2;
              }
              return program;
            }),
            kNoticed);
}

TEST_F(CrossAttention, OfTheEncoderFaultsAreNoticed) {
  const auto error_of = [&](const program::Rewrite& rewrite,
                            const std::function<void(DecoderSpec&)>& change) {
    const JsonObject config = read_model_config(kFolder).value();
    DecoderSpec spec = *make_encoder_spec(config).value();
    const ImageProcessorSpec processor =
        read_image_processor(kFolder, *spec.patches, spec.tiles).value();
    const Checkpoint checkpoint = Checkpoint::open(kFolder).value();
    change(spec);
    CheckpointSource source(checkpoint, spec, DType::kFloat32);
    const auto encoder =
        program::CpuEncoder::create(spec, processor, DType::kFloat32, source, pool_, rewrite);
    EXPECT_TRUE(encoder) << encoder.error().message();
    return golden::encoder_error(**encoder, kFolder);
  };
  const auto same = [](DecoderSpec&) {};
  EXPECT_LT(error_of({}, same), 1e-4f);
  const std::pair<const char*, program::Rewrite> faults[] = {
      {"keep_rows", without_kind(OpKind::kKeepRows)},
      {"global_norm", without_norm(WeightKind::kGlobalNorm)},
      {"gate of attention", without_norm(WeightKind::kAttentionOutputNorm)},
      {"gate of the MLP", without_norm(WeightKind::kMlpOutputNorm)},
      {"norm of keys", without_norm(WeightKind::kCrossKNorm)},
      {"norm of patches", without_norm(WeightKind::kEmbeddingNorm)},
      {"embedding of tiles",
       [](Program program) {
         for (size_t i = 0; i + 1 < program.ops.size(); ++i) {
           if (program.ops[i].kind == OpKind::kTilePosition)
             program.ops.erase(program.ops.begin() + static_cast<std::ptrdiff_t>(i) + 1);
         }
         return program;
       }},
      {"windows",
       [](Program program) {
         for (Op& op : program.ops) {
           if (op.kind == OpKind::kAttention) op.as<program::Attention>().windowed = false;
         }
         return program;
       }},
      {"states in turns",
       [](Program program) {
         for (Op& op : program.ops) {
           if (op.kind == OpKind::kHeadCopy && op.as<program::HeadCopy>().count == 1)
             op.as<program::HeadCopy>().y_begin = 1 - op.as<program::HeadCopy>().y_begin;
         }
         return program;
       }},
  };
  for (const auto& [name, rewrite] : faults) EXPECT_GT(error_of(rewrite, same), kNoticed) << name;
  EXPECT_GT(error_of({}, [](DecoderSpec& spec) { spec.tiles->joint->row_multiple = 1; }), kNoticed);
  EXPECT_GT(error_of({}, [](DecoderSpec& spec) { spec.projector->beside = {0, 1}; }), kNoticed);
}

TEST_F(CrossAttention, WhatItDoesNotGoWithIsRefused) {
  const auto refusal = [&](const ModelLoadOptions& options) {
    const auto model = load_model(options);
    EXPECT_FALSE(model);
    return model ? std::string() : std::string(model.error().message());
  };
  EXPECT_THAT(refusal({.path = kFolder, .pool = &pool_, .tp_size = 2}),
              testing::HasSubstr("--tp-size 1"));
  EXPECT_THAT(refusal({.path = kFolder, .pool = &pool_, .pp_size = 2}),
              testing::HasSubstr("--pp-size 1"));
}

}  // namespace
}  // namespace espalier
