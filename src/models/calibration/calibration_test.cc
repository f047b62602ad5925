// Rounding by inputs: its linear algebra against sums in double, what it wins where inputs are
// correlated and what it leaves alone where they are not, and whole models layer by layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "checkpoint/convert.h"
#include "checkpoint/temp_folder.h"
#include "models/calibration/calibrate.h"
#include "models/calibration/input_squares.h"
#include "models/calibration/output_factor.h"
#include "models/golden.h"

namespace espalier::calibration {
namespace {

using ::testing::HasSubstr;
using Kind = CompressedFormat::Kind;

constexpr double kDamping = 0.01;

std::vector<float> normals(Rng& rng, int64_t count, double size = 1) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<float>(size * rng.normal()));
  return out;
}

// Rows whose columns follow from a few causes, and some noise of their own.
std::vector<float> correlated(Rng& rng, const std::vector<float>& mixing, int64_t rows,
                              int64_t columns) {
  const int64_t causes = std::ssize(mixing) / columns;
  std::vector<float> out;
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<float> cause = normals(rng, causes);
    for (int64_t column = 0; column < columns; ++column) {
      double sum = 0.1 * rng.normal();
      for (int64_t k = 0; k < causes; ++k)
        sum += double{cause[static_cast<size_t>(k)]} *
               mixing[static_cast<size_t>(k * columns + column)];
      out.push_back(static_cast<float>(sum));
    }
  }
  return out;
}

class Calibration : public ::testing::Test {
 protected:
  OutputFactor factor_of(const std::vector<float>& x, int64_t columns) {
    InputSquares squares(columns);
    EXPECT_TRUE(squares.add(*backend_, x.data(), columns, std::ssize(x) / columns).ok());
    return OutputFactor::create(*backend_, squares.take(*backend_).value(), columns, kDamping)
        .value();
  }
  // Of the outputs of weights that are off by the difference, for these inputs.
  static double output_error(const std::vector<float>& weights, const RoundedRows& rounded,
                             const std::vector<float>& x) {
    double sum = 0;
    for (int64_t row = 0; row < rounded.rows; ++row) {
      std::vector<double> off;
      for (int64_t i = 0; i < rounded.columns; ++i)
        off.push_back(double{weights[static_cast<size_t>(row * rounded.columns + i)]} -
                      rounded.value(row, i));
      for (size_t at = 0; at < x.size(); at += off.size()) {
        const double dot =
            std::inner_product(off.begin(), off.end(), x.begin() + static_cast<int64_t>(at), 0.0);
        sum += dot * dot;
      }
    }
    return sum;
  }

  WorkPool pool_{2};
  std::unique_ptr<kernels::CpuBackend> backend_ = kernels::CpuBackend::create(pool_).value();
};

// Sizes that are no multiples of any block, and more rows than are folded at once.
TEST_F(Calibration, TheFactorIsThatOfTheSummedSquares) {
  constexpr int64_t kColumns = 300, kRows = 1100;
  Rng rng(3);
  std::vector<float> x = correlated(rng, normals(rng, 5 * kColumns), kRows, kColumns);
  for (size_t i = 7; i < x.size(); i += kColumns) x[i] = 0;     // an input that is always zero
  for (size_t i = 9; i < x.size(); i += kColumns) x[i] *= 100;  // and an outlier
  const OutputFactor factor = factor_of(x, kColumns);
  const auto at = [&](int64_t row, int64_t column) -> double {
    return x[static_cast<size_t>(row * kColumns + column)];
  };
  std::vector<double> squares(kColumns * kColumns);
  double mean = 0;
  for (int64_t i = 0; i < kColumns; ++i) {
    for (int64_t j = 0; j <= i; ++j)
      for (int64_t row = 0; row < kRows; ++row)
        squares[static_cast<size_t>(i * kColumns + j)] += at(row, i) * at(row, j);
    mean += squares[static_cast<size_t>(i * kColumns + i)] / kColumns;
  }
  for (int64_t i = 0; i < kColumns; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double dot = 0;
      for (int64_t k = 0; k <= j; ++k) dot += double{factor.at(i, k)} * factor.at(j, k);
      const double want =
          squares[static_cast<size_t>(i * kColumns + j)] + (i == j ? kDamping * mean : 0);
      const double scale = std::sqrt((squares[static_cast<size_t>(i * kColumns + i)] + mean) *
                                     (squares[static_cast<size_t>(j * kColumns + j)] + mean));
      ASSERT_NEAR(dot, want, 1e-5 * scale) << i << ", " << j;
    }
  }
}

