// What the GPU's decoder launches in a step, on systems without a GPU: recording_kernels.h stands
// for the kernels. The lists of tests/golden/cuda_launches were recorded from the decoder that had
// its order of launches in code, so the interpreter launches the same.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "models/cuda/decoder.h"
#include "models/cuda/encoder_batch.h"
#include "models/cuda/recording_kernels.h"
#include "models/cuda/support.h"
#include "models/families/family.h"
#include "models/golden.h"
#include "models/program/gpu_passes.h"
#include "models/program/lower.h"
#include "models/program/stages.h"

namespace espalier {
namespace {

struct Step {
  const char* name;
  int32_t tokens, entries, wanted;
  bool all_rows = false;     // no list of wanted rows
  bool own_windows = false;  // layers with windows have pages of their own
};
constexpr Step kSteps[] = {
    {"decode 1", 1, 1, 1},
    {"decode 2", 2, 2, 2},
    {"decode 4", 4, 4, 4},
    {"decode 64", 64, 64, 64, true},
    {"prefill 40", 40, 3, 2},
    {"prefill 40, all rows", 40, 3, 40, true},
    {"prefill 40, no rows", 40, 3, 0},
    {"decode 4, windows", 4, 4, 4, false, true},
};

// Addresses of what a step reads; nothing is read of them.
class Inputs {
 public:
  Inputs() : pages_(1 << 12) {}
  CudaStep step(const Step& of) const {
    CudaStep step{.ids = at(0), .token_slots = at(1), .slot_tokens = at(2)};
    step.entries = {.query_begin = at(3),
                    .prefix_len = at(4),
                    .page_begin = at(5),
                    .page_tables = at(6),
                    .num_entries = of.entries,
                    .num_tokens = of.tokens,
                    .max_query_tokens = of.tokens - of.entries + 1};
    if (of.own_windows) {
      step.window_entries = step.entries;
      step.window_entries.page_tables = at(7);
    }
    step.rows = of.all_rows ? nullptr : at(8);
    step.num_rows = of.wanted;
    return step;
  }
  KvView view(const ModelInfo& info, KvType type) const {
    KvView view{.page_size = 16};
    for (int32_t i = 0; i < info.num_layers; ++i) {
      view.layers.push_back({.type = type,
                             .k = const_cast<int32_t*>(at(16 + 2 * i)),
                             .v = const_cast<int32_t*>(at(17 + 2 * i)),
                             .num_kv_heads = info.num_kv_heads,
                             .head_dim = info.head_dim});
    }
    return view;
  }

