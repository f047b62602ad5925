// Which formats a GPU may round a model's weights to, whole and divided among ranks.
#include "models/storage_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/golden.h"
#include "models/program/partition.h"

namespace espalier {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

enum class Format : uint8_t { kFp8, kInt4, kMxfp4 };

// A decoder of sizes that all formats take.
DecoderSpec wide(const char* name) {
  DecoderSpec spec = golden::read(name).spec;
  spec.hidden_size = 256;
  for (LayerSpec& layer : spec.layers) {
    layer.attention.num_heads = 8, layer.attention.num_kv_heads = 4;
    layer.attention.head_dim = 32;
    layer.mlp.intermediate_size = 512;
    if (layer.experts) layer.experts->expert.intermediate_size = 256;
  }
  return spec;
}

// What is wrong with the format for rank 0 of so many, of which groups share the experts; empty:
// nothing.
std::string refusal(const DecoderSpec& spec, Format format, int32_t ranks, int32_t groups = 1) {
  DecoderSpec divided = spec;
  divided.expert_groups = groups;
  const WeightLayout layout =
      ranks == 1 ? weight_layout(divided)
                 : program::partition_weights(divided, {.rank = 0, .num_ranks = ranks});
  WeightTypes types(DType::kBFloat16);
  types.e4m3 = format == Format::kFp8;
  types.int4 = format == Format::kInt4;
  types.mxfp4 = format == Format::kMxfp4;
  return std::string(check_rounding(divided, layout, types).message());
}

TEST(Rounding, OfAWholeModelTakesAllFormats) {
  EXPECT_THAT(refusal(wide("llama_tied_llama3"), Format::kFp8, 1), IsEmpty());
  EXPECT_THAT(refusal(wide("llama_tied_llama3"), Format::kInt4, 1), IsEmpty());
  for (const Format format : {Format::kFp8, Format::kInt4, Format::kMxfp4}) {
    EXPECT_THAT(refusal(wide("qwen3_moe"), format, 1), IsEmpty());
  }
}

// {dense, experts} x {tensor parallel, with experts spread whole}.
TEST(Rounding, AmongRanksIsTakenOrRefusedByName) {
  const DecoderSpec dense = wide("llama_tied_llama3"), experts = wide("qwen3_moe");
  EXPECT_THAT(refusal(dense, Format::kFp8, 2), IsEmpty());
  EXPECT_THAT(refusal(experts, Format::kFp8, 2), IsEmpty());
  EXPECT_THAT(refusal(experts, Format::kFp8, 2, 2), IsEmpty());
  EXPECT_THAT(refusal(dense, Format::kInt4, 2), HasSubstr("q_proj.weight' is divided among 2"));
  EXPECT_THAT(refusal(experts, Format::kInt4, 2, 2), HasSubstr("use --quantization fp8"));
  EXPECT_THAT(refusal(experts, Format::kMxfp4, 2), HasSubstr("--ep-size"));
  EXPECT_THAT(refusal(experts, Format::kMxfp4, 2, 2), IsEmpty());
}

TEST(Rounding, OfPartsThatTheFormatDoesNotTakeIsRefused) {
  DecoderSpec spec = wide("llama_tied_llama3");
  for (LayerSpec& layer : spec.layers) layer.mlp.intermediate_size = 16;
  EXPECT_THAT(refusal(spec, Format::kFp8, 1), IsEmpty());
  EXPECT_THAT(refusal(spec, Format::kFp8, 4),
              HasSubstr("gate_proj.weight' is divided among 4 ranks"));
}

TEST(Rounding, OfAModelWithoutAMatrixOfThatFormatIsRefused) {
  DecoderSpec spec = wide("llama_tied_llama3");
  spec.hidden_size = 248;
  EXPECT_THAT(refusal(spec, Format::kInt4, 1), HasSubstr("takes no matrix of the model"));
}

TEST(Rounding, OfExpertsInOneTensorIsRefused) {
  EXPECT_THAT(refusal(golden::read("gpt_oss").spec, Format::kMxfp4, 1),
              HasSubstr("has all experts in one tensor"));
  EXPECT_THAT(refusal(golden::read("gpt_oss_mxfp4").spec, Format::kMxfp4, 1), IsEmpty())
      << "they are stored so";
}

}  // namespace
}  // namespace espalier
