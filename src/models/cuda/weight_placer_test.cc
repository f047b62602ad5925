// Matrices in all forms and shards, placed in host memory that stands for the device's.
#include "models/cuda/weight_placer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Tensors whose elements are numbered, the first of each tensor by a hundred more.
class HostLoader final : public CudaTensorLoader {
 public:
  Status put(const TensorPart& part, DType type, std::byte* device) override {
    std::vector<float>& values = tensors_[part.name];
    const int64_t count = TensorSlice::whole(part.shape).num_elements();
    values.resize(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), part.name == "b.weight" ? 100.0f : 0.0f);
    const CheckpointTensor tensor{.name = part.name,
                                  .dtype_name = "F32",
                                  .dtype = DType::kFloat32,
                                  .shape = part.shape,
                                  .bytes = std::as_bytes(std::span(values))};
    copy_slice(tensor, part.slice.value_or(TensorSlice::whole(part.shape)), type, device);
    return Status();
  }
  WeightCodes stored_codes(const std::string& name) const override {
    return {.e4m3 = name == "a.weight" || name == "blocks.weight",
            .block_scales = name == "blocks.weight"};
  }
  Status put_block_e4m3(const TensorPart& part, std::byte* device, float* scales) override {
    blocks_.push_back({part.slice.value_or(TensorSlice::whole(part.shape)), device, scales});
    return Status();
  }
  struct Blocks {
    TensorSlice slice;
    std::byte* device;
    float* scales;
  };
  const std::vector<Blocks>& blocks() const { return blocks_; }
  // Each element of a row is the row's number, and so is its scale.
  Status put_e4m3(const TensorPart& part, std::byte* device, float* scales) override {
    const TensorSlice slice = part.slice.value_or(TensorSlice::whole(part.shape));
    for (int64_t row = 0; row < slice.rows; ++row) {
      const int64_t number = slice.first_row + row + (part.name == "b.weight" ? 100 : 0);
      scales[row] = static_cast<float>(number);
      std::fill_n(device + row * slice.columns, slice.columns, static_cast<std::byte>(number));
    }
    return Status();
  }
  Status put_int4(const TensorPart& part, const kernels::cuda::Int4Destination& to) override {
    int4_.emplace_back(part.name, to);
    return Status();
  }
  Status put_mxfp4(const std::string& name, int64_t count,
                   const kernels::cuda::Mxfp4Destination& to) override {
    mxfp4_.push_back({name, count, to});
    return Status();
  }
  Status put_rounded_mxfp4(const TensorPart& part,
                           const kernels::cuda::Mxfp4Destination& to) override {
    return put_mxfp4(part.name, 1, to);
  }
  Status put_bytes(const std::string& name, std::span<const int64_t>, std::byte*) override {
    bytes_.push_back(name);
    return Status();
  }
  Status start() override { return Status(); }
  Status finish() override { return Status(); }
  const std::vector<std::string>& bytes() const { return bytes_; }
  const auto& int4() const { return int4_; }
  struct Mxfp4 {
    std::string name;
    int64_t count;
    kernels::cuda::Mxfp4Destination to;
  };
  const std::vector<Mxfp4>& mxfp4() const { return mxfp4_; }

  void pass_over(const std::string& name) override { passed_over_.push_back(name); }
  const std::vector<std::string>& passed_over() const { return passed_over_; }

 private:
  std::vector<std::string> passed_over_;
  std::map<std::string, std::vector<float>> tensors_;
  std::vector<std::string> bytes_;
  std::vector<std::pair<std::string, kernels::cuda::Int4Destination>> int4_;
  std::vector<Mxfp4> mxfp4_;
  std::vector<Blocks> blocks_;
};

const WeightTypes kE4m3 = [] {
  WeightTypes types;
  types.e4m3 = true;
  return types;
}();

class PlacedMatrix : public testing::Test {
 protected:
  PlacedMatrix() : memory_(1 << 14), staged_(1 << 14) {}