 private:
  const int32_t* at(int32_t index) const { return pages_.data() + index; }
  std::vector<int32_t> pages_;
};

struct Recording {
  bool deterministic = false;
  bool e4m3 = false;
  bool takes_adapters = false;  // and has some in its steps
  bool adapters = false;
  bool pictures = false;      // the first token's row is a picture's
  bool takes_states = false;  // and returns those of its steps
  bool states = false;
};

std::string record(const DecoderSpec& spec, const std::filesystem::path& folder, DType type,
                   const Recording& how) {
  ModelPlan plan{spec, type};
  plan.weights.e4m3 = how.e4m3;
  auto loaded = CudaDecoder::load(std::move(plan), {.path = folder,
                                                    .format = LoadFormat::kDummy,
                                                    .enable_lora = how.takes_adapters,
                                                    .return_hidden_states = how.takes_states});
  if (!loaded) return loaded.error().to_string() + "\n";
  CudaDecoder& decoder = **loaded;
  if (how.deterministic) decoder.set_deterministic(128);
  EXPECT_TRUE(decoder.reserve(64, 64, 16).ok());
  decoder.set_pdl(true);
  const Inputs inputs;
  const auto stream = cuda::Stream::create();
  const KvView view = inputs.view(decoder.info(), decoder.kv_type());
  std::vector<float> logits(static_cast<size_t>(64 * decoder.logits_stride()));
  std::string out;
  for (const Step& step : kSteps) {
    recording::begin();
    CudaStep inputs_of_step = inputs.step(step);
    if (how.adapters) {
      inputs_of_step.adapters.tokens = {.max_tiles = step.entries, .max_rows = step.tokens};
      inputs_of_step.adapters.wanted = {.max_tiles = step.entries, .max_rows = step.wanted};
    }
    const StepSpan span{.token_begin = 0, .count = 1, .rows = logits.data()};
    if (how.pictures) inputs_of_step.spans = {&span, 1};
    std::vector<size_t> launches_before;  // each hidden state
    const std::function<Status(int32_t, const void*)> on_states = [&](int32_t index, const void*) {
      EXPECT_EQ(index, std::ssize(launches_before));
      launches_before.push_back(recording::lines().size());
      return Status();
    };
    inputs_of_step.returns_states = how.states;
    inputs_of_step.on_states = &on_states;
    EXPECT_TRUE(decoder.forward(inputs_of_step, view, *stream).ok());
    for (int32_t first = 0; first < step.wanted; first += 32) {
      const int32_t count = std::min(32, step.wanted - first);
      EXPECT_TRUE(decoder.logits(first, count, logits.data(), *stream).ok());
    }
    out += fmt::format("== {}\n", step.name);
    if (how.states)
      out += fmt::format("states behind {} launches\n", fmt::join(launches_before, " "));
    for (const std::string& line : recording::lines()) out += line + "\n";
  }
  recording::begin();
  return out;
}

std::string record(const std::string& name, DType type, const Recording& how = {}) {
  const golden::Golden golden = golden::read(name);
  return record(golden.spec, golden.folder, type, how);
}

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

class CudaLaunches : public testing::TestWithParam<std::string> {};

TEST_P(CudaLaunches, AreThoseOfTheGolden) {
  const std::filesystem::path folder = "tests/golden/cuda_launches";
  const std::string got = "bfloat16\n" + record(GetParam(), DType::kBFloat16) +
                          "float32, deterministic\n" +
                          record(GetParam(), DType::kFloat32, {.deterministic = true});
  if (const char* to = std::getenv("ESPALIER_WRITE_LAUNCHES")) {
    std::ofstream(std::filesystem::path(to) / (GetParam() + ".txt")) << got;
    return;
  }
  const std::string want = read_file(folder / (GetParam() + ".txt"));
  ASSERT_FALSE(want.empty()) << "make it with ESPALIER_WRITE_LAUNCHES=" << folder.string();
  EXPECT_EQ(got, want);
}

INSTANTIATE_TEST_SUITE_P(All, CudaLaunches, testing::ValuesIn(golden::names()),
                         [](const auto& tested) { return tested.param; });

// The layers' GEMMs get their scales and take the norms in front of them; one token starts kernels
// early and has no megakernel, whose weights are bfloat16.
TEST(CudaLaunchesOfE4m3, GemmsHaveScales) {
  const std::string got = record("qwen3_head_dim", DType::kBFloat16, {.e4m3 = true});
  EXPECT_EQ(got.find("megakernel"), std::string::npos);
  std::istringstream lines(got);
  std::string step, line;
  std::map<std::string, int> scaled, plain, normed, early;
  while (std::getline(lines, line)) {
    if (line.starts_with("== ")) step = line.substr(3);
    if (line.find(" linear ") == std::string::npos) continue;
    ++(line.find(":scales") != std::string::npos ? scaled : plain)[step];
    normed[step] += line.find("norm=model.layers") != std::string::npos ? 1 : 0;
    early[step] += line.find(" linear pdl ") != std::string::npos ? 1 : 0;
  }
  const int layers = static_cast<int>(golden::read("qwen3_head_dim").spec.layers.size());
  for (const char* name : {"decode 1", "decode 4", "prefill 40, all rows"}) {
    EXPECT_EQ(scaled[name], 4 * layers) << name;
    EXPECT_EQ(plain[name], std::string(name) == "prefill 40, all rows" ? 2 : 1) << name;
    EXPECT_EQ(normed[name], 2 * layers) << name;
    EXPECT_EQ(early[name] > 0, std::string(name).starts_with("decode")) << name;
  }
}

// Experts of e4m3 get their scales in the kernels of few rows and in the GEMMs of many, whose rows
// are rounded before each; a shared expert is in the same codes.
TEST(CudaLaunchesOfE4m3, ExpertsHaveScales) {
  for (const char* name : {"qwen3_moe", "glm4_moe"}) {
    SCOPED_TRACE(name);
    const std::string got = record(name, DType::kBFloat16, {.e4m3 = true});
    std::istringstream lines(got);
    std::string step, line;
    std::map<std::string, int> blocks, grouped, rounded;
    while (std::getline(lines, line)) {
      if (line.starts_with("== ")) step = line.substr(3);
      const bool scaled = line.find(":scales") != std::string::npos;
      if (line.find(" small_batch_moe ") != std::string::npos) {
        EXPECT_TRUE(scaled) << line;
        EXPECT_EQ(line.find("shared=0") == std::string::npos,
                  line.find("of_shared=") != std::string::npos)
            << line;
        ++blocks[step];
      }
      if (line.find(" grouped_") != std::string::npos) {
        EXPECT_TRUE(scaled) << line;
        EXPECT_NE(line.find("x_scales="), std::string::npos) << line;
        ++grouped[step];
      }
      if (line.find(" quantize_rows ") != std::string::npos) ++rounded[step];
    }
    const auto& layers = golden::read(name).spec.layers;
    const auto experts = static_cast<int>(
        std::ranges::count_if(layers, [](const LayerSpec& l) { return l.experts.has_value(); }));
    EXPECT_EQ(blocks["decode 1"], experts);
    EXPECT_EQ(grouped["decode 1"], 0);
    EXPECT_EQ(grouped["prefill 40, all rows"], 2 * experts);
    EXPECT_EQ(rounded["prefill 40, all rows"], 2 * experts);
  }
}

// A model that takes adapters launches for a step without them what it launches anyway.
TEST(CudaLaunchesWithAdapters, StepsWithoutThemAreTheSame) {
  for (const char* name : {"llama_tied_llama3", "qwen2_moe", "gemma2"}) {
    EXPECT_EQ(record(name, DType::kBFloat16, {.takes_adapters = true}),
              record(name, DType::kBFloat16))
        << name;
  }
}

// The same of a model that returns hidden states.
TEST(CudaLaunchesWithStates, StepsWithoutThemAreTheSame) {
  for (const char* name : {"llama_tied_llama3", "qwen2_moe", "gemma2"}) {
    EXPECT_EQ(record(name, DType::kBFloat16, {.takes_states = true}),
              record(name, DType::kBFloat16))
        << name;
  }
}

// All layers launch as much, the last one too, whatever rows are wanted; the norm and the head's
// GEMM come behind them.
TEST(CudaLaunchesWithStates, ComeBetweenWholeLayers) {
  for (const char* name : {"llama_tied_llama3", "gpt2"}) {
    const std::string got = record(name, DType::kFloat32, {.takes_states = true, .states = true});
    const auto layers = golden::read(name).spec.layers.size();
    std::istringstream lines(got);
    std::string line;
    size_t num_steps = 0;
    while (std::getline(lines, line)) {
      if (!line.starts_with("states behind ")) continue;
      ++num_steps;
      std::istringstream numbers(line.substr(14));
      std::vector<size_t> before;
      for (size_t number = 0; numbers >> number;) before.push_back(number);
      ASSERT_EQ(before.size(), layers + 1) << name << ": " << line;
      for (size_t i = 2; i <= layers; ++i)
        EXPECT_EQ(before[i] - before[i - 1], before[1] - before[0]) << name << ": " << line;
    }
    EXPECT_EQ(num_steps, std::size(kSteps)) << name;
  }
}

// Each GEMM of a layer stands between the two kernels, which read its input and add to its result.
TEST(CudaLaunchesWithAdapters, SurroundTheGemms) {
  for (const char* name : {"llama_tied_llama3", "qwen2_moe", "gemma2", "deepseek_v2"}) {
    SCOPED_TRACE(name);
    const std::string got =
        record(name, DType::kBFloat16, {.takes_adapters = true, .adapters = true});
    EXPECT_EQ(got.find("megakernel"), std::string::npos);
    std::istringstream lines(got);
    std::string step, line, x, gemm;
    std::map<std::string, int> expanded;
    const auto word = [&](const std::string& key) {
      const size_t at = line.find(" " + key + "=") + key.size() + 2;
      return line.substr(at, line.find(' ', at) - at);
    };
    while (std::getline(lines, line)) {
      if (line.starts_with("== ")) step = line.substr(3);
      if (line.find(" lora_shrink ") != std::string::npos) x = word("x");
      if (line.find(" linear ") != std::string::npos) {
        gemm = line.substr(0, line.find(' '));
        if (!x.empty()) {
          EXPECT_EQ(word("x"), x) << line;
          EXPECT_EQ(word("silu_mul"), "false") << line;
          EXPECT_EQ(word("norm"), "-,0") << line;
        }
      }
      if (line.find(" lora_expand ") != std::string::npos) {
        EXPECT_TRUE(word("y").starts_with(gemm)) << line;
        EXPECT_FALSE(x.empty()) << line;
        x.clear();
        ++expanded[step];
      }
    }
    const auto layers = static_cast<int>(golden::read(name).spec.layers.size());
    EXPECT_GE(expanded["decode 1"], 2 * layers);
    for (const char* other : {"decode 64", "prefill 40", "prefill 40, all rows"})
      EXPECT_EQ(expanded[other], expanded["decode 1"]) << other;
  }
}

// Of each step the kernels and the weights that they read, without what stands in front of the
// first operation of a program; early: whether the first of these may start early.
struct StepKernels {
  std::string text;
  bool early = false;
};
std::map<std::string, StepKernels> kernels_of(const std::string& recorded) {
  std::map<std::string, StepKernels> out;
  std::istringstream lines(recorded);
  StepKernels* step = nullptr;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("== ")) {
      step = &out[line.substr(3)];
      continue;
    }
    std::istringstream words(line);
    std::string kernel, word;
    words >> word >> kernel;
    if (kernel == "token_rows" || kernel == "attention_plan" || kernel == "plan_expanded") continue;
    const bool early = line.find(" pdl ") != std::string::npos;
    if (step->text.empty()) step->early = early;
    step->text += kernel;
    while (words >> word)
      if (word.starts_with("weight=")) step->text += " " + word;
    step->text += "\n";
  }
  return out;
}

