#include "checkpoint/peft_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/adapter_writer.h"
#include "checkpoint/convert.h"
#include "checkpoint/temp_folder.h"

namespace espalier {
namespace {

using testing::HasSubstr;

class PeftAdapterTest : public testing::Test {
 protected:
  PeftAdapterTest() {
    modules_ = {random_factors(rng_, "model.layers.1.mlp.down_proj", 4, 12, 8, 0.1),
                random_factors(rng_, "model.layers.0.self_attn.q_proj", 4, 8, 16, 0.1)};
  }
  void write(const std::string& more = "") { write_adapter(folder_.path(), modules_, 4, 8, more); }
  std::string failure() {
    const auto adapter = PeftAdapter::open(folder_.path());
    return adapter ? "it opened" : adapter.error().to_string();
  }

  Rng rng_{7};
  TempFolder folder_;
  std::vector<AdapterFactors> modules_;
};

TEST_F(PeftAdapterTest, ReadsFactorsAndScales) {
  write();
  const auto adapter = PeftAdapter::open(folder_.path());
  ASSERT_TRUE(adapter) << adapter.error().to_string();
  ASSERT_EQ(adapter->modules().size(), 2u);
  EXPECT_EQ(adapter->rank_max(), 4);
  const PeftModule& q = adapter->modules()[0];
  EXPECT_EQ(q.module, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(q.in_features(), 8);
  EXPECT_EQ(q.out_features(), 16);
  EXPECT_EQ(q.scale, 2.0f);
  std::vector<float> a(32), b(64);
  copy_as_float(q.a, 0, a);
  copy_as_float(q.b, 0, b);
  EXPECT_EQ(a, modules_[1].a);
  EXPECT_EQ(b, modules_[1].b);
}

TEST_F(PeftAdapterTest, ScalesByRootAndByPattern) {
  write(R"(,"use_rslora":true,"alpha_pattern":{"down_proj":6,"layers.0.self_attn.k_proj":1})");
  const auto adapter = PeftAdapter::open(folder_.path());
  ASSERT_TRUE(adapter) << adapter.error().to_string();
  EXPECT_EQ(adapter->modules()[0].scale, 4.0f);  // 8 / sqrt(4)
  EXPECT_EQ(adapter->modules()[1].scale, 3.0f);  // 6 / sqrt(4)
}

// The file may come from anybody: neither its patterns nor its names make a match run on.
TEST_F(PeftAdapterTest, BoundsTheWorkOfPatterns) {
  modules_[0].module = std::string(60, 'p');
  write(R"(,"alpha_pattern":{"(p|pp)*(p|pp)*[xy]":6})");
  EXPECT_THAT(failure(), HasSubstr("takes too long to match"));
  modules_[0].module = "model." + std::string(300'000, 'p');
  write(R"(,"alpha_pattern":{"p*":6})");
  EXPECT_THAT(failure(), HasSubstr("has 300006 bytes; at most 1024 are taken"));
}

TEST_F(PeftAdapterTest, TakesRanksByPatternAlone) {
  modules_[0] = random_factors(rng_, "model.layers.1.mlp.down_proj", 2, 12, 8, 0.1);
  write();
  EXPECT_THAT(failure(), HasSubstr("has the rank 2, and adapter_config.json says r 4"));
  write(R"(,"rank_pattern":{"down_proj":2})");
  const auto adapter = PeftAdapter::open(folder_.path());
  ASSERT_TRUE(adapter) << adapter.error().to_string();
  EXPECT_EQ(adapter->modules()[1].scale, 4.0f);  // 8 / 2
}

TEST_F(PeftAdapterTest, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(,"use_dora":true)", "'use_dora' is true"},
      {R"(,"lora_bias":true)", "'lora_bias' is true"},
      {R"(,"modules_to_save":["lm_head"])", "'modules_to_save' is not empty"},
      {R"(,"trainable_token_indices":[3])", "'trainable_token_indices' is not empty"},
      {R"(,"alpha_pattern":{"(":1})", "is no pattern"},
      {R"(,"r":0)", "'r'"}};
  for (const auto& [more, message] : cases) {
    write(more);
    EXPECT_THAT(failure(), HasSubstr(message)) << more;
  }
  write(R"(,"peft_type":"IA3")");
  EXPECT_THAT(failure(), HasSubstr("'peft_type' is IA3, not LORA"));
  write(R"(,"bias":"all")");
  EXPECT_THAT(failure(), HasSubstr("'bias' is all"));
}

TEST_F(PeftAdapterTest, RefusesTensorsThatAreNoPair) {
  modules_[0].module = "model.embed_tokens.lora_embedding_A";
  write();
  EXPECT_TRUE(PeftAdapter::open(folder_.path()));  // a module of an odd name is the model's affair
  modules_[0].rank = 3;                            // lora_A [3, 12] beside lora_B [8, 3]
  modules_[0].a.resize(36);
  modules_[0].b.resize(24);
  write();
  EXPECT_THAT(failure(), HasSubstr("has the rank 3"));
  folder_.write("adapter_model.safetensors", "no safetensors");
  EXPECT_FALSE(PeftAdapter::open(folder_.path()));
  std::filesystem::remove(folder_.path() / "adapter_model.safetensors");
  EXPECT_EQ(PeftAdapter::open(folder_.path()).error().code(), StatusCode::kNotFound);
  folder_.write("adapter_model.bin", "pickle");
  EXPECT_THAT(failure(), HasSubstr("save the adapter as safetensors"));
  const std::string header =
      R"({"base_model.model.m.q.lora_magnitude_vector":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  folder_.write("adapter_model.safetensors", safetensors_bytes(header, std::string(4, '\0')));
  EXPECT_THAT(failure(), HasSubstr("is no factor of a matrix"));
}

}  // namespace
}  // namespace espalier