  // The elements in memory, without the rows that fill up the last multiple of 8.
  std::vector<float> place(const MatrixLayout& layout) {
    arena_ = cuda::Arena(memory_.data());
    staging_ = cuda::Arena(staged_.data());
    placer_.emplace(DType::kFloat32, WeightPlacer::Rounding{}, arena_, staging_, &loader_);
    const Status status = placer_->matrix(layout, weight_);
    EXPECT_TRUE(status.ok()) << status.to_string();
    const auto* data = static_cast<const float*>(weight_.data);
    return {data, data + layout.local_rows() * layout.local_columns()};
  }

  alignas(cuda::Arena::kAlignment) std::vector<std::byte> memory_, staged_;
  cuda::Arena arena_, staging_;
  HostLoader loader_;
  std::optional<WeightPlacer> placer_;
  CudaWeight weight_;
};

// Two blocks, [2, 4] and [2, 4].
MatrixLayout stacked(Shard shard) {
  return {.blocks = {{"a.weight", 2}, {"b.weight", 2}}, .in_features = 4, .shard = shard};
}

TEST_F(PlacedMatrix, OfSeveralTensorsIsStacked) {
  EXPECT_THAT(place(stacked({})),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 100, 101, 102, 103, 104, 105, 106, 107));
  EXPECT_EQ(weight_.in_features, 4);
  EXPECT_EQ(weight_.out_features, 8) << "rounded up for the GEMMs";
}

TEST_F(PlacedMatrix, AShardOfRowsHasAPartOfEachTensor) {
  EXPECT_THAT(place(stacked({Shard::Axis::kRows, 0, 2})),
              ElementsAre(0, 1, 2, 3, 100, 101, 102, 103));
  EXPECT_THAT(place(stacked({Shard::Axis::kRows, 1, 2})),
              ElementsAre(4, 5, 6, 7, 104, 105, 106, 107));
  EXPECT_EQ(weight_.shard.rank, 1);
}

TEST_F(PlacedMatrix, AShardOfColumnsHasAllRows) {
  EXPECT_THAT(place(stacked({Shard::Axis::kColumns, 1, 2})),
              ElementsAre(2, 3, 6, 7, 102, 103, 106, 107));
  EXPECT_EQ(weight_.in_features, 2);
}

TEST_F(PlacedMatrix, AShardOfAFusedTensorIsCutFromEachOfItsParts) {
  // q of 4 rows, k of 2, one tensor [6, 2].
  const auto layout = [](Shard shard) {
    return MatrixLayout{.blocks = {{"qk.weight", 4}, {"qk.weight", 2}},
                        .in_features = 2,
                        .fused = true,
                        .shard = shard};
  };
  EXPECT_EQ(place(layout({})).size(), 12u);
  EXPECT_THAT(place(layout({Shard::Axis::kRows, 0, 2})), ElementsAre(0, 1, 2, 3, 8, 9));
  EXPECT_THAT(place(layout({Shard::Axis::kRows, 1, 2})), ElementsAre(4, 5, 6, 7, 10, 11));
  EXPECT_THAT(place(layout({Shard::Axis::kColumns, 1, 2})), ElementsAre(1, 3, 5, 7, 9, 11));
}