// Stages of a pipeline together launch what the whole model does, kernel by kernel. The first
// kernel of a stage does not start early: it is what waits for the rows and the plans.
TEST(CudaLaunchesOfStages, AreThoseOfTheModel) {
  for (const std::string& name : golden::names()) {
    const golden::Golden golden = golden::read(name);
    if (golden.spec.layers.size() < 2) continue;
    SCOPED_TRACE(name);
    auto whole = kernels_of(record(golden.spec, golden.folder, DType::kFloat32, {}));
    std::map<std::string, std::string> together;
    for (const DecoderSpec& stage :
         program::divide_layers(golden.spec, 2, program::StageBalance::kPrompts)) {
      for (const auto& [step, kernels] :
           kernels_of(record(stage, golden.folder, DType::kFloat32, {}))) {
        together[step] += kernels.text;
        EXPECT_FALSE(kernels.early) << step;
      }
    }
    for (const auto& [step, kernels] : whole) {
      if (kernels.text.find("megakernel") == std::string::npos) {
        EXPECT_EQ(together[step], kernels.text) << step;
      }
    }
  }
}

// Rows of pictures are placed behind those of the tokens, in front of the layers, kernel by kernel,
// and no kernel starts early; the rest of the launches is the same.
TEST(CudaLaunchesOfPictures, RowsArePlacedBehindTheEmbedding) {
  const std::string name = "llama_tied_llama3";
  ASSERT_NE(record(name, DType::kBFloat16).find("megakernel"), std::string::npos);
  const std::string got = record(name, DType::kBFloat16, {.pictures = true});
  EXPECT_EQ(got.find("megakernel"), std::string::npos);
  EXPECT_EQ(got.find(" pdl "), std::string::npos);
  std::istringstream lines(got);
  std::string line, before;
  size_t placed = 0;
  while (std::getline(lines, line)) {
    if (line.find(" place_rows ") != std::string::npos) {
      EXPECT_NE(before.find(" gather_rows "), std::string::npos) << before;
      ++placed;
    }
    before = line;
  }
  EXPECT_EQ(placed, std::size(kSteps));
}

