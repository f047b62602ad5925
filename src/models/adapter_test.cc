// LoRA adapters against the same adapters merged into the weights, alone and mixed in one batch.
#include "models/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "checkpoint/adapter_writer.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/temp_folder.h"
#include "models/golden.h"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr int64_t kAdapterRank = 4;
constexpr double kAlpha = 8;

std::vector<float> floats_of(const CheckpointTensor& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.num_elements()));
  copy_as_float(tensor, 0, out);
  return out;
}

// Factors for all matrices of layers whose names hold one of `ends`.
std::vector<AdapterFactors> factors_for(const Checkpoint& checkpoint, Rng& rng,
                                        const std::vector<std::string>& ends) {
  std::vector<AdapterFactors> out;
  for (const CheckpointTensor& t : checkpoint.tensors()) {
    for (const std::string& end : ends) {
      if (!t.name.ends_with(end + ".weight") || t.shape.size() != 2) continue;
      const std::string module = t.name.substr(0, t.name.size() - 7);
      out.push_back(random_factors(rng, module, kAdapterRank, t.shape[1], t.shape[0], 0.02));
    }
  }
  return out;
}

// The checkpoint with W + alpha / rank * B A, as float32.
void write_merged(const golden::Golden& golden, const std::vector<AdapterFactors>& adapter,
                  const std::filesystem::path& folder) {
  auto checkpoint = Checkpoint::open(golden.folder);
  ASSERT_TRUE(checkpoint);
  std::string header = "{", data;
  for (const CheckpointTensor& t : checkpoint->tensors()) {
    std::vector<float> values = floats_of(t);
    for (const AdapterFactors& f : adapter) {
      if (f.module + ".weight" != t.name) continue;
      for (int64_t o = 0; o < f.out_features; ++o)
        for (int64_t i = 0; i < f.in_features; ++i) {
          double sum = 0;
          for (int64_t r = 0; r < f.rank; ++r)
            sum += double{f.b[static_cast<size_t>(o * f.rank + r)]} *
                   f.a[static_cast<size_t>(r * f.in_features + i)];
          values[static_cast<size_t>(o * f.in_features + i)] +=
              static_cast<float>(sum * kAlpha / static_cast<double>(f.rank));
        }
    }
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    std::string shape = shape_string(t.shape);
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":{},"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", t.name, shape, begin, data.size());
  }
  header += "}";
  std::filesystem::copy_file(golden.folder / "config.json", folder / "config.json");
  std::ofstream(folder / "model.safetensors", std::ios::binary) << safetensors_bytes(header, data);
}

std::unique_ptr<Model> load_lora_base(const std::filesystem::path& folder, const std::string& dtype,
                                      WorkPool& pool, bool enable_lora) {
  auto model =
      load_model({.path = folder, .dtype = dtype, .pool = &pool, .enable_lora = enable_lora});
  EXPECT_TRUE(model) << model.error().to_string();
  return *std::move(model);
}

// All logits of the golden's sequences with these adapters, in one prefill each, all together or
// in chunks.
std::vector<golden::Track> run_adapters(Model& model, const golden::Golden& golden,
                                        const std::vector<AdapterId>& adapters,
                                        int32_t chunk = 1 << 20) {
  EXPECT_TRUE(model.reserve(1024, 16).ok());
  Rng rng(5);
  golden::KvMemory kv(model.info(), KvType::kFloat32, 4, 2048, rng);
  std::vector<golden::Track> tracks;
  for (size_t i = 0; i < adapters.size(); ++i)
    tracks.push_back(
        {golden.sequences[i % golden.sequences.size()].tokens, 0, {}, {}, adapters[i]});
  for (bool any = true; any;) {
    any = false;
    std::vector<golden::Piece> pieces;
    for (golden::Track& track : tracks) {
      const auto left = static_cast<int32_t>(track.tokens.size()) - track.done;
      if (left > 0) pieces.push_back({&track, std::min(left, chunk), golden::Piece::Want::kAll});
    }
    any = !pieces.empty();
    if (any) golden::run_step(model, kv, pieces);
  }
  return tracks;
}

float largest_difference(const golden::Track& a, const golden::Track& b) {
  float worst = 0;
  for (const auto& [position, logits] : a.logits)
    for (size_t i = 0; i < logits.size(); ++i) {
      const float difference = std::abs(logits[i] - b.logits.at(position)[i]);
      if (!(difference <= worst)) worst = difference;
    }
  return worst;
}

struct AdapterCase {
  std::string golden;
  std::vector<std::string> modules;
};

const std::vector<std::string> kAllModules = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                              "gate_proj", "up_proj", "down_proj"};

class AdapterGolden : public testing::TestWithParam<AdapterCase> {
 protected:
  AdapterGolden() {
    auto checkpoint = Checkpoint::open(golden_.folder);
    EXPECT_TRUE(checkpoint) << checkpoint.error().to_string();
    for (int i = 0; i < 2; ++i) {
      factors_[i] = factors_for(*checkpoint, rng_, GetParam().modules);
      EXPECT_FALSE(factors_[i].empty());
      write_adapter(folder(i), factors_[i], kAdapterRank, kAlpha);
    }
  }
  std::filesystem::path folder(int i) const { return temp_.path() / std::to_string(i); }
  std::unique_ptr<Model> with_adapters(const std::string& dtype) {
    auto model = load_lora_base(golden_.folder, dtype, pool_, true);
    for (int i = 0; i < 2; ++i) {
      const auto info = model->load_adapter(i + 1, folder(i), 0);
      EXPECT_TRUE(info) << info.error().to_string();
      EXPECT_EQ(info->rank, kAdapterRank);
      EXPECT_EQ(info->num_modules, std::ssize(factors_[i]));
      EXPECT_GT(info->size_bytes, 0);
    }
    return model;
  }

