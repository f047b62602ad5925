// A draft head on the GPU: logits as the reference has them in any cut, behind the model's own
// step, and parts that are missing are noticed.
#include "models/cuda/draft_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>

#include "base/mapped_file.h"
#include "checkpoint/temp_folder.h"
#include "models/head_run.h"
#include "models/load_draft_head.h"
#include "models/model_plan.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr char kHeadFolder[] = "tests/golden/draft/llama_tied_llama3";

struct HeadGolden {
  const char* name;
  fs::path target, head;
  // Of the logits' spread; 0: not compared, for another expert may be taken in bfloat16.
  float bfloat16_tolerance;
};
const HeadGolden kHeadGoldens[] = {
    {"eagle3", "tests/golden/models/llama_tied_llama3", kHeadFolder, 0.05f},
    {"mimo", "tests/golden/mtp/mimo", "tests/golden/mtp/mimo", 0.1f},
    {"glm4_moe", "tests/golden/mtp/glm4_moe", "tests/golden/mtp/glm4_moe", 0},
    {"deepseek_v3", "tests/golden/mtp/deepseek_v3", "tests/golden/mtp/deepseek_v3", 0},
};

constexpr int32_t kPasses = kHeadSteps, kPageSize = 4, kNumPages = 64, kMostTokens = 64,
                  kMostChains = 4;
constexpr float kFloat32Tolerance = 1e-3f;  // of the logits' spread

using ChangeSpecs = std::function<void(DecoderSpec& target, DecoderSpec& head)>;

// One sequence through the model and its head, on pages in their order.
class CudaHeadRun {
 public:
  static std::unique_ptr<CudaHeadRun> load(const fs::path& target_folder, const fs::path& folder,
                                           const char* dtype, const ChangeSpecs& change = {}) {
    ModelLoadOptions options{.path = target_folder, .dtype = dtype, .draft_path = folder};
    auto plan = plan_model(options);
    EXPECT_TRUE(plan) << plan.error().to_string();
    auto spec = plan_draft_head(options, plan->spec);
    EXPECT_TRUE(spec) << spec.error().to_string();
    if (change) change(plan->spec, **spec);
    auto target = CudaDecoder::load(std::move(*plan), options);
    EXPECT_TRUE(target) << target.error().to_string();
    auto head = CudaDraftHead::load(**spec, options, **target);
    EXPECT_TRUE(head) << head.error().to_string();
    std::unique_ptr<CudaHeadRun> run(new CudaHeadRun(std::move(*target), std::move(*head)));
    EXPECT_TRUE(run->reserve().ok());
    return run;
  }

  // The next `count` tokens, and what the head makes of them; then passes behind the text's own
  // tokens. Returns the logits of each of `passes`. 0: no row is wanted.
  std::vector<std::vector<float>> add(const std::vector<TokenId>& text, int32_t count,
                                      int32_t passes) {
    CudaStep step = step_of(done_, ids(text, done_, count));
    step.keeps_states = true;
    step.rows = put({count - 1});
    step.num_rows = passes > 0 ? 1 : 0;
    must(target_->forward(step, view_, stream_));
    if (passes > 0) must(target_->logits(0, 1, target_logits_, stream_));
    step.ids = put(ids(text, done_ + 1, count));
    must(head_->draft(step, view_, logits_, stream_));
    done_ += count;
    if (passes == 0) return {};
    std::vector<std::vector<float>> out = {read_logits()};
    for (int32_t pass = 1; pass < passes; ++pass) {
      CudaStep next = step_of(done_ - 1 + pass, ids(text, done_ + pass, 1));
      next.num_rows = 1;
      must(head_->draft_next(next, view_, logits_, stream_));
      out.push_back(read_logits());
    }
    return out;
  }
  void restart() { done_ = 0; }