// What the tensor has as columns are the matrix's rows; the GPU turns what is staged.
TEST_F(PlacedMatrix, AShardOfATransposedTensorIsStagedForTheGpu) {
  const auto layout = [](Shard shard) {  // [rows 4, columns 6], stored [6, 4]
    return MatrixLayout{
        .blocks = {{"t.weight", 4}}, .in_features = 6, .transposed = true, .shard = shard};
  };
  const auto staged = [&] {
    const kernels::cuda::RelayoutArgs& args = placer_->relayouts().at(0);
    const auto* from = static_cast<const float*>(args.from);
    EXPECT_EQ(args.to, weight_.data);
    EXPECT_EQ(args.from_group_stride, args.rows * args.columns);
    return std::vector<float>(from, from + args.rows * args.columns);
  };
  place(layout({Shard::Axis::kRows, 1, 2}));
  EXPECT_EQ(placer_->relayouts()[0].rows, 2);
  EXPECT_EQ(placer_->relayouts()[0].columns, 6);
  EXPECT_THAT(staged(), ElementsAre(2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23));
  place(layout({Shard::Axis::kColumns, 1, 2}));
  EXPECT_EQ(placer_->relayouts()[0].rows, 4);
  EXPECT_EQ(placer_->relayouts()[0].columns, 3);
  EXPECT_THAT(staged(), ElementsAre(12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23));
}

TEST_F(PlacedMatrix, InMxfp4IsTwoTensorsOfBytes) {
  arena_ = cuda::Arena(memory_.data());
  staging_ = cuda::Arena(staged_.data());
  WeightPlacer placer(DType::kBFloat16, WeightPlacer::Rounding{}, arena_, staging_, &loader_);
  std::byte* data = placer.stack(2, 4, 64, weight_);
  const MatrixStack stack{.name = "e", .count = 2, .rows = 4, .columns = 64, .interleaved = true};
  ASSERT_TRUE(placer.stored(StoredForm::kMxfp4, stack, data).ok());
  EXPECT_THAT(loader_.bytes(), ElementsAre("e_blocks", "e_scales"));
  EXPECT_EQ(staging_.used_bytes(), 256 + 256);  // 2 * 4 * 2 blocks of 16 bytes, and a scale each
  ASSERT_EQ(placer.relayouts().size(), 1u);
  EXPECT_TRUE(placer.relayouts()[0].interleaved);
  const Status uneven = placer.stored(StoredForm::kMxfp4, {.name = "e", .columns = 40}, data);
  EXPECT_THAT(uneven.to_string(), HasSubstr("no whole number of MXFP4 blocks"));
}

// Records of two matrices: 2 x 2 of 64 rows and 64 inputs each.
TEST_F(PlacedMatrix, InMxfp4StaysInRecords) {
  arena_ = cuda::Arena(memory_.data());
  staging_ = cuda::Arena(staged_.data());
  const WeightPlacer plain(DType::kBFloat16, WeightPlacer::Rounding{}, arena_, staging_, nullptr);
  EXPECT_FALSE(plain.keeps_codes());
  const WeightPlacer::Rounding keeps{.types = {}, .stored = &loader_};
  WeightPlacer placer(DType::kBFloat16, keeps, arena_, staging_, &loader_);
  EXPECT_TRUE(placer.keeps_codes());
  const MatrixStack stack{.name = "e", .count = 2, .rows = 4, .columns = 96, .interleaved = true};
  ASSERT_TRUE(placer.mxfp4_stack(stack, weight_).ok());
  EXPECT_TRUE(weight_.format.codes.mxfp4);
  EXPECT_EQ(weight_.out_features, 4);
  EXPECT_EQ(weight_.in_features, 96);
  EXPECT_EQ(weight_.group_stride, 4 * kernels::cuda::kMxfp4RecordBytes);
  ASSERT_EQ(loader_.mxfp4().size(), 1u);
  EXPECT_EQ(loader_.mxfp4()[0].name, "e");
  EXPECT_EQ(loader_.mxfp4()[0].count, 2);
  EXPECT_TRUE(loader_.mxfp4()[0].to.shape.gated);
  EXPECT_EQ(loader_.mxfp4()[0].to.rows, 4);
  const Status uneven = placer.mxfp4_stack({.name = "e", .columns = 40}, weight_);
  EXPECT_THAT(uneven.to_string(), HasSubstr("'e': 40 columns are no whole number"));
}

