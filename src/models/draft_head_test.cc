// Draft heads: logits as the reference has them in any cut, and what is wrong with a folder is
// named.
#include "models/draft_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/temp_folder.h"
#include "models/golden.h"
#include "models/model.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr char kTarget[] = "tests/golden/models/llama_tied_llama3";
constexpr char kHead[] = "tests/golden/draft/llama_tied_llama3";
constexpr int32_t kSteps = 4;
constexpr float kTolerance = 1e-4f;  // of the logits' spread

template <typename T>
std::vector<T> values(const SafetensorsFile& file, std::string_view name) {
  for (const CheckpointTensor& tensor : file.tensors()) {
    if (tensor.name != name) continue;
    const auto* data = reinterpret_cast<const T*>(tensor.bytes.data());
    return std::vector<T>(data, data + tensor.num_elements());
  }
  ADD_FAILURE() << name;
  return {};
}

struct Reference {
  std::vector<TokenId> tokens;
  std::vector<std::vector<float>> logits;  // of each step
  float spread = 0;
};

Reference read_reference() {
  const auto file = SafetensorsFile::open(std::string(kHead) + "/reference.safetensors");
  EXPECT_TRUE(file) << file.error().to_string();
  Reference out;
  for (const int32_t id : values<int32_t>(*file, "tokens")) out.tokens.push_back(id);
  for (int32_t step = 0; step < kSteps; ++step) {
    out.logits.push_back(values<float>(*file, "logits_" + std::to_string(step)));
  }
  const auto [least, most] = std::ranges::minmax(out.logits[0]);
  out.spread = most - least;
  return out;
}

// One sequence through the model and its head.
class HeadRun {
 public:
  explicit HeadRun(Model& model)
      : model_(model), rng_(3), kv_(model.info(), KvType::kFloat32, 4, 256, rng_) {}

  // The next `count` tokens, and a draft token behind them; then `steps` more, each behind the
  // text's own token. Returns the logits of each step.
  std::vector<std::vector<float>> add(const std::vector<TokenId>& text, int32_t count,
                                      int32_t steps) {
    ForwardBatch batch = batch_of(done_, count);
    for (int32_t i = 0; i < count; ++i) batch.token_ids.push_back(text.at(at(done_ + i)));
    const auto sink = [](int32_t, int32_t, std::span<const float>) {};
    static_cast<void>(model_.forward(batch, batch.token_ids, kv_.view(), sink));
    DraftHead& head = *model_.draft_head();
    for (int32_t i = 0; i < count; ++i) batch.token_ids[at(i)] = text.at(at(done_ + i + 1));
    std::vector<int32_t> rows(at(count));
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<std::vector<float>> out;
    EXPECT_EQ(head.draft(batch, rows, kv_.view()).size(), 1u);
    out.emplace_back(head.logits().begin(), head.logits().end());
    done_ += count;
    for (int32_t step = 1; step < steps; ++step) {
      ForwardBatch next = batch_of(done_ - 1 + step, 1);
      next.token_ids.push_back(text.at(at(done_ + step)));
      EXPECT_EQ(head.draft_next(next, std::vector<int32_t>{0}, kv_.view()).size(), 1u);
      out.emplace_back(head.logits().begin(), head.logits().end());
    }
    return out;
  }

 private:
  static size_t at(int32_t index) { return static_cast<size_t>(index); }

  ForwardBatch batch_of(int32_t begin, int32_t count) {
    ForwardBatch batch;
    const int32_t num_pages = (begin + count + 3) / 4;
    while (std::ssize(pages_) < num_pages) pages_.push_back(kv_.take_page());
    batch.page_tables = pages_;
    batch.entries.push_back({.slot = 0,
                             .num_query_tokens = count,
                             .prefix_len = begin,
                             .num_pages = num_pages,
                             .sample = true});
    for (int32_t i = 0; i < count; ++i) batch.positions.push_back(begin + i);
    return batch;
  }

  Model& model_;
  Rng rng_;
  golden::KvMemory kv_;
  std::vector<PageId> pages_;
  int32_t done_ = 0;
};

class DraftHeadTest : public testing::Test {
 protected:
  Result<std::unique_ptr<Model>> load(const std::filesystem::path& head, int32_t tp_size = 1) {
    return load_model({.path = kTarget,
                       .dtype = "float32",
                       .pool = &pool_,
                       .tp_size = tp_size,
                       .draft_path = head});
  }
  void expect_failure(StatusCode code, const char* message) {
    const auto model = load(folder_.path());
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().code(), code) << model.error().message();
    EXPECT_THAT(model.error().message(), HasSubstr(message));
  }
  void copy_head() {
    std::filesystem::copy(kHead, folder_.path(), std::filesystem::copy_options::recursive);
  }
  void edit(const char* file, const std::string& from, const std::string& to) {
    std::string text = read_text_file(folder_.path() / file).value();
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    folder_.write(file, text.replace(at, from.size(), to));
  }
  WorkPool pool_{2};
  TempFolder folder_;
};

float largest_difference(std::span<const float> a, std::span<const float> b) {
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}