 private:
  CudaHeadRun(std::unique_ptr<CudaDecoder> target, std::unique_ptr<CudaDraftHead> head)
      : target_(std::move(target)), head_(std::move(head)) {}
  static void must(const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); }

  Status reserve() {
    ESP_ASSIGN_OR_RETURN(stream_, cuda::Stream::create());
    ESP_RETURN_IF_ERROR(target_->reserve(kMostTokens, kMostChains, kPageSize));
    ESP_RETURN_IF_ERROR(head_->reserve({.max_tokens = kMostTokens,
                                        .max_entries = kMostChains,
                                        .max_chains = kMostChains,
                                        .page_size = kPageSize}));
    const ModelInfo& info = target_->info();
    view_.page_size = kPageSize;
    for (int32_t i = 0; i <= info.num_layers; ++i) {
      const bool own = i == info.num_layers;
      KvView::Layer layer{.kind = info.kv_planes == 1 ? KvLayerKind::kLatent : KvLayerKind::kPages,
                          .type = target_->kv_type(),
                          .num_pages = kNumPages,
                          .num_kv_heads = own ? head_->kv_info().num_kv_heads : info.num_kv_heads,
                          .head_dim = own ? head_->kv_info().head_dim : info.head_dim};
      layer.set_dense_strides(kPageSize);
      ESP_ASSIGN_OR_RETURN(layer.k, allocate(layer.plane_bytes()));
      layer.v = layer.k;
      if (info.kv_planes == 2) {
        ESP_ASSIGN_OR_RETURN(layer.v, allocate(layer.plane_bytes()));
      }
      view_.layers.push_back(layer);
    }
    ESP_ASSIGN_OR_RETURN(void* const logits, allocate(4ll * kMostChains * head_->logits_stride()));
    ESP_ASSIGN_OR_RETURN(void* const others,
                         allocate(4ll * kMostChains * target_->logits_stride()));
    logits_ = static_cast<float*>(logits);
    target_logits_ = static_cast<float*>(others);
    ESP_RETURN_IF_ERROR(head_->tune(logits_, stream_));
    std::vector<int32_t> pages(kNumPages);
    std::iota(pages.begin(), pages.end(), 0);
    pages_ = put(pages);
    return stream_.synchronize();
  }
  Result<void*> allocate(int64_t bytes) {
    ESP_ASSIGN_OR_RETURN(cuda::DeviceBuffer buffer,
                         cuda::DeviceBuffer::allocate(bytes, "a test's memory"));
    ESP_RETURN_IF_ERROR(cuda::fill_bytes(buffer.data(), 0, bytes, stream_));
    buffers_.push_back(std::move(buffer));
    return static_cast<void*>(buffers_.back().data());
  }
  const int32_t* put(const std::vector<int32_t>& values) {
    const auto bytes = std::ssize(values) * 4;
    const auto to = allocate(bytes);
    EXPECT_TRUE(to);
    must(cuda::copy_to_device(*to, values.data(), bytes, stream_));
    must(stream_.synchronize());
    return static_cast<const int32_t*>(*to);
  }
  static std::vector<int32_t> ids(const std::vector<TokenId>& text, int32_t begin, int32_t count) {
    return {text.begin() + begin, text.begin() + begin + count};
  }
  CudaStep step_of(int32_t begin, const std::vector<int32_t>& tokens) {
    const auto count = static_cast<int32_t>(tokens.size());
    return {.ids = put(tokens),
            .entries = {.query_begin = put({0, count}),
                        .prefix_len = put({begin}),
                        .page_begin = put({0}),
                        .page_tables = pages_,
                        .num_entries = 1,
                        .num_tokens = count,
                        .max_query_tokens = count},
            .max_prefix_len = begin};
  }
  std::vector<float> read_logits() {
    std::vector<float> out(static_cast<size_t>(head_->info().draft_vocab_size));
    must(cuda::copy_to_host(out.data(), logits_, std::ssize(out) * 4, stream_));
    must(stream_.synchronize());
    return out;
  }

  const std::unique_ptr<CudaDecoder> target_;
  const std::unique_ptr<CudaDraftHead> head_;
  cuda::Stream stream_;
  std::vector<cuda::DeviceBuffer> buffers_;
  KvView view_;
  const int32_t* pages_ = nullptr;
  float *logits_ = nullptr, *target_logits_ = nullptr;
  int32_t done_ = 0;
};

float worst_difference(std::span<const float> a, std::span<const float> b) {
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= worst)) worst = std::abs(a[i] - b[i]);
  return worst;
}

std::span<const float> row_of(const std::vector<float>& logits, int32_t row, size_t width) {
  return std::span(logits).subspan(static_cast<size_t>(row) * width, width);
}

class DraftHeadCuda : public testing::Test {
 protected:
  void SetUp() override { ESPALIER_REQUIRE_DEVICE(); }
};

class DraftHeadsCuda : public DraftHeadCuda, public testing::WithParamInterface<HeadGolden> {};