// Rows of gate and up alternate in a matrix of records.
TEST_F(PlacedMatrix, RoundedToMxfp4HasRowsOfGateBesideThoseOfUp) {
  arena_ = cuda::Arena(memory_.data());
  WeightPlacer placer(DType::kBFloat16, WeightPlacer::Rounding{}, arena_, staging_, &loader_);
  const MatrixLayout gate_up{.blocks = {{"gate", 32}, {"up", 32}}, .in_features = 64};
  const MatrixLayout* const matrices[] = {&gate_up, &gate_up};
  ASSERT_TRUE(placer.rounded_mxfp4_stack(matrices, weight_).ok());
  EXPECT_TRUE(weight_.format.codes.mxfp4);
  EXPECT_EQ(weight_.out_features, 64);
  ASSERT_EQ(loader_.mxfp4().size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const auto& [name, count, to] = loader_.mxfp4()[i];
    EXPECT_EQ(name, i % 2 == 0 ? "gate" : "up");
    EXPECT_EQ(to.first_row, static_cast<int32_t>(i % 2));
    EXPECT_EQ(to.row_step, 2);
    EXPECT_EQ(to.rows, 32);
    EXPECT_EQ(static_cast<const std::byte*>(to.records) - memory_.data(),
              static_cast<int64_t>(i / 2) * 2 * kernels::cuda::kMxfp4RecordBytes);
  }
}

// Two blocks of 32 rows, [32, 16] each; of e4m3 a row's elements and scale are its number.
TEST_F(PlacedMatrix, RoundedHasAScaleForEachRow) {
  const auto numbers = [&](Shard shard) {
    MatrixLayout layout = stacked(shard);
    layout.in_features = 32;
    for (WeightBlock& block : layout.blocks) block.rows = 32;
    arena_ = cuda::Arena(memory_.data());
    placer_.emplace(DType::kBFloat16, WeightPlacer::Rounding{.types = kE4m3}, arena_, staging_,
                    &loader_);
    const Status status = placer_->coded_matrix(layout, weight_);
    EXPECT_TRUE(status.ok()) << status.to_string();
    std::vector<int> out;
    const auto* data = static_cast<const std::byte*>(weight_.data);
    for (int32_t row = 0; row < weight_.out_features; ++row) {
      const auto number = static_cast<int>(data[row * weight_.in_features]);
      EXPECT_EQ(weight_.scales[row], static_cast<float>(number));
      EXPECT_EQ(static_cast<int>(data[(row + 1) * weight_.in_features - 1]), number);
      out.push_back(number);
    }
    return out;
  };
  std::vector<int> all = numbers({});
  ASSERT_EQ(all.size(), 64u);
  EXPECT_EQ(all[31], 31);
  EXPECT_EQ(all[32], 100);
  all = numbers({Shard::Axis::kRows, 1, 2});
  ASSERT_EQ(all.size(), 32u);
  EXPECT_EQ(all.front(), 16);
  EXPECT_EQ(all[16], 116);
  all = numbers({Shard::Axis::kColumns, 1, 2});
  ASSERT_EQ(all.size(), 64u);
  EXPECT_EQ(weight_.in_features, 16);
  EXPECT_TRUE(weight_.format.codes.e4m3);
}

// Matrices of experts lie one behind the other, and so do their scales.
TEST_F(PlacedMatrix, OfExpertsIsAStack) {
  MatrixLayout layout = stacked({});
  layout.in_features = 32;
  for (WeightBlock& block : layout.blocks) block.rows = 32;
  const MatrixLayout* const matrices[] = {&layout, &layout};
  arena_ = cuda::Arena(memory_.data());
  placer_.emplace(DType::kBFloat16, WeightPlacer::Rounding{.types = kE4m3}, arena_, staging_,
                  &loader_);
  const Status status = placer_->e4m3_stack(matrices, weight_);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(weight_.out_features, 64);
  EXPECT_EQ(weight_.group_stride, 64 * 32);
  const auto* data = static_cast<const std::byte*>(weight_.data);
  for (int64_t row = 0; row < 128; ++row) {
    EXPECT_EQ(weight_.scales[row], static_cast<float>(data[row * 32])) << row;
    EXPECT_EQ(weight_.scales[row], weight_.scales[row % 64]) << row;
  }
}

