// Tiny random models against transformers: the same logits and greedy tokens, in float32 and bf16,
// on every instruction set that this processor has, and the same bits however a sequence is cut,
// with whom it runs, where its pages lie and how many threads there are.
#include "models/golden.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>

#include "fmt/format.h"
#include "kernels/cpu/isa.h"

namespace espalier {
namespace {

// In units of the reference's spread. Where the checkpoint is not bfloat16 itself, a bfloat16 run
// rounds its weights too, which the reference does not.
float tolerance(DType type, const golden::Golden& golden) {
  if (type == DType::kFloat32) return 1e-4f;
  return golden.spec.checkpoint_dtype == DType::kBFloat16 ? 1e-2f : 2e-2f;
}

using golden::kTokensThatAgree;
using golden::may_jump;

KvType kv_type(DType type) {
  return type == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16;
}
const char* name_of(DType type) { return type == DType::kFloat32 ? "float32" : "bfloat16"; }

std::unique_ptr<Model> load(const golden::Golden& golden, DType type, WorkPool& pool) {
  auto model = load_model({.path = golden.folder, .dtype = name_of(type), .pool = &pool});
  EXPECT_TRUE(model) << model.error().to_string();
  return *std::move(model);
}

// Sets ESPALIER_CPU_ISA for a scope.
class UseIsa {
 public:
  explicit UseIsa(kernels::CpuIsa isa) {
    if (const char* value = std::getenv(kName)) before_ = value;
    ::setenv(kName, std::string(kernels::cpu_isa_name(isa)).c_str(), 1);
  }
  ~UseIsa() {
    if (before_) {
      ::setenv(kName, before_->c_str(), 1);
    } else {
      ::unsetenv(kName);
    }
  }