TEST_F(Calibration, TheLengthOfSumsIsTheErrorOfOutputs) {
  constexpr int64_t kColumns = 160;
  Rng rng(4);
  const std::vector<float> x = correlated(rng, normals(rng, 8 * kColumns), 700, kColumns);
  const std::vector<float> matrix = normals(rng, 20 * kColumns);
  const OutputFactor factor = factor_of(x, kColumns);
  double want = 0, mean = 0;
  for (const float value : x) mean += double{value} * value / kColumns;
  for (size_t row = 0; row < matrix.size(); row += kColumns) {
    for (size_t at = 0; at < x.size(); at += kColumns)
      want += std::pow(std::inner_product(matrix.begin() + static_cast<int64_t>(row),
                                          matrix.begin() + static_cast<int64_t>(row) + kColumns,
                                          x.begin() + static_cast<int64_t>(at), 0.0),
                       2);
    for (size_t i = row; i < row + kColumns; ++i)
      want += kDamping * mean * double{matrix[i]} * matrix[i];
  }
  EXPECT_NEAR(factor.square_length(*backend_, matrix).value(), want, 1e-4 * want);
}

// The errors of outputs are half as large at most (a quarter, squared), and of inputs that
// calibration has not seen little larger.
TEST_F(Calibration, CorrelatedInputsHalveTheErrorOfOutputs) {
  constexpr int64_t kColumns = 384, kRows = 32;
  for (const Kind kind : {Kind::kInt4, Kind::kInt4Zero, Kind::kInt8, Kind::kFp8, Kind::kFp8Block}) {
    SCOPED_TRACE(static_cast<int>(kind));
    Rng rng(5);
    const std::vector<float> mixing = normals(rng, 24 * kColumns);
    const std::vector<float> x = correlated(rng, mixing, 1500, kColumns);
    const std::vector<float> unseen = correlated(rng, mixing, 300, kColumns);
    const std::vector<float> weights = normals(rng, kRows * kColumns, 0.05);
    const OutputFactor factor = factor_of(x, kColumns);
    const CalibratedMatrix got = round_with_feedback(*backend_, factor, kind, weights).value();
    EXPECT_LT(got.squares.calibrated, 0.25 * got.squares.plain);
    EXPECT_LT(got.squares.plain, 0.05 * got.squares.all);
    const RoundedRows plain = round_plainly(*backend_, kind, weights, kColumns);
    EXPECT_LT(output_error(weights, got.rounded, unseen),
              0.3 * output_error(weights, plain, unseen));
    const double seen = output_error(weights, got.rounded, x);
    EXPECT_LT(seen, got.squares.calibrated);  // which counts the damping too
    EXPECT_GT(seen, 0.2 * got.squares.calibrated);
  }
}

// Where no input says anything of another, there is nothing to make up for.
TEST_F(Calibration, UnrelatedInputsChangeNothing) {
  constexpr int64_t kColumns = 256, kRows = 24;
  Rng rng(6);
  const std::vector<float> weights = normals(rng, kRows * kColumns);
  std::vector<float> same(kColumns * kColumns);
  for (size_t i = 0; i < same.size(); i += kColumns + 1) same[i] = 9;
  const OutputFactor even = OutputFactor::create(*backend_, same, kColumns, kDamping).value();
  for (size_t i = 0, k = 0; i < same.size(); i += kColumns + 1, ++k)
    same[i] = 1 + static_cast<float>(k % 7);
  const OutputFactor uneven = OutputFactor::create(*backend_, same, kColumns, kDamping).value();
  for (const Kind kind : {Kind::kInt4, Kind::kInt4Zero, Kind::kInt8, Kind::kFp8, Kind::kFp8Block}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const RoundedRows plain = round_plainly(*backend_, kind, weights, kColumns);
    const CalibratedMatrix got = round_with_feedback(*backend_, even, kind, weights).value();
    EXPECT_EQ(got.rounded.codes, plain.codes);
    EXPECT_DOUBLE_EQ(got.squares.plain, got.squares.calibrated);
    // Inputs of other sizes may make another clipping the best; each number goes to the nearest.
    const RoundedRows other = round_with_feedback(*backend_, uneven, kind, weights)->rounded;
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t i = 0; i < kColumns; ++i) {
        const float weight = weights[static_cast<size_t>(row * kColumns + i)];
        ASSERT_EQ(other.value(row, i), other.steps_at(row, i).nearest(weight)) << row << ", " << i;
      }
  }
}

// Large weights that meet small inputs are clipped, so that the others keep fine steps.
TEST_F(Calibration, OutliersOfSmallInputsAreClipped) {
  constexpr int64_t kColumns = 128, kRows = 16;
  Rng rng(7);
  std::vector<float> weights = normals(rng, kRows * kColumns), x = normals(rng, 600 * kColumns);
  for (size_t i = 17; i < weights.size(); i += kColumns) weights[i] *= 16;
  for (size_t i = 17; i < x.size(); i += kColumns) x[i] /= 64;
  const CalibratedMatrix got =
      round_with_feedback(*backend_, factor_of(x, kColumns), Kind::kInt4, weights).value();
  EXPECT_LT(got.squares.calibrated, 0.3 * got.squares.plain);
}

TEST_F(Calibration, NumberOfThreadsChangesNothing) {
  constexpr int64_t kColumns = 300;
  Rng rng(8);
  const std::vector<float> x = correlated(rng, normals(rng, 9 * kColumns), 900, kColumns);
  const std::vector<float> weights = normals(rng, 70 * kColumns);
  const auto codes = [&] {
    return round_with_feedback(*backend_, factor_of(x, kColumns), Kind::kInt8, weights)
        ->rounded.codes;
  };
  const auto two = codes();
  WorkPool one(1);
  backend_ = kernels::CpuBackend::create(one).value();
  EXPECT_EQ(codes(), two);
  backend_ = kernels::CpuBackend::create(pool_).value();
}

