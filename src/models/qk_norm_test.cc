// Norms of queries and keys over all heads (OLMo 2) where there is exactly one KV head: the norm of
// the keys then looks like one of a single head, and that of the queries does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "models/golden.h"
#include "models/program/check.h"
#include "models/program/cpu_model.h"
#include "models/program/gpu_passes.h"
#include "models/program/lower.h"
#include "models/weight_source.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

DecoderSpec olmo_with_kv_heads(int32_t num_kv_heads) {
  DecoderSpec spec = golden::read("olmo2").spec;
  for (LayerSpec& layer : spec.layers) layer.attention.num_kv_heads = num_kv_heads;
  return spec;
}

// Drawn weights; of a model with twice the KV heads, both halves of keys and values are those of
// the model with one.
class DoubledSource final : public WeightSource {
 public:
  DoubledSource(bool doubled, WorkPool& pool)
      : doubled_(doubled), drawn_(3, DType::kFloat32, pool) {}

  Result<LentTensor> lend(const std::string& name, std::span<const int64_t> shape) override {
    const bool of_kv = name.find("k_proj") != std::string::npos ||
                       name.find("v_proj") != std::string::npos ||
                       name.find("k_norm") != std::string::npos;
    if (!doubled_ || !of_kv) return drawn_.lend(name, shape);
    std::vector<int64_t> half(shape.begin(), shape.end());
    half[0] /= 2;
    size_t bytes = sizeof(float);
    for (const int64_t extent : half) bytes *= static_cast<size_t>(extent);
    ESP_ASSIGN_OR_RETURN(const LentTensor lent, drawn_.lend(name, half));
    ESP_ASSIGN_OR_RETURN(Buffer both, Buffer::allocate(2 * bytes));
    std::memcpy(both.data(), lent.data, bytes);
    std::memcpy(both.data() + bytes, lent.data, bytes);
    made_.push_back(std::move(both));
    return LentTensor{made_.back().data(), DType::kFloat32};
  }
  void give_back(const std::string& name) override { drawn_.give_back(name); }
  Status finish() override { return drawn_.finish(); }

 private:
  const bool doubled_;
  DummySource drawn_;
  std::vector<Buffer> made_;
};

std::vector<float> logits_of(int32_t num_kv_heads, WorkPool& pool) {
  DoubledSource source(num_kv_heads == 2, pool);
  auto model = program::CpuModel::create(olmo_with_kv_heads(num_kv_heads),
                                         WeightTypes(DType::kFloat32), source, pool);
  EXPECT_TRUE(model) << model.error().to_string();
  const std::vector<std::vector<TokenId>> input = {{5, 9, 2, 7, 7, 1, 30, 4}};
  return golden::run_all(**model, input, KvType::kFloat32, 16, 3, true)[0];
}

// The mean square of a row and of the row twice are the same.
TEST(QkNorm, OneKvHeadIsHalfOfTwoThatAreAlike) {
  WorkPool pool(1);
  const std::vector<float> one = logits_of(1, pool), two = logits_of(2, pool);
  ASSERT_EQ(one.size(), two.size());
  const auto [low, high] = std::ranges::minmax(two);
  for (size_t i = 0; i < one.size(); ++i) ASSERT_NEAR(one[i], two[i], 1e-5f * (high - low)) << i;
}

// The programs are well formed, the queries keep a norm of all their heads, and no kernel that
// takes norms of single heads stands for them.
TEST(QkNorm, OneKvHeadKeepsTheNormOfAllQueries) {
  const DecoderSpec spec = olmo_with_kv_heads(1);
  const AttentionSpec& a = spec.layers[0].attention;
  ASSERT_GT(a.num_heads, 1);
  const program::Program lowered = program::lower(spec);
  EXPECT_FALSE(program::fuse_megakernel(lowered));
  for (const program::Program& program :
       {program::cpu_passes(lowered), program::gpu_passes(lowered)}) {
    const Status status = program::check(program);
    EXPECT_TRUE(status.ok()) << status.to_string();
    const auto is_q_norm = [&](const program::Op& op) {
      return op.kind == program::OpKind::kNorm &&
             op.as<program::Norm>().weight.kind == WeightKind::kQNorm &&
             op.as<program::Norm>().groups == 1 && op.inputs[0].columns == a.q_dim();
    };
    EXPECT_EQ(std::ranges::count_if(program.ops, is_q_norm), std::ssize(spec.layers));
  }
}

}  // namespace
}  // namespace espalier
