// Every golden's decoder is lowered to a well-formed program, and check() refuses what is not.
#include "models/program/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/golden.h"
#include "models/program/check.h"
#include "models/program/gpu_passes.h"
#include "models/program/lower.h"
#include "models/program/print.h"
#include "models/program/report.h"

namespace espalier::program {
namespace {

using testing::HasSubstr;

Program lower_golden(const char* name) { return lower(golden::read(name).spec); }

std::vector<OpKind> layer_kinds(const Program& program, int32_t layer) {
  std::vector<OpKind> out;
  for (const Op& op : program.ops) {
    if (op.layer == layer) out.push_back(op.kind);
  }
  return out;
}

TEST(Lower, EveryGoldenIsWellFormed) {
  for (const std::string& name : golden::names()) {
    const Program program = lower(golden::read(name).spec);
    const Status status = check(program);
    EXPECT_TRUE(status.ok()) << name << ": " << status.to_string() << "\n" << to_string(program);
    EXPECT_LT(output_begin(program), program.ops.size()) << name;
  }
}

TEST(Lower, ALayerOfLlamaIsTheListOfItsOperations) {
  using enum OpKind;
  const Program program = lower_golden("llama_tied_llama3");
  EXPECT_THAT(
      layer_kinds(program, 1),
      testing::ElementsAre(kNorm, kMatmul, kRope, kKvAppend, kAttention, kMatmul, kResidualAdd,
                           kNorm, kMatmul, kActivation, kMatmul, kResidualAdd));
}

TEST(Lower, ExpertsAndLatentsHaveOperationsOfTheirOwn) {
  using enum OpKind;
  const Program program = lower_golden("deepseek_v3");
  for (const OpKind kind : {kHeadMatmul, kHeadCopy, kMoeRoute, kMoeMatmul, kMoeCombine}) {
    EXPECT_TRUE(std::ranges::any_of(program.ops, [&](const Op& op) { return op.kind == kind; }))
        << op_name(kind);
  }
}

// What the GPU runs instead of the list: for one token of a plain model, for few of experts.
TEST(Report, StatesTheGpusVariants) {
  const auto variants = [](const char* name) {
    const Program lowered = lower_golden(name);
    return gpu_variants(gpu_passes(lowered), lowered);
  };
  const std::vector<Variant> dense = variants("llama_tied_llama3");
  ASSERT_EQ(dense.size(), 1u);
  EXPECT_THAT(dense[0].line, HasSubstr("megakernel"));
  EXPECT_THAT(dense[0].when, HasSubstr("one token"));
  const std::vector<Variant> experts = variants("qwen3_moe");
  ASSERT_FALSE(experts.empty());
  EXPECT_THAT(experts[0].line, HasSubstr("moe_block"));
  EXPECT_THAT(experts[0].when, HasSubstr("at most 4 tokens"));
  const Program lowered = lower_golden("qwen3_moe");
  Report report = make_report(gpu_passes(lowered), {}, [](WeightId, int64_t n) { return 2 * n; });
  report.variants = experts;
  EXPECT_THAT(to_table(report), HasSubstr(experts[0].line));
  EXPECT_THAT(to_svg(report), HasSubstr("at most 4 tokens"));
}

TEST(Lower, EveryWeightOfADenseLayerIsRead) {
  const Program program = lower_golden("llama_untied_bias");
  std::vector<WeightKind> read;
  for (const Op& op : program.ops) {
    for (const WeightId& id : weights_of(op)) {
      if (op.layer == 0) read.push_back(id.kind);
    }
  }
  using enum WeightKind;
  EXPECT_THAT(
      read, testing::ElementsAre(kInputNorm, kQkv, kQkvBias, kAttentionOutput, kAttentionOutputBias,
                                 kPostAttentionNorm, kGateUp, kGateUpBias, kDown, kDownBias));
}

TEST(Print, ShowsOperandsWeightsAndAttributes) {
  const std::string text = to_string(lower_golden("qwen3_head_dim"));
  EXPECT_THAT(text, HasSubstr("matmul         qkv = normed, %qkv"));
  EXPECT_THAT(text, HasSubstr("residual_add   hidden = hidden, branch"));
  EXPECT_THAT(text, HasSubstr("[outputs, "));
}

struct Broken {
  const char* what;
  std::function<void(Program&)> change;
};

TEST(Check, RefusesWhatIsNotWellFormed) {
  const Broken cases[] = {
      {"read before it is written", [](Program& p) { p.ops.erase(p.ops.begin()); }},
      {"there is no buffer", [](Program& p) { p.ops[1].inputs[0].buffer = 1000; }},
      {"columns", [](Program& p) { p.ops[1].inputs[0].columns += 1; }},
      {"rows beside", [](Program& p) { p.buffers[0].rows.count = RowCount::kWanted; }},
      {"inputs and", [](Program& p) { p.ops[1].inputs.clear(); }},
      {"its storage holds", [](Program& p) {
         for (Buffer& buffer : p.buffers) buffer.storage = 0;
       }}};
  for (const Broken& broken : cases) {
    Program program = lower_golden("llama_tied_llama3");
    broken.change(program);
    const Status status = check(program);
    ASSERT_FALSE(status.ok()) << broken.what;
    EXPECT_THAT(status.to_string(), HasSubstr(broken.what));
  }
}

}  // namespace
}  // namespace espalier::program
