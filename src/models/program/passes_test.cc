// Passes keep what a program computes: fused operations say what they are made of, every golden
// stays well formed through every chain of passes, and (in golden_test) its logits stay the same.
#include "models/program/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "models/golden.h"
#include "models/model_plan.h"
#include "models/program/check.h"
#include "models/program/cpu_model.h"
#include "models/program/gpu_passes.h"
#include "models/program/lower.h"
#include "models/program/partition.h"
#include "models/program/print.h"

namespace espalier::program {
namespace {

using enum OpKind;
using testing::ElementsAre;

Program lower_golden(const std::string& name) { return lower(golden::read(name).spec); }

std::vector<OpKind> kinds_of_layer(const Program& program, int32_t layer) {
  std::vector<OpKind> out;
  for (const Op& op : program.ops) {
    if (op.layer == layer) out.push_back(op.kind);
  }
  return out;
}

int32_t last_layer(const Program& program) {
  return std::ranges::max_element(program.ops, {}, &Op::layer)->layer;
}

bool has(const Program& program, OpKind kind) {
  return std::ranges::any_of(program.ops, [&](const Op& op) { return op.kind == kind; });
}

// Every weight that is read, sorted: no pass may lose one.
std::vector<std::pair<WeightKind, int32_t>> weights(const Program& program) {
  std::vector<std::pair<WeightKind, int32_t>> out;
  for (const Op& op : program.ops) {
    for (const WeightId& id : weights_of(op)) out.emplace_back(id.kind, id.index);
  }
  std::ranges::sort(out);
  return out;
}

// What a GPU's interpreter would ask for.
Program passed_for_gpu(Program program) {
  program = fuse_activation(std::move(program), [](const Matmul&, const Activation& activation) {
    return activation.gated && activation.kind == kernels::Activation::kSilu;
  });
  program = fuse_qk_rope_append(fuse_moe_combine(std::move(program)));
  program = drop_unwanted_rows(fuse_residual(std::move(program)), Selection::kAfterAttention);
  program = fuse_norm(std::move(program), [](const Norm& norm, const Matmul&) {
    return norm.spec.kind == NormSpec::Kind::kRms;
  });
  return remove_unused_buffers(std::move(program));
}

TEST(Passes, KeepEveryGoldenWellFormedAndEveryWeight) {
  for (const std::string& name : golden::names()) {
    const Program lowered = lower_golden(name);
    for (const Program& program : {cpu_passes(lowered), passed_for_gpu(lowered)}) {
      const Status status = check(program);
      EXPECT_TRUE(status.ok()) << name << ": " << status.to_string() << "\n" << to_string(program);
      EXPECT_EQ(weights(program), weights(lowered)) << name;
    }
  }
}

TEST(Passes, TheCpuRunsALayerOfLlamaInNineOperations) {
  const Program program = cpu_passes(lower_golden("llama_tied_llama3"));
  EXPECT_THAT(kinds_of_layer(program, 0), ElementsAre(kNorm, kMatmul, kRope, kKvAppend, kAttention,
                                                      kMatmul, kNorm, kMatmul, kMatmul));
}

TEST(Passes, AGpuRunsALayerOfQwenInSixOperations) {
  const Program program = passed_for_gpu(lower_golden("qwen3_head_dim"));
  EXPECT_THAT(kinds_of_layer(program, 0),
              ElementsAre(kMatmul, kQkRopeAppend, kAttention, kMatmul, kMatmul, kMatmul));
}

Program rank_of_golden(const std::string& name, int32_t rank) {
  return partition(golden::read(name).spec, {rank, 2}, RankPages::kOwn);
}

// Two ranks meet at the same operations, whatever biases they add.
TEST(RanksOnGpus, EveryGoldenIsWellFormedAndRanksMeet) {
  for (const std::string& name : golden::names()) {
    const Program first = gpu_passes(rank_of_golden(name, 0));
    const Program second = gpu_passes(rank_of_golden(name, 1));
    for (const Program& program : {first, second}) {
      const Status status = check(program);
      EXPECT_TRUE(status.ok()) << name << ": " << status.to_string() << "\n" << to_string(program);
      EXPECT_FALSE(has(program, kBarrier)) << name;
      EXPECT_TRUE(has(program, kAllReduce)) << name;
    }
    ASSERT_EQ(first.ops.size(), second.ops.size()) << name;
    for (size_t i = 0; i < first.ops.size(); ++i) {
      const Op &a = first.ops[i], &b = second.ops[i];
      ASSERT_EQ(a.kind, b.kind) << name << ", operation " << i;
      if (a.kind != kAllReduce && a.kind != kAllGather) continue;
      EXPECT_EQ(a.inputs, b.inputs) << name << ", operation " << i;
      EXPECT_EQ(a.outputs, b.outputs) << name << ", operation " << i;
    }
    // What remains in front of a router begins a block of experts on one GPU and on several.
    const auto blocks = [](const Program& program) {
      return std::ranges::count_if(find_alternatives(program),
                                   [](const Alternative& a) { return a.op.kind == kMoeBlock; });
    };
    EXPECT_EQ(blocks(first), blocks(gpu_passes(lower_golden(name)))) << name;
  }
}

// Where hidden states are returned the last layer is as whole as the others.
TEST(GpuPasses, DropRowsBehindTheLayersWhereStatesAreReturned) {
  for (const std::string& name : golden::names()) {
    const Program program = gpu_passes(lower_golden(name), false, true);
    EXPECT_TRUE(check(program).ok()) << name;
    for (const Op& op : program.ops) {
      if (op.layer < 0) continue;
      for (const Operand& output : op.outputs)
        EXPECT_NE(program.buffer(output).rows.count, RowCount::kWanted) << name;
    }
  }
}

// The same of a text that becomes a vector, whose rows the host puts together.
TEST(GpuPasses, EndWithTheNormedRowsOfATextThatBecomesAVector) {
  const auto spec = plan_model({.path = "tests/golden/pooled/qwen3_embedding"})->spec;
  const Program program = gpu_passes(drop_pooling(lower(spec)), false, true);
  EXPECT_TRUE(check(program).ok()) << check(program).to_string();
  EXPECT_FALSE(has(program, kPool));
  EXPECT_EQ(program.ops.back().kind, kNorm);
  EXPECT_EQ(program.buffer(program.ops.back().outputs[0]).name, "outputs");
}

TEST(FuseAllReduce, TakesTheResidualAndTheNormBehindIt) {
  const Program program = gpu_passes(rank_of_golden("llama_tied_llama3", 0));
  EXPECT_THAT(kinds_of_layer(program, 0), ElementsAre(kMatmul, kQkRopeAppend, kAttention, kMatmul,
                                                      kAllReduce, kMatmul, kMatmul, kAllReduce));
  int residuals = 0, norms = 0;
  for (const Op& op : program.ops) {
    if (op.kind != kAllReduce) continue;
    residuals += op.as<AllReduce>().residual ? 1 : 0;
    norms += op.as<AllReduce>().norm ? 1 : 0;
  }
  const int layers = last_layer(program) + 1;
  EXPECT_EQ(residuals, 2 * layers);
  EXPECT_EQ(norms, 2 * layers - 1);  // the last norm is of the rows whose logits are wanted
}

TEST(FuseAllReduce, LeavesScaledSumsAndNormedBranches) {
  for (const char* name : {"granite", "gemma2"}) {
    EXPECT_TRUE(has(fuse_all_reduce(rank_of_golden(name, 0)), kResidualAdd)) << name;
  }
}

TEST(FuseActivation, LeavesAGemmThatTheBackEndRefuses) {
  const Program lowered = lower_golden("llama_untied_bias");
  const Program program =
      fuse_activation(lowered, [](const Matmul& m, const Activation&) { return !m.bias; });
  EXPECT_EQ(program.ops.size(), lowered.ops.size());
  EXPECT_TRUE(weights_with_activation(program).empty());
}

TEST(FuseResidual, LeavesScaledSumsAndNormedBranches) {
  for (const char* name : {"granite", "gemma2"}) {
    EXPECT_TRUE(has(fuse_residual(lower_golden(name)), kResidualAdd)) << name;
  }
  EXPECT_FALSE(has(fuse_residual(lower_golden("llama_tied_llama3")), kResidualAdd));
}

TEST(FuseQkRopeAppend, LeavesNormsOverAllHeadsInFront) {
  const Program program = fuse_qk_rope_append(lower_golden("olmo2"));
  EXPECT_FALSE(has(program, kRope));
  EXPECT_EQ(std::ranges::count(kinds_of_layer(program, 0), kNorm), 4);
}

TEST(FuseMoeCombine, TakesTheSharedExpertAndTheResidual) {
  const Program program = fuse_moe_combine(lower_golden("qwen2_moe"));
  const auto combine = std::ranges::find(program.ops, kMoeCombine, &Op::kind);
  ASSERT_NE(combine, program.ops.end());
  EXPECT_TRUE(combine->as<MoeCombine>().shared);
  EXPECT_TRUE(combine->as<MoeCombine>().gate);
  EXPECT_TRUE(combine->as<MoeCombine>().residual);
  EXPECT_FALSE(has(program, kGatedAdd));
}

TEST(DropUnwantedRows, OnlyTheLastLayerComputesWantedRows) {
  const Program program =
      drop_unwanted_rows(lower_golden("llama_tied_llama3"), Selection::kBeforeAttention);
  int32_t attentions_of_wanted_rows = 0;
  for (const Op& op : program.ops) {
    if (op.layer < 0 || rows_of(program, op).count != RowCount::kWanted) continue;
    EXPECT_EQ(op.layer, last_layer(program)) << to_string(program, op);
    attentions_of_wanted_rows += op.kind == kAttention ? 1 : 0;
  }
  EXPECT_EQ(attentions_of_wanted_rows, 1);
}

}  // namespace
}  // namespace espalier::program
