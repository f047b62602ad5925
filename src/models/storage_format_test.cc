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

enum class Format : uint8_t { kFp8, kInt4, kNvfp4, kMxfp4 };

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
  types.int4 = format == Format::kInt4 || format == Format::kNvfp4;
  types.nvfp4 = format == Format::kNvfp4;
  types.mxfp4 = format == Format::kMxfp4;
  return std::string(check_rounding(divided, layout, types).message());
}

TEST(Rounding, OfAWholeModelTakesAllFormats) {
  EXPECT_THAT(refusal(wide("llama_tied_llama3"), Format::kFp8, 1), IsEmpty());
  EXPECT_THAT(refusal(wide("llama_tied_llama3"), Format::kInt4, 1), IsEmpty());
  EXPECT_THAT(refusal(wide("llama_tied_llama3"), Format::kNvfp4, 1), IsEmpty());
  for (const Format format : {Format::kFp8, Format::kInt4, Format::kNvfp4, Format::kMxfp4}) {
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
  EXPECT_THAT(refusal(dense, Format::kNvfp4, 2), HasSubstr("--quantization nvfp4 does not"));
  EXPECT_THAT(refusal(experts, Format::kInt4, 2, 2), HasSubstr("use --quantization fp8"));
  EXPECT_THAT(refusal(experts, Format::kMxfp4, 2), HasSubstr("--ep-size"));
  EXPECT_THAT(refusal(experts, Format::kMxfp4, 2, 2), IsEmpty());
}

WeightTypes int4_types() {
  WeightTypes types(DType::kBFloat16);
  types.int4 = true;
  return types;
}

// A tensor each, whole, in groups of 128 inputs or of 32; a requested MXFP4 comes first.
TEST(Rounding, ExpertsOfFourBitsAreWhole) {
  const auto experts = [](const DecoderSpec& spec) {
    return weight_layout(spec).layers[0].experts;
  };
  const DecoderSpec spec = wide("qwen3_moe");
  EXPECT_EQ(experts_int4_group(experts(spec), int4_types(), nullptr), 128);
  EXPECT_EQ(experts_int4_group(experts(spec), WeightTypes(), nullptr), 0) << "not requested";
  WeightTypes both = int4_types();
  both.mxfp4 = true;
  EXPECT_EQ(experts_int4_group(experts(spec), both, nullptr), 0);
  DecoderSpec narrow = spec;
  for (LayerSpec& layer : narrow.layers) layer.experts->expert.intermediate_size = 64;
  EXPECT_EQ(experts_int4_group(experts(narrow), int4_types(), nullptr), 32) << "half a group";
  for (LayerSpec& layer : narrow.layers) layer.experts->expert.intermediate_size = 96;
  EXPECT_EQ(experts_int4_group(experts(narrow), int4_types(), nullptr), 0) << "half a record";
  EXPECT_EQ(experts_int4_group(experts(wide("llama_tied_llama3")), int4_types(), nullptr), 0);
  DecoderSpec divided = spec;
  const auto of_rank = [&](int32_t groups) {
    divided.expert_groups = groups;
    return program::partition_weights(divided, {.rank = 0, .num_ranks = 2}).layers[0].experts;
  };
  EXPECT_EQ(experts_int4_group(of_rank(1), int4_types(), nullptr), 0) << "parts of matrices";
  EXPECT_EQ(experts_int4_group(of_rank(2), int4_types(), nullptr), 128) << "whole experts";
}

// NVFP4 is no format of other groups: beside those, matrices and experts are numbers.
TEST(Rounding, Nvfp4StaysAloneInAMatrix) {
  const DecoderSpec dense = wide("llama_tied_llama3");
  const MatrixLayout qkv = weight_layout(dense).layers[0].qkv;
  const auto stored = [&](int32_t first, int32_t others) {
    return device_codes(qkv, WeightTypes(), [&](std::string_view name) {
      return WeightCodes{.int4 = {.group = name == qkv.blocks[0].name ? first : others}};
    });
  };
  EXPECT_TRUE(stored(16, 16).int4.nvfp4());
  EXPECT_EQ(stored(16, 128).int4.group, 0);
  EXPECT_EQ(stored(128, 16).int4.group, 0);
  EXPECT_EQ(stored(128, 32).int4.group, 32);
  WeightTypes types = int4_types();
  types.nvfp4 = true;
  EXPECT_TRUE(device_codes(qkv, types, nullptr).int4.nvfp4());
  const ExpertsLayout experts = weight_layout(wide("qwen3_moe")).layers[0].experts;
  EXPECT_EQ(expert_codes(experts, types, nullptr), ExpertCodes::kNone);
  EXPECT_EQ(
      weight_memory(dense, types, [](std::string_view) { return std::nullopt; }).contains("NVFP4"),
      true);
}

// What a checkpoint stores counts for each tensor; one of another kind makes all of them numbers.
TEST(Rounding, StoredExpertsOfFourBitsStaySoWhereAllAre) {
  const ExpertsLayout layout = weight_layout(wide("qwen3_moe")).layers[1].experts;
  const std::string odd = layout.experts[3].down.blocks[0].name;
  for (const int32_t group : {128, 32, 0}) {
    const StoredCodesOf stored = [&](std::string_view name) {
      return WeightCodes{.int4 = {.group = name == odd ? group : 128, .zeros = true}};
    };
    EXPECT_EQ(experts_int4_group(layout, WeightTypes(), stored), group) << "the least of all";
  }
}

// A GGUF's experts in MXFP4 stay so where all of a layer are, whatever else is rounded.
TEST(Rounding, ExpertsStoredInMxfp4StaySoWhereAllAre) {
  const ExpertsLayout layout = weight_layout(wide("qwen3_moe")).layers[1].experts;
  const std::string odd = layout.experts[3].down.blocks[0].name;
  for (const bool all : {true, false}) {
    const StoredCodesOf stored = [&](std::string_view name) {
      return WeightCodes{.mxfp4 = all || name != odd};
    };
    EXPECT_EQ(experts_are_mxfp4(layout, stored), all);
    const ExpertCodes codes = expert_codes(layout, WeightTypes(), stored);
    EXPECT_EQ(codes, all ? ExpertCodes::kMxfp4 : ExpertCodes::kNone);
  }
  EXPECT_FALSE(experts_are_mxfp4(layout, nullptr));
}

// Matrices that read the same inputs have one order of columns, or become numbers.
TEST(Rounding, ColumnsOfBlocksAgree) {
  const MatrixLayout layout = weight_layout(wide("llama_tied_llama3")).layers[0].qkv;
  const auto order = [](int32_t first) {
    return std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{first, 1, 2});
  };
  const std::string odd = layout.blocks[1].name;
  for (const bool same : {true, false}) {
    const StoredCodesOf stored = [&](std::string_view name) {
      return WeightCodes{.int4 = {.group = 128},
                         .int4_columns = order(!same && name == odd ? 7 : 0)};
    };
    const WeightCodes codes = device_codes(layout, WeightTypes(), stored);
    EXPECT_EQ(codes.int4.group, same ? 128 : 0);
    EXPECT_EQ(codes.int4_columns != nullptr, same);
  }
}

TEST(Rounding, MemoryOfExpertsIsThatOfTheirRecords) {
  const DecoderSpec spec = wide("qwen3_moe");
  const auto bytes = weight_memory(spec, int4_types(),
                                   [](std::string_view) { return std::optional<BlockFormat>(); });
  const auto& experts = *spec.layers[0].experts;
  const kernels::cuda::Int4ExpertShape up{512, 256, true}, down{256, 256, false};
  const kernels::cuda::Int4Format dense{.group = 128};
  const int64_t attention = kernels::cuda::int4_bytes(dense, (8 + 2 * 4) * 32, 256) +
                            kernels::cuda::int4_bytes(dense, 256, 8 * 32);
  EXPECT_EQ(bytes.at("INT4"),
            std::ssize(spec.layers) *
                (experts.router.num_experts * (up.size_bytes() + down.size_bytes()) + attention));
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