 private:
  static constexpr char kName[] = "ESPALIER_CPU_ISA";
  std::optional<std::string> before_;
};

// The largest error of a row, or of those that have to agree.
float error_of(Model& model, DType type, const golden::Golden& golden) {
  return golden::largest_error(golden::row_errors(model, golden, kv_type(type)),
                               may_jump(type, golden));
}

class GoldenModel : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  const DType type_ = std::get<1>(GetParam());
  const golden::Golden golden_ = golden::read(std::get<0>(GetParam()));
};

TEST_P(GoldenModel, HasTheLogitsOfTransformersOnEveryInstructionSet) {
  WorkPool pool(2);
  for (const kernels::CpuIsa isa : kernels::supported_cpu_isas()) {
    UseIsa use(isa);
    const auto model = load(golden_, type_, pool);
    const float error = error_of(*model, type_, golden_);
    RecordProperty(std::string(kernels::cpu_isa_name(isa)), std::to_string(error));
    EXPECT_LE(error, tolerance(type_, golden_)) << kernels::cpu_isa_name(isa);
  }
}

// Fed with the reference's tokens one by one, the best token is the reference's wherever that is
// clearly the best.
TEST_P(GoldenModel, DrawsTheSameGreedyTokens) {
  WorkPool pool(2);
  const auto model = load(golden_, type_, pool);
  ASSERT_TRUE(model->reserve(64, 4).ok());
  int compared = 0, agreed = 0;
  for (const golden::Greedy& greedy : golden_.greedy) {
    Rng rng(3);
    golden::KvMemory kv(model->info(), kv_type(type_), 4, 128, rng);
    golden::Track track{greedy.prompt, 0, {}, {}};
    golden::run_step(
        *model, kv,
        {{&track, static_cast<int32_t>(greedy.prompt.size()), golden::Piece::Want::kLast}});
    for (size_t i = 0; i < greedy.tokens.size(); ++i) {
      const std::vector<float>& logits = track.logits.at(track.done - 1);
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      if (greedy.margins[i] > tolerance(type_, golden_) * golden_.spread) {
        if (!may_jump(type_, golden_)) {
          ASSERT_EQ(best, greedy.tokens[i]) << "token " << i << ", margin " << greedy.margins[i];
        }
        agreed += best == greedy.tokens[i];
        ++compared;
      }
      track.tokens.push_back(greedy.tokens[i]);
      golden::run_step(*model, kv, {{&track, 1, golden::Piece::Want::kLast}});
    }
  }
  EXPECT_GE(compared, 64);  // of 128
  EXPECT_GE(agreed, kTokensThatAgree * compared);
}

TEST_P(GoldenModel, GivesTheSameBitsThroughEveryPath) {
  std::vector<std::vector<TokenId>> input;
  for (const golden::Sequence& sequence : golden_.sequences) input.push_back(sequence.tokens);
  for (const golden::Greedy& greedy : golden_.greedy) {
    std::vector<TokenId>& tokens = input.emplace_back(greedy.prompt);
    tokens.insert(tokens.end(), greedy.tokens.begin(), greedy.tokens.end());
  }
  std::vector<std::vector<float>> first;
  for (const int threads : {1, 3}) {
    WorkPool pool(threads);
    const auto model = load(golden_, type_, pool);
    for (const int32_t page_size : {1, 16}) {
      for (const int32_t chunk : {1 << 20, 1, 5}) {
        for (const bool together : {false, true}) {
          const auto logits =
              golden::run_all(*model, input, kv_type(type_), page_size, chunk, together);
          if (first.empty()) first = logits;
          for (size_t i = 0; i < logits.size(); ++i) {
            ASSERT_EQ(logits[i].size(), first[i].size());
            ASSERT_EQ(std::memcmp(logits[i].data(), first[i].data(), first[i].size() * 4), 0)
                << "sequence " << i << ", " << threads << " threads, pages of " << page_size
                << ", chunks of " << chunk << (together ? ", together" : ", one by one");
          }
        }
      }
    }
  }
}

// Chunks that want no logits skip the end of the pass; what comes after must not notice.
TEST_P(GoldenModel, UnwantedRowsChangeNothing) {
  WorkPool pool(2);
  const auto model = load(golden_, type_, pool);
  ASSERT_TRUE(model->reserve(128, 8).ok());
  const std::vector<TokenId>& tokens = golden_.sequences.back().tokens;
  const auto count = static_cast<int32_t>(tokens.size());
  Rng rng(4);
  golden::KvMemory kv(model->info(), kv_type(type_), 1, 512, rng);
  using Want = golden::Piece::Want;
  golden::Track whole{tokens, 0, {}, {}}, last{tokens, 0, {}, {}}, parts{tokens, 0, {}, {}};
  golden::run_step(*model, kv, {{&whole, count, Want::kAll}});
  golden::run_step(*model, kv, {{&parts, 7, Want::kNothing}});
  golden::run_step(*model, kv, {{&parts, 9, Want::kNothing}, {&last, count, Want::kLast}});
  golden::run_step(*model, kv, {{&parts, count - 16, Want::kAll}});
  EXPECT_EQ(last.logits.size(), 1u);
  EXPECT_EQ(last.logits.at(count - 1), whole.logits.at(count - 1));
  EXPECT_EQ(parts.logits.size(), static_cast<size_t>(count - 16));
  for (const auto& [position, logits] : parts.logits) {
    EXPECT_EQ(logits, whole.logits.at(position)) << position;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModel,
                         testing::Combine(testing::ValuesIn(golden::names()),
                                          testing::Values(DType::kFloat32, DType::kBFloat16)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + "_" +
                                  name_of(std::get<1>(tested.param));
                         });

// transformers' dynamic scaling takes a text of `length` tokens of a model made for `most` as plain
// rope with theta' = theta (factor length / most - (factor - 1))^(d / (d - 2)). So with the theta
// for which theta' is the golden's, the golden is also that model's, and no other's.
TEST(DynamicRope, HasTheLogitsOfTheStretchedTheta) {
  const golden::Golden golden = golden::read("qwen2_sharded");
  const RopeSpec& rope = golden.spec.ropes[0];
  ASSERT_EQ(rope.scaling, RopeSpec::Scaling::kNone);
  const double d = rope.rotary_dim, stretch = 4.0 * 256 / 64 - (4.0 - 1);
  const double theta = rope.theta / std::pow(stretch, d / (d - 2));
  struct Case {
    const char* what;
    const char* type;
    double factor, theta;
    int32_t context_length;
    bool agrees;
  };
  WorkPool pool(2);
  for (const Case& c :
       {Case{"as the golden", "dynamic", 4, theta, 256, true},
        Case{"taken for plain", "default", 0, theta, 256, false},
        Case{"taken for linear", "linear", 4, theta, 256, false},
        Case{"another factor", "dynamic", 8, theta, 256, false},
        Case{"another length", "dynamic", 4, theta, 128, false},
        Case{"stretched from the golden's", "dynamic", 4, rope.theta, 256, false}}) {
    const bool dynamic = c.type == std::string("dynamic");
    const std::string factor = c.factor == 0 ? "" : fmt::format(R"(,"factor":{})", c.factor);
    const std::string overrides = fmt::format(R"({{"max_position_embeddings":{},"rope_parameters":)"
                                              R"({{"rope_type":"{}","rope_theta":{}{}}}}})",
                                              dynamic ? 64 : 256, c.type, c.theta, factor);
    auto model = load_model({.path = golden.folder,
                             .dtype = "float32",
                             .context_length = c.context_length,
                             .config_overrides = overrides,
                             .pool = &pool});
    ASSERT_TRUE(model) << model.error().to_string();
    const float error = golden::max_error(**model, golden, KvType::kFloat32);
    if (c.agrees) {
      EXPECT_LE(error, tolerance(DType::kFloat32, golden)) << c.what;
    } else {
      EXPECT_GT(error, 20 * tolerance(DType::kFloat32, golden)) << c.what;
    }
  }
}

}  // namespace
}  // namespace espalier