TEST_F(PlacedMatrix, OfAnotherRanksExpertIsPassedOver) {
  arena_ = cuda::Arena(memory_.data());
  WeightPlacer placer(DType::kFloat32, WeightPlacer::Rounding{}, arena_, staging_, &loader_);
  const MatrixLayout down{.blocks = {{"down.weight", 4}}, .in_features = 2};
  placer.pass_over(tensor_names(
      {.gate_up = stacked({}), .gate_up_bias = {.blocks = {{"a.bias", 2}}}, .down = down}));
  EXPECT_THAT(loader_.passed_over(), ElementsAre("a.weight", "b.weight", "a.bias", "down.weight"));
  EXPECT_EQ(arena_.used_bytes(), 0);
}

// Experts are codes where all of a layer are: of the checkpoint, or rounded.
TEST_F(PlacedMatrix, ExpertsAreAllInE4m3OrNone) {
  const auto expert = [](const char* down) {
    return MlpLayout{.gate_up = {.blocks = {{"a.weight", 16}}, .in_features = 16},
                     .down = {.blocks = {{down, 16}}, .in_features = 16}};
  };
  for (const auto& [second, stored] : {std::pair("a.weight", true), {"b.weight", false}}) {
    ExpertsLayout layout;
    layout.experts = {expert("a.weight"), expert(second)};
    placer_.emplace(DType::kBFloat16, WeightPlacer::Rounding{.stored = &loader_}, arena_, staging_,
                    &loader_);
    EXPECT_EQ(placer_->format_of(layout).codes == ExpertCodes::kE4m3, stored);
    placer_.emplace(DType::kBFloat16, WeightPlacer::Rounding{.types = kE4m3}, arena_, staging_,
                    &loader_);
    EXPECT_EQ(placer_->format_of(layout).codes, ExpertCodes::kE4m3);
    EXPECT_EQ(placer_->format_of({}).codes, ExpertCodes::kNone) << "which lie in one tensor";
  }
}

// Stored codes stay codes where all blocks of the matrix are stored so.
TEST_F(PlacedMatrix, IsRoundedWhereTheCheckpointHasItSo) {
  for (const auto& [second, rounded] : {std::pair("a.weight", true), {"b.weight", false}}) {
    const MatrixLayout layout{.blocks = {{"a.weight", 16}, {second, 16}}, .in_features = 16};
    arena_ = cuda::Arena(memory_.data());
    placer_.emplace(DType::kBFloat16, WeightPlacer::Rounding{.stored = &loader_}, arena_, staging_,
                    &loader_);
    ASSERT_TRUE(placer_->coded_matrix(layout, weight_).ok());
    EXPECT_EQ(weight_.scales != nullptr, rounded);
  }
}