// ---- models ----

struct Calibrated {
  std::vector<LayerReport> reports;
  std::map<std::string, float> input_scales;
  std::map<std::string, std::vector<float>> matrices;  // by tensor, of those that changed
};

// A model calibrated on tokens drawn from a seed, written and read back.
Calibrated run_model(const std::filesystem::path& folder, std::string_view name, int threads) {
  const TempFolder result;
  WorkPool pool(threads);
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  const ModelPlan plan = plan_model({.path = folder, .dtype = "float32"}).value();
  const CompressedFormat& format = *find_compressed_format(name);
  Rng rng(9);
  std::vector<std::vector<TokenId>> texts(6);
  for (auto& text : texts)
    for (int i = 0; i < 40; ++i)
      text.push_back(static_cast<TokenId>(rng.below(static_cast<uint64_t>(plan.spec.vocab_size))));
  texts.back().resize(7);
  int64_t done = 0;
  const CalibrationInputs inputs{texts, [&](int64_t tokens) { done = tokens; }};
  auto rounded = RoundedMatrices::create(result.path() / "rounded").value();
  Calibrated out;
  out.reports = calibrate(checkpoint, plan, format, inputs, pool, rounded).value();
  EXPECT_EQ(done, total_steps(inputs, std::ssize(plan.spec.layers)));
  EXPECT_TRUE(rounded.finish().ok());
  const CompressedPlan written = plan_compressed(checkpoint, format, &rounded).value();
  result.write("config.json",
               fmt::format(R"({{"quantization_config": {}}})", written.quantization_config));
  EXPECT_TRUE(write_safetensors(result.path(), written.tensors, 1 << 30, nullptr).ok());
  const SafetensorsFile file = SafetensorsFile::open(result.path() / "model.safetensors").value();
  for (const CheckpointTensor& tensor : file.tensors())
    if (tensor.name.ends_with(".input_scale"))
      copy_as_float(tensor, 0, std::span(&out.input_scales[tensor.name], 1));
  const Checkpoint after = Checkpoint::open(result.path()).value();
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const CheckpointTensor* const found = after.find(tensor.name);
    EXPECT_NE(found, nullptr) << tensor.name;
    if (found == nullptr || found->reader == nullptr) continue;
    std::vector<float>& values = out.matrices[tensor.name];
    values.resize(static_cast<size_t>(found->num_elements()));
    copy_as_float(*found, 0, values);
  }
  return out;
}

struct Expected {
  const char* model;
  int32_t matrices;  // of the last layer that are rounded by their inputs, at least
};

TEST(CalibratedModels, OutputsOfEachLayerAreOffByLess) {
  for (const Expected& each : {Expected{"llama_untied_bias", 7},
                               {"qwen3_moe", 4},
                               {"mixtral", 4},
                               {"deepseek_v3", 4},
                               {"gemma3", 7},
                               {"phi3_longrope", 4}}) {
    SCOPED_TRACE(each.model);
    const auto folder = std::filesystem::path("tests/golden/models") / each.model;
    const Calibrated got = run_model(folder, "INT8", 2);
    ASSERT_FALSE(got.reports.empty());
    for (const LayerReport& layer : got.reports) {
      EXPECT_GT(layer.squares.plain, 0);
      EXPECT_LT(layer.squares.calibrated, layer.squares.plain) << layer.layer;
      EXPECT_LT(layer.squares.plain, 1e-3 * layer.squares.all);
    }
    EXPECT_GE(got.reports.back().num_matrices, each.matrices);
    EXPECT_EQ(run_model(folder, "INT8", 1).matrices, got.matrices);
  }
}

// Matrices with the same inputs have one scale, and experts that saw no token one too.
TEST(CalibratedModels, StaticScalesAreThoseOfTheInputs) {
  const std::filesystem::path folder = "tests/golden/models/qwen3_moe";
  const Calibrated got = run_model(folder, "FP8_STATIC", 2);
  EXPECT_EQ(got.input_scales.size(), got.matrices.size());
  const auto scale = [&](const char* module) {
    return got.input_scales.at(fmt::format("model.layers.1.{}.input_scale", module));
  };
  EXPECT_GT(scale("self_attn.q_proj"), 0);
  EXPECT_EQ(scale("self_attn.q_proj"), scale("self_attn.v_proj"));
  EXPECT_NE(scale("self_attn.q_proj"), scale("self_attn.o_proj"));
  EXPECT_EQ(scale("mlp.experts.0.gate_proj"), scale("mlp.experts.3.up_proj"));
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  const auto refused = plan_compressed(checkpoint, *find_compressed_format("FP8_STATIC"));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("no matrix that FP8_STATIC takes"));
}

}  // namespace
}  // namespace espalier::calibration