TEST_F(DraftHeadTest, LogitsAreTheReferencesInAnyCut) {
  const auto model = load(kHead);
  ASSERT_TRUE(model) << model.error().to_string();
  ASSERT_TRUE((*model)->reserve(64, 4).ok());
  const Reference reference = read_reference();
  for (const int32_t chunk : {1, 3, 7, 32}) {
    HeadRun run(**model);
    const auto rows = static_cast<int32_t>(reference.tokens.size()) - kSteps;
    for (int32_t done = 0; done < rows;) {
      const int32_t count = std::min(chunk, rows - done);
      const auto logits = run.add(reference.tokens, count, kSteps);
      done += count;
      for (size_t step = 0; step < logits.size(); ++step) {
        const auto expected =
            std::span(reference.logits[step])
                .subspan(static_cast<size_t>(done - 1) * logits[step].size(), logits[step].size());
        EXPECT_LT(largest_difference(logits[step], expected), kTolerance * reference.spread)
            << "chunks of " << chunk << ", token " << done << ", step " << step;
      }
    }
  }
}

TEST_F(DraftHeadTest, TheModelsOwnLogitsStayTheSameBits) {
  const auto plain = load_model({.path = kTarget, .dtype = "float32", .pool = &pool_});
  const auto with_head = load(kHead);
  ASSERT_TRUE(plain && with_head);
  EXPECT_FALSE((*plain)->info().draft_kv);
  ASSERT_TRUE((*with_head)->info().draft_kv);
  const std::vector<std::vector<TokenId>> input = {read_reference().tokens};
  const auto run = [&](Model& model) {
    return golden::run_all(model, input, KvType::kFloat32, 4, 9, true);
  };
  EXPECT_EQ(run(**plain), run(**with_head));
}

// A part left out, or in another's place, is another head.
TEST_F(DraftHeadTest, EveryPartMatters) {
  const Reference reference = read_reference();
  for (const auto& [from, to] : {std::pair("\"rope_theta\": 500.0", "\"rope_theta\": 900.0"),
                                 std::pair("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0.5")}) {
    copy_head();
    edit("config.json", from, to);
    const auto model = load(folder_.path());
    ASSERT_TRUE(model) << model.error().to_string();
    ASSERT_TRUE((*model)->reserve(64, 4).ok());
    const auto logits = HeadRun(**model).add(reference.tokens, 20, 2)[1];
    const auto expected = std::span(reference.logits[1]).subspan(19 * logits.size(), logits.size());
    EXPECT_GT(largest_difference(logits, expected), 10 * kTolerance * reference.spread) << to;
    std::filesystem::remove_all(folder_.path());
    std::filesystem::create_directory(folder_.path());
  }
}

TEST_F(DraftHeadTest, NamesWhatIsWrong) {
  expect_failure(StatusCode::kNotFound, "the draft head");
  copy_head();
  const auto config = read_text_file(folder_.path() / "config.json").value();
  const auto with = [&](const char* from, const char* to, StatusCode code, const char* message) {
    edit("config.json", from, to);
    expect_failure(code, message);
    folder_.write("config.json", config);
  };
  with("LlamaForCausalLMEagle3", "LlamaForCausalLMEagle", StatusCode::kUnimplemented,
       "'LlamaForCausalLMEagle' is not known");
  with("\"hidden_size\": 64", "\"hidden_size\": 96", StatusCode::kInvalidArgument,
       "take the head of this model");
  with("\"draft_vocab_size\": 70", "\"draft_vocab_size\": 71", StatusCode::kInvalidArgument,
       "'d2t' must be I64 [71]");
  with("\"draft_vocab_size\": 70", "\"draft_vocab_size\": 900", StatusCode::kInvalidArgument,
       "draft_vocab_size");
  with("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2", StatusCode::kUnimplemented,
       "one layer");
  with("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true",
       StatusCode::kInvalidArgument, "tie_word_embeddings");
  with("\"rope_theta\": 500.0",
       "\"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [0, 1, 2]}",
       StatusCode::kInvalidArgument, "three of the target's first 2 layers");
  with("\"intermediate_size\": 48", "\"intermediate_size\": 47", StatusCode::kInvalidArgument,
       "midlayer.mlp.gate_proj.weight");
}

TEST_F(DraftHeadTest, RefusesRanks) {
  const auto model = load(kHead, 2);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(model.error().message(), HasSubstr("--speculative-draft-model-path"));
}

TEST_F(DraftHeadTest, RefusesADraftVocabularyBeyondTheTargets) {
  copy_head();
  std::string bytes = read_text_file(folder_.path() / "model.safetensors").value();
  const auto file = SafetensorsFile::open(folder_.path() / "model.safetensors");
  ASSERT_TRUE(file);
  size_t at = 0;
  for (const CheckpointTensor& tensor : file->tensors()) {
    if (tensor.name != "d2t") continue;
    const std::string needle(reinterpret_cast<const char*>(tensor.bytes.data()),
                             tensor.bytes.size());
    at = bytes.find(needle);
  }
  ASSERT_GT(at, 0u);
  bytes[at + 1] = 1;  // 256 more
  folder_.write("model.safetensors", bytes);
  expect_failure(StatusCode::kInvalidArgument, "'d2t' makes of draft token 0");
}

}  // namespace
}  // namespace espalier