  Rng rng_{11};
  TempFolder temp_, merged_;
  WorkPool pool_{2};
  const golden::Golden golden_ = golden::read(GetParam().golden);
  std::vector<AdapterFactors> factors_[2];
};

TEST_P(AdapterGolden, EqualsTheMergedWeights) {
  write_merged(golden_, factors_[0], merged_.path());
  const auto merged = load_lora_base(merged_.path(), "float32", pool_, false);
  const auto expected = run_adapters(*merged, golden_, {kNoAdapter})[0];
  const auto model = with_adapters("float32");
  EXPECT_LE(largest_difference(run_adapters(*model, golden_, {1})[0], expected),
            2e-4f * golden_.spread);
  // What is compared depends on the adapter.
  EXPECT_GT(largest_difference(run_adapters(*model, golden_, {kNoAdapter})[0], expected),
            0.01f * golden_.spread);
  EXPECT_GT(largest_difference(run_adapters(*model, golden_, {2})[0], expected),
            0.01f * golden_.spread);
}

// On a quantised base the adapter stays exact: what differs is the rounding of the weights.
TEST_P(AdapterGolden, WorksOnQuantisedWeights) {
  write_merged(golden_, factors_[0], merged_.path());
  const auto merged = load_lora_base(merged_.path(), "float32", pool_, false);
  const auto expected = run_adapters(*merged, golden_, {kNoAdapter})[0];
  const auto model = with_adapters("q8_0");
  const float error = largest_difference(run_adapters(*model, golden_, {1})[0], expected);
  EXPECT_LE(error, 0.05f * golden_.spread);
  EXPECT_GT(largest_difference(run_adapters(*model, golden_, {kNoAdapter})[0], expected),
            3 * error);
}

TEST_P(AdapterGolden, AMixedBatchHasTheBitsOfEachAlone) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const auto model = with_adapters(dtype);
    const std::vector<AdapterId> ids = {1, 2, kNoAdapter, 2, 1};
    for (const int32_t chunk : {1 << 20, 5, 1}) {
      const auto mixed = run_adapters(*model, golden_, ids, chunk);
      for (size_t i = 0; i < ids.size(); ++i) {
        std::vector<AdapterId> before(i, kNoAdapter);  // takes the same sequence
        before.push_back(ids[i]);
        EXPECT_EQ(mixed[i].logits, run_adapters(*model, golden_, before)[i].logits)
            << dtype << i << chunk;
      }
    }
    model->unload_adapter(1);
    EXPECT_EQ(run_adapters(*model, golden_, {1})[0].logits,
              run_adapters(*model, golden_, {kNoAdapter})[0].logits);
  }
}

INSTANTIATE_TEST_SUITE_P(All, AdapterGolden,
                         testing::Values(AdapterCase{"llama_tied_llama3", kAllModules},
                                         AdapterCase{"qwen2_sharded", kAllModules},
                                         AdapterCase{"llama_tied_llama3", {"v_proj", "up_proj"}}),
                         [](const auto& tested) {
                           return tested.param.golden + std::to_string(tested.param.modules.size());
                         });

class AdapterErrors : public testing::Test {
 protected:
  std::string failure(const std::vector<AdapterFactors>& factors, int32_t rank_max = 0) {
    write_adapter(temp_.path(), factors, kAdapterRank, kAlpha);
    const auto info = model_->load_adapter(1, temp_.path(), rank_max);
    return info ? "it loaded" : info.error().to_string();
  }
  TempFolder temp_;
  WorkPool pool_{1};
  Rng rng_{3};
  const golden::Golden golden_ = golden::read("qwen2_sharded");
  std::unique_ptr<Model> model_ = load_lora_base(golden_.folder, "float32", pool_, true);
};

TEST_F(AdapterErrors, NameWhatDoesNotFit) {
  const int64_t hidden = golden_.spec.hidden_size;
  const auto q = [&](const std::string& module, int64_t in) {
    return std::vector{random_factors(rng_, module, kAdapterRank, in, hidden, 0.1)};
  };
  EXPECT_THAT(failure(q("model.layers.99.self_attn.q_proj", hidden)),
              HasSubstr("'model.layers.99.self_attn.q_proj', which is no adapted matrix"));
  EXPECT_THAT(failure(q("lm_head", hidden)), HasSubstr("layers take adapters of"));
  EXPECT_THAT(failure(q("model.layers.0.self_attn.o_proj", hidden + 1)),
              HasSubstr("the adapter was made for another model: its factors of "
                        "'model.layers.0.self_attn.o_proj'"));
  EXPECT_THAT(failure(q("model.layers.0.self_attn.o_proj", hidden), kAdapterRank - 1),
              HasSubstr("the rank 4 is above the 3 of --max-lora-rank"));
  EXPECT_EQ(failure(q("model.layers.0.self_attn.o_proj", hidden), kAdapterRank), "it loaded");
}

TEST_F(AdapterErrors, AModelWithoutRoomForThemSaysSo) {
  const auto plain = load_lora_base(golden_.folder, "float32", pool_, false);
  EXPECT_THAT(plain->load_adapter(1, temp_.path(), 0).error().to_string(),
              HasSubstr("set --enable-lora"));
  const auto ranks =
      load_model({.path = golden_.folder, .dtype = "float32", .tp_size = 2, .enable_lora = true});
  ASSERT_FALSE(ranks);
  EXPECT_THAT(ranks.error().to_string(), HasSubstr("adapters are not divided among ranks"));
}

}  // namespace
}  // namespace espalier