// Each tensor's scales stand behind those of the tensor before it; ranks cut between blocks alone.
TEST_F(PlacedMatrix, WithScalesOfBlocksIsCutBetweenThem) {
  const auto placed = [&](const MatrixLayout& layout) {
    arena_ = cuda::Arena(memory_.data());
    placer_.emplace(DType::kBFloat16, WeightPlacer::Rounding{.stored = &loader_}, arena_, staging_,
                    nullptr);
    EXPECT_TRUE(placer_->coded_matrix(layout, weight_).ok());
    return weight_.format.codes.block_scales;
  };
  const std::string name = "blocks.weight";
  MatrixLayout two{.blocks = {{name, 256}, {name, 128}}, .in_features = 640};
  EXPECT_TRUE(placed(two));
  EXPECT_EQ(arena_.used_bytes(), 384 * 640 + cuda::Arena::kAlignment) << "24 scales";
  EXPECT_TRUE(placed({.blocks = {{name, 144}}, .in_features = 400})) << "a last block of few";
  EXPECT_FALSE(placed({.blocks = {{name, 192}, {name, 192}}, .in_features = 640}));
  EXPECT_FALSE(placed({.blocks = {{name, 256}, {"a.weight", 128}}, .in_features = 640}));
  for (const auto& [axis, ranks, fits] : {std::tuple(Shard::Axis::kRows, 2, false),
                                          {Shard::Axis::kColumns, 5, true},
                                          {Shard::Axis::kColumns, 2, false}}) {
    two.shard = {axis, 0, ranks};
    EXPECT_EQ(placed(two), fits) << ranks;
  }
  two.shard = {Shard::Axis::kColumns, 3, 5};
  arena_ = cuda::Arena(memory_.data());
  placer_.emplace(DType::kBFloat16, WeightPlacer::Rounding{.stored = &loader_}, arena_, staging_,
                  &loader_);
  ASSERT_TRUE(placer_->coded_matrix(two, weight_).ok());
  ASSERT_EQ(loader_.blocks().size(), 2u);
  EXPECT_EQ(loader_.blocks()[0].slice.first_column, 384);
  EXPECT_EQ(loader_.blocks()[1].device - loader_.blocks()[0].device, 256 * 128);
  EXPECT_EQ(loader_.blocks()[1].scales - loader_.blocks()[0].scales, 2 * 4);
}

// Two blocks of 16 rows become rows of one matrix of records.
TEST_F(PlacedMatrix, OfFourBitsHasRecords) {
  WeightTypes types;
  types.int4 = true;
  arena_ = cuda::Arena(memory_.data());
  placer_.emplace(DType::kBFloat16, WeightPlacer::Rounding{.types = types}, arena_, staging_,
                  &loader_);
  const MatrixLayout layout{.blocks = {{"a.weight", 16}, {"b.weight", 32}}, .in_features = 64};
  ASSERT_TRUE(placer_->coded_matrix(layout, weight_).ok());
  const kernels::cuda::Int4Format format{.group = 32};
  EXPECT_EQ(weight_.format.codes.int4, format);
  EXPECT_EQ(arena_.used_bytes(), kernels::cuda::int4_bytes(format, 48, 64));
  ASSERT_EQ(loader_.int4().size(), 2u);
  const auto& [name, to] = loader_.int4()[1];
  EXPECT_EQ(name, "b.weight");
  EXPECT_EQ(to.records, weight_.data);
  EXPECT_EQ(to.first_row, 16);
  EXPECT_EQ(to.rows, 32);
  EXPECT_EQ(to.out_features, 48);
  const MatrixLayout odd{.blocks = {{"a.weight", 16}, {"b.weight", 20}}, .in_features = 64};
  ASSERT_TRUE(placer_->coded_matrix(odd, weight_).ok()) << "and odd sizes numbers";
  EXPECT_EQ(weight_.format.codes.int4.group, 0);
}

TEST_F(PlacedMatrix, OfOddSizesIsNotRounded) {
  arena_ = cuda::Arena(memory_.data());
  placer_.emplace(DType::kBFloat16, WeightPlacer::Rounding{.types = kE4m3}, arena_, staging_,
                  &loader_);
  ASSERT_TRUE(placer_->coded_matrix(stacked({}), weight_).ok());
  EXPECT_EQ(weight_.scales, nullptr);
}

TEST_F(PlacedMatrix, RefusesShardsThatDoNotDivideIt) {
  placer_.emplace(DType::kFloat32, WeightPlacer::Rounding{}, arena_, staging_, nullptr);
  const Status uneven = placer_->matrix(stacked({Shard::Axis::kRows, 0, 3}), weight_);
  EXPECT_THAT(uneven.to_string(), HasSubstr("'a.weight': 2 rows are not divided by 3 ranks"));
  const Status whole = placer_->float_matrix(stacked({Shard::Axis::kRows, 0, 2}), weight_);
  EXPECT_THAT(whole.to_string(), HasSubstr("'a.weight' is cut into 2 shards"));
}