// Qwen3-VL's first two layers add a part of the picture's row each, in one launch.
TEST(CudaLaunchesOfPictures, FirstLayersAddPartsOfRows) {
  const std::filesystem::path folder = "tests/golden/images/qwen3_vl";
  const auto config = read_model_config(folder);
  ASSERT_TRUE(config);
  const DecoderSpec spec = make_decoder_spec(*config).value();
  const auto count = [&](bool pictures, const std::string& kernel) {
    std::istringstream lines(record(spec, folder, DType::kBFloat16, {.pictures = pictures}));
    size_t found = 0;
    for (std::string line; std::getline(lines, line);)
      found += line.find(" " + kernel + " ") != std::string::npos ? 1 : 0;
    return found;
  };
  EXPECT_EQ(count(true, "place_rows"), std::size(kSteps));
  EXPECT_EQ(count(true, "add_scaled"), 2 * std::size(kSteps));
  EXPECT_EQ(count(false, "add_scaled"), 0u);
}

std::optional<DecoderSpec> encoder_spec(const std::string& name) {
  const auto config = read_model_config("tests/golden/images/" + name);
  return config ? make_encoder_spec(*config).value() : std::nullopt;
}

// Nothing of an encoder goes to pages, and its GEMMs read rows of multiples of 8.
TEST(CudaEncoderPlan, ReadsKeysAndValuesFromRows) {
  for (const char* name :
       {"llava_clip", "llava_siglip", "llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl",
        "qwen3_vl", "gemma3", "pixtral", "mistral3", "internvl", "internvl_norms"}) {
    const std::optional<DecoderSpec> spec = encoder_spec(name);
    ASSERT_TRUE(spec) << name;
    EXPECT_TRUE(check_cuda_encoder(*spec).ok()) << name;
    const auto plan = CudaPlan::create(program::encoder_passes(program::lower(*spec)));
    ASSERT_TRUE(plan) << plan.error().message();
    EXPECT_EQ(plan->append_end(), 0u);
    size_t layers = 0;
    for (const CudaPlan::BoundOp& bound : plan->ops()) {
      EXPECT_NE(bound.op.kind, program::OpKind::kKvAppend);
      if (bound.op.kind == program::OpKind::kAttention) {
        ++layers;
        EXPECT_EQ(bound.op.inputs.size(), 3u);
      }
      if (bound.op.kind != program::OpKind::kMatmul) continue;
      EXPECT_EQ(bound.op.as<program::Matmul>().in_features % program::kGemmColumns, 0);
      EXPECT_EQ(bound.op.inputs[0].columns, bound.op.as<program::Matmul>().in_features);
    }
    EXPECT_EQ(layers, spec->layers.size());
    const EncoderSizes sizes = EncoderSizes::most(*spec, 16, 4);
    const DecoderLimits limits{.max_tokens = sizes.rows, .max_outputs = sizes.outputs};
    EXPECT_GT(plan->place(limits, DType::kBFloat16).total_bytes, 0);
  }
}

