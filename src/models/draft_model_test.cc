// A draft model beside a model: both have the logits that each has alone, in any cut.
#include "models/draft_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "models/golden.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using testing::HasSubstr;

const std::filesystem::path kModels = "tests/golden/models";
constexpr KvType kType = KvType::kFloat32;

class DraftModelTest : public testing::Test {
 protected:
  Result<std::unique_ptr<Model>> load(const char* name, const char* draft = nullptr) {
    ModelLoadOptions options{.path = kModels / name, .dtype = "float32", .pool = &pool_};
    if (draft != nullptr) options.draft_model_path = kModels / draft;
    return load_model(options);
  }
  WorkPool pool_{2};
  const std::vector<TokenId> text_ = golden::read("llama_tied_llama3").sequences[0].tokens;
};

TEST_F(DraftModelTest, TheModelsOwnLogitsStayTheSameBits) {
  const auto plain = load("llama_tied_llama3");
  const auto drafted = load("llama_tied_llama3", "qwen3_head_dim");
  ASSERT_TRUE(plain && drafted) << drafted.error().to_string();
  const auto run = [&](Model& model) { return golden::run_all(model, {text_}, kType, 4, 9, true); };
  EXPECT_EQ(run(**plain), run(**drafted));
  ASSERT_TRUE((*drafted)->info().draft_kv);
  EXPECT_EQ((*drafted)->info().draft_kv->num_layers, 3);
  EXPECT_EQ((*drafted)->info().draft_kv->head_dim, 32);
}

// The logits behind each token that ends a chunk, through the pages of the two.
TEST_F(DraftModelTest, DraftsAsItDoesAlone) {
  const auto alone = load("qwen3_head_dim");
  const auto drafted = load("llama_tied_llama3", "qwen3_head_dim");
  ASSERT_TRUE(alone && drafted);
  const auto expected = golden::run_all(**alone, {text_}, kType, 4, 64, true)[0];
  const auto width = static_cast<size_t>((*alone)->info().vocab_size);
  ASSERT_TRUE((*drafted)->reserve(64, 1).ok());
  DraftHead& draft = *(*drafted)->draft_head();
  EXPECT_FALSE(draft.info().reads_states);
  for (const int32_t chunk : {1, 3, 7, 32}) {
    Rng rng(4);
    golden::KvMemory kv((*drafted)->info(), kType, 4, 256, rng);
    ForwardBatch batch;
    const auto count = static_cast<int32_t>(text_.size());
    for (int32_t done = 0; done < count; done += chunk) {
      const int32_t end = std::min(done + chunk, count);
      while (std::ssize(batch.page_tables) < (end + 3) / 4)
        batch.page_tables.push_back(kv.take_page());
      batch.entries = {{.slot = 0,
                        .num_query_tokens = end - done,
                        .prefix_len = done,
                        .num_pages = (end + 3) / 4,
                        .sample = true}};
      batch.token_ids.assign(text_.begin() + done, text_.begin() + end);
      batch.positions.resize(batch.token_ids.size());
      std::iota(batch.positions.begin(), batch.positions.end(), done);
      const auto best = draft.draft(batch, {}, kv.view());
      const auto row = std::span(expected).subspan(static_cast<size_t>(end - 1) * width, width);
      EXPECT_THAT(draft.logits(), testing::ElementsAreArray(row)) << chunk << ", " << end;
      EXPECT_THAT(best, testing::ElementsAre(std::ranges::max_element(row) - row.begin()));
    }
  }
}

TEST_F(DraftModelTest, SaysWhatDoesNotGoTogether) {
  const auto latents = load("llama_tied_llama3", "deepseek_v3");
  ASSERT_FALSE(latents);
  EXPECT_THAT(latents.error().message(),
              HasSubstr("the draft model DeepseekV3ForCausalLM keeps latents, and LlamaForCausalLM "
                        "keeps keys and values"));
  EXPECT_FALSE(load("deepseek_v3", "llama_tied_llama3"));
  const auto missing = load("llama_tied_llama3", "none_such");
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message(), HasSubstr("none_such"));
}

}  // namespace
}  // namespace espalier
