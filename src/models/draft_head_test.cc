// Draft heads: logits as the reference has them in any cut, and what is wrong with a folder is
// named.
#include "models/draft_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/temp_folder.h"
#include "models/head_run.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr char kTarget[] = "tests/golden/models/llama_tied_llama3";
constexpr char kHead[] = "tests/golden/draft/llama_tied_llama3";
constexpr float kTolerance = 1e-4f;  // of the logits' spread

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

TEST_F(DraftHeadTest, LogitsAreTheReferencesInAnyCut) {
  const auto model = load(kHead);
  ASSERT_TRUE(model) << model.error().to_string();
  ASSERT_TRUE((*model)->reserve(64, 4).ok());
  const HeadReference reference = read_head_reference(kHead);
  expect_head_logits(**model, reference, kTolerance);
}

TEST_F(DraftHeadTest, TheModelsOwnLogitsStayTheSameBits) {
  const auto plain = load_model({.path = kTarget, .dtype = "float32", .pool = &pool_});
  const auto with_head = load(kHead);
  ASSERT_TRUE(plain && with_head);
  EXPECT_FALSE((*plain)->info().draft_kv);
  ASSERT_TRUE((*with_head)->info().draft_kv);
  const std::vector<std::vector<TokenId>> input = {read_head_reference(kHead).tokens};
  const auto run = [&](Model& model) {
    return golden::run_all(model, input, KvType::kFloat32, 4, 9, true);
  };
  EXPECT_EQ(run(**plain), run(**with_head));
}

// A part left out, or in another's place, is another head.
TEST_F(DraftHeadTest, EveryPartMatters) {
  const HeadReference reference = read_head_reference(kHead);
  for (const auto& [from, to] : {std::pair("\"rope_theta\": 500.0", "\"rope_theta\": 900.0"),
                                 std::pair("\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0.5")}) {
    copy_head();
    edit("config.json", from, to);
    const auto model = load(folder_.path());
    ASSERT_TRUE(model) << model.error().to_string();
    ASSERT_TRUE((*model)->reserve(64, 4).ok());
    const auto logits = HeadRun(**model).add(reference.tokens, 20, 2)[1];
    const auto expected = expected_row(reference, 1, 20, logits.size());
    EXPECT_GT(head_difference(logits, expected), 10 * kTolerance * reference.spread) << to;
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

// The head runs whole beside ranks, which sum in another order and have a part of the embedding
// each.
TEST_F(DraftHeadTest, LogitsAreTheReferencesBesideRanks) {
  const HeadReference reference = read_head_reference(kHead);
  for (const int32_t ranks : {2, 4}) {
    const auto model = load(kHead, ranks);
    ASSERT_TRUE(model) << model.error().to_string();
    ASSERT_TRUE((*model)->reserve(64, 4).ok());
    expect_head_logits(**model, reference, kTolerance);
  }
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