TEST(CudaEncoderPlan, WhatTheGpuDoesNotDoIsRefusedByName) {
  const std::optional<DecoderSpec> spec = encoder_spec("llava_clip");
  ASSERT_TRUE(spec);
  const auto refusal = [&](const auto& change) {
    DecoderSpec changed = *spec;
    change(changed);
    return check_cuda_encoder(changed).message();
  };
  EXPECT_NE(refusal([](auto& s) { s.layers[1].attention.rope = 0; }).find("rotary positions"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& s) { s.layers[1].attention.windowed = true; }).find("windows"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& s) {
              s.ropes = {{.sections = {1, 1}}};
            }).find("2 components"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& s) { s.layers[0].attention.sliding_window = 4; }).find("attention"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& s) { s.layers[0].attention.num_kv_heads = 1; }).find("share keys"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& s) { s.projector.reset(); }).find("projector"), std::string::npos);
}

// Both parts of models whose pictures have any size or are read in tiles.
TEST(CudaEncoderPlan, PicturesOfAnySizeAreTaken) {
  for (const char* name : {"llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl",
                           "pixtral", "mistral3", "internvl"}) {
    const auto config = read_model_config(std::string("tests/golden/images/") + name);
    ASSERT_TRUE(config) << name;
    const auto decoder = make_decoder_spec(*config);
    ASSERT_TRUE(decoder) << name;
    const Status status = check_cuda_support(*decoder);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// An MLP of 3,420 has 3,424 rows in each half, and the matrix behind it reads as many.
TEST(CudaEncoderPlan, WidensMlps) {
  for (const char* name : {"qwen2_5_vl", "qwen2_vl"}) {
    std::optional<DecoderSpec> spec = encoder_spec(name);
    ASSERT_TRUE(spec) << name;
    for (LayerSpec& layer : spec->layers) layer.mlp.intermediate_size = 3420;
    EXPECT_TRUE(check_cuda_encoder(*spec).ok());
    const auto plan = CudaPlan::create(program::encoder_passes(program::lower(*spec)));
    ASSERT_TRUE(plan) << plan.error().message();
    const bool gated = spec->layers[0].mlp.gated;
    int32_t found = 0;
    for (const CudaPlan::BoundOp& bound : plan->ops()) {
      if (bound.op.kind == program::OpKind::kActivation && bound.op.layer >= 0) {
        EXPECT_EQ(bound.op.as<program::Activation>().dim, 3424);
      }
      if (bound.op.kind != program::OpKind::kMatmul) continue;
      const auto& matmul = bound.op.as<program::Matmul>();
      if (matmul.weight.kind == WeightKind::kGateUp) {
        EXPECT_EQ(matmul.out_features, (gated ? 2 : 1) * 3424);
        ++found;
      }
      if (matmul.weight.kind == WeightKind::kDown) {
        EXPECT_EQ(matmul.in_features, 3424);
        ++found;
      }
    }
    EXPECT_EQ(found, 2 * std::ssize(spec->layers));
  }
}

}  // namespace
}  // namespace espalier