TEST_P(DraftHeadsCuda, LogitsAreTheReferencesInAnyCut) {
  const HeadGolden& golden = GetParam();
  const HeadReference reference = read_head_reference(golden.head);
  const auto rows = static_cast<int32_t>(reference.tokens.size()) - kPasses;
  for (const auto& [dtype, tolerance] : {std::pair("float32", kFloat32Tolerance),
                                         std::pair("bfloat16", golden.bfloat16_tolerance)}) {
    if (tolerance == 0) continue;
    const auto run = CudaHeadRun::load(golden.target, golden.head, dtype);
    float worst = 0;
    for (const int32_t chunk : {1, 3, 7, 32}) {
      run->restart();
      for (int32_t done = 0; done < rows;) {
        const int32_t count = std::min(chunk, rows - done);
        const auto logits = run->add(reference.tokens, count, kPasses);
        done += count;
        for (size_t pass = 0; pass < logits.size(); ++pass) {
          const auto want = row_of(reference.logits[pass], done - 1, logits[pass].size());
          const float difference = worst_difference(logits[pass], want) / reference.spread;
          worst = std::max(worst, difference);
          EXPECT_LT(difference, tolerance)
              << dtype << ", chunks of " << chunk << ", token " << done << ", pass " << pass;
        }
      }
    }
    std::printf("%s: at most %.5f of the logits' spread\n", dtype, worst);
  }
}

// What fills the head's keys beside a chunk that nothing is sampled from.
TEST_P(DraftHeadsCuda, ChunksWithoutWantedRowsComputeTheirStates) {
  const HeadReference reference = read_head_reference(GetParam().head);
  const auto run = CudaHeadRun::load(GetParam().target, GetParam().head, "float32");
  for (const int32_t chunk : {7, 1, 9}) EXPECT_TRUE(run->add(reference.tokens, chunk, 0).empty());
  const auto logits = run->add(reference.tokens, 3, kPasses);
  for (size_t pass = 0; pass < logits.size(); ++pass)
    EXPECT_LT(
        worst_difference(logits[pass], row_of(reference.logits[pass], 19, logits[pass].size())),
        kFloat32Tolerance * reference.spread)
        << pass;
}

INSTANTIATE_TEST_SUITE_P(Goldens, DraftHeadsCuda, testing::ValuesIn(kHeadGoldens),
                         [](const auto& golden) { return std::string(golden.param.name); });

// Of layers for multi-token prediction.
TEST_F(DraftHeadCuda, EveryPartOfALayerMatters) {
  const std::pair<const char*, ChangeSpecs> changes[] = {
      {"mimo", [](DecoderSpec&, DecoderSpec& s) { s.draft->states_first = false; }},
      {"mimo", [](DecoderSpec& t, DecoderSpec&) { t.keeps_normed_states = true; }},
      {"mimo", [](DecoderSpec&, DecoderSpec& s) { s.names.final_norm = "model.norm"; }},
      {"glm4_moe", [](DecoderSpec&, DecoderSpec& s) { s.draft->states_first = true; }},
      {"glm4_moe", [](DecoderSpec& t, DecoderSpec&) { t.keeps_normed_states = false; }},
      {"glm4_moe", [](DecoderSpec&, DecoderSpec& s) { s.ropes[0].rotary_dim *= 2; }},
      {"glm4_moe", [](DecoderSpec&, DecoderSpec& s) { s.layers[0].experts->router.scale = 1; }},
  };
  for (const auto& [name, change] : changes) {
    const fs::path folder = fs::path("tests/golden/mtp") / name;
    const HeadReference reference = read_head_reference(folder);
    const auto run =
        CudaHeadRun::load(folder, folder, "float32", [&](DecoderSpec& target, DecoderSpec& head) {
          head.names.unused_prefixes = {""};
          change(target, head);
        });
    const auto logits = run->add(reference.tokens, 20, 2)[1];
    EXPECT_GT(worst_difference(logits, row_of(reference.logits[1], 19, logits.size())),
              10 * kFloat32Tolerance * reference.spread)
        << name;
  }
}

// A part that is left out, or in another's place, is another head.
TEST_F(DraftHeadCuda, EveryPartMatters) {
  const HeadReference reference = read_head_reference(kHeadFolder);
  for (const auto& [from, to] : {std::pair("\"rope_theta\": 500.0", "\"rope_theta\": 900.0"),
                                 std::pair("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0.5")}) {
    const TempFolder folder;
    fs::copy(kHeadFolder, folder.path(), fs::copy_options::recursive);
    std::string config = read_text_file(folder.path() / "config.json").value();
    const size_t at = config.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    folder.write("config.json", config.replace(at, std::string(from).size(), to));
    const auto run = CudaHeadRun::load(kHeadGoldens[0].target, folder.path(), "float32");
    const auto logits = run->add(reference.tokens, 20, 2)[1];
    EXPECT_GT(worst_difference(logits, row_of(reference.logits[1], 19, logits.size())),
              10 * kFloat32Tolerance * reference.spread)
        << to;
  }
}

}  // namespace
}  // namespace espalier