TEST_F(PlacedMatrix, WithoutALoaderIsMeasuredAlike) {
  const MatrixLayout layout = stacked({Shard::Axis::kColumns, 0, 2});
  cuda::Arena measured, staging;
  WeightPlacer measuring(DType::kFloat32, WeightPlacer::Rounding{}, measured, staging, nullptr);
  CudaWeight weight;
  ASSERT_TRUE(measuring.matrix(layout, weight).ok());
  EXPECT_EQ(weight.data, nullptr);
  place(layout);
  EXPECT_EQ(measured.used_bytes(), arena_.used_bytes());
}

// A rank's biases: runs of the blocks' elements, in order, across the blocks' ends.
// Gate and up are tensors of one matrix, whose records lie together.
TEST_F(PlacedMatrix, ExpertsOfFourBitsAreAStackOfRecords) {
  namespace kc = kernels::cuda;
  alignas(cuda::Arena::kAlignment) static std::byte memory[1 << 16];
  const MatrixLayout gate_up{.blocks = {{"a.weight", 64}, {"b.weight", 64}}, .in_features = 256};
  const MatrixLayout* const matrices[] = {&gate_up, &gate_up};
  cuda::Arena arena(memory);
  WeightPlacer placer(DType::kBFloat16, {}, arena, staging_, &loader_);
  ASSERT_TRUE(placer.int4_stack(matrices, 128, weight_).ok());
  const kc::Int4ExpertShape shape{128, 256, true};
  EXPECT_EQ(shape.size_bytes(), 2 * 2 * kc::kInt4ExpertRecordBytes);
  EXPECT_EQ(weight_.group_stride, shape.size_bytes());
  EXPECT_EQ(weight_.format.codes.int4.group, 128);
  EXPECT_EQ(arena.used_bytes(), 2 * shape.size_bytes());
  ASSERT_EQ(loader_.int4().size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const auto& [name, to] = loader_.int4()[i];
    EXPECT_EQ(name, i % 2 == 0 ? "a.weight" : "b.weight");
    EXPECT_EQ(to.kind, kc::Int4Records::kGatedExpert);
    EXPECT_EQ(to.records, memory + static_cast<int64_t>(i / 2) * shape.size_bytes());
    EXPECT_EQ(to.first_row, i % 2 == 0 ? 0 : 64);
    EXPECT_EQ(to.rows, 64);
    EXPECT_EQ(to.out_features, 128);
  }
}

TEST_F(PlacedMatrix, VectorsHaveTheirParts) {
  const VectorLayout whole{.blocks = {{"a.weight", 6}, {"b.weight", 4}}};
  VectorLayout parts = whole;
  parts.parts = {{1, 2}, {5, 3}, {9, 1}};
  const auto placed = [&](const VectorLayout& layout, auto method) {
    arena_ = cuda::Arena(memory_.data());
    placer_.emplace(DType::kFloat32, WeightPlacer::Rounding{}, arena_, staging_, &loader_);
    CudaWeight out;
    EXPECT_TRUE(((*placer_).*method)(layout, out).ok());
    const auto* data = static_cast<const float*>(out.data);
    return std::vector<float>(data, data + out.out_features);
  };
  for (const auto method : {&WeightPlacer::vector, &WeightPlacer::floats}) {
    EXPECT_THAT(placed(whole, method), ElementsAre(0, 1, 2, 3, 4, 5, 100, 101, 102, 103));
    EXPECT_THAT(placed(parts, method), ElementsAre(1, 2, 5, 100, 101, 103));
  }
}

}  // namespace
}  // namespace espalier
