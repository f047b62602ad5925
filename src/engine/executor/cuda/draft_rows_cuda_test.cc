// Steps that verify draft tokens give what decode steps of the same tokens give, one after the
// other: tokens, log-probabilities, and keys and values for the steps behind them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/rng.h"
#include "engine/executor/cuda/cuda_executor.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kSharedPrefix = 7008, kSharing[] = {2, 3};  // of two slots
// Of each slot: cached tokens, and draft tokens behind the known one. One slot more is for a
// prompt.
constexpr int32_t kPrefix[] = {5, 700, kSharedPrefix, kSharedPrefix, 64, 1},
                  kDraftTokens[] = {0, 3, 8, 16, 1, 4};
constexpr int32_t kSlots = 6, kOffsets = 18, kRoom = 7104, kPrompt = 40, kVocab = 1000;
constexpr int32_t kFirstOutput = 7;

// Heads of 64, so that the tensor cores' kernels run.
constexpr const char* kDraftConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
  "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
  "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 8192,
  "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
  "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

// Whose pages hold the position.
int32_t owner_of(int32_t slot, int32_t position) {
  return slot == kSharing[1] && position < kSharedPrefix ? kSharing[0] : slot;
}

TokenId token_at(int32_t slot, int32_t position) {
  slot = owner_of(slot, position);
  return static_cast<TokenId>(mix64(static_cast<uint64_t>(slot * 10000 + position)) % kVocab);
}

struct Case {
  const char* name;
  std::string dtype = "bfloat16";
  bool deterministic = false, graphs = true, cascade = true;
  int32_t page_size = 1;
  float temperature = 0;
  // Of log-probabilities; tokens are compared where it is small. Rows of a step of another size are
  // summed in another order.
  float tolerance = 0.03f;
};

class CudaDraftTokens : public testing::TestWithParam<Case> {
 protected:
  using Results = std::vector<EntryResult>;

  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    folder_ = fs::path(testing::TempDir()) / "drafts_model";
    fs::create_directories(folder_);
    std::ofstream(folder_ / "config.json") << kDraftConfig;
  }

  std::unique_ptr<CudaExecutor> executor() {
    step_ = 0;
    const Case& c = GetParam();
    auto model = CudaDecoder::load(
        {.path = folder_, .format = LoadFormat::kDummy, .seed = 3, .dtype = c.dtype});
    EXPECT_TRUE(model) << model.error().message();
    const KvType type = (*model)->kv_type();
    auto made = CudaExecutor::create(std::move(*model), {.max_slots = kSlots + 1,
                                                         .max_draft_samples = 64,
                                                         .max_tokens = kSlots * kRoom,
                                                         .context_length = 8192,
                                                         .page_size = c.page_size,
                                                         .graphs = c.graphs,
                                                         .cascade = c.cascade,
                                                         .deterministic = c.deterministic});
    EXPECT_TRUE(made) << made.error().message();
    EXPECT_EQ((*made)->draft_samples_max(), 64);
    EXPECT_TRUE((*made)
                    ->allocate_kv({.num_layers = 3,
                                   .num_kv_heads = 2,
                                   .head_dim = 64,
                                   .type = type,
                                   .num_pages = (kSlots + 1) * pages_for(kRoom),
                                   .page_size = c.page_size})
                    .ok());
    return std::move(*made);
  }
  static int32_t pages_for(int32_t tokens) {
    return (tokens + GetParam().page_size - 1) / GetParam().page_size;
  }

  // Tokens [begin, begin + known + num_draft_tokens) of a slot, whose draft tokens are all sampled
  // behind.
  static void add_entry(ForwardBatch& batch, int32_t slot, int32_t begin, int32_t known,
                        int32_t num_draft_tokens) {
    BatchEntry& entry = batch.entries.emplace_back();
    entry.slot = slot;
    entry.num_query_tokens = known + num_draft_tokens;
    entry.prefix_len = begin;
    entry.query_begin = batch.num_tokens();
    entry.page_begin = static_cast<int32_t>(batch.page_tables.size());
    entry.num_pages = pages_for(begin + known + num_draft_tokens);
    entry.table_version = static_cast<uint64_t>(slot + 1);
    entry.sample = true;
    entry.output_index = kFirstOutput + begin - kPrefix[slot % kSlots];
    entry.num_draft_tokens = entry.num_draft_samples = num_draft_tokens;
    entry.draft_samples_begin = static_cast<int32_t>(batch.draft_samples.size());
    for (int32_t i = 0; i < num_draft_tokens; ++i) batch.draft_samples.push_back(i);
    for (int32_t i = begin; i < begin + known + num_draft_tokens; ++i) {
      batch.token_ids.push_back(token_at(slot, i));
      batch.positions.push_back(i);
    }
    for (int32_t i = 0; i < entry.num_pages; ++i)
      batch.page_tables.push_back(owner_of(slot, i * GetParam().page_size) * pages_for(kRoom) + i);
  }

  static std::shared_ptr<const SamplingSpec> sampling(int32_t slot) {
    auto spec = std::make_shared<SamplingSpec>();
    spec->temperature = GetParam().temperature;
    spec->seed = static_cast<uint64_t>(slot);
    spec->return_logprob = true;
    spec->top_logprobs_num = slot % 2 == 0 ? 2 : 0;
    return spec;
  }

  Results run(CudaExecutor& executor, ForwardBatch& batch) {
    batch.step = ++step_;
    executor.launch(batch);
    const StepResult& result = executor.wait(batch.step);
    const Results results = result.entries;
    graph_use_ = result.graph_use;
    for (const EntryResult& entry : results)
      EXPECT_TRUE(entry.status.ok()) << entry.status.message();
    return results;
  }

  void run_prompts(CudaExecutor& executor) {
    ForwardBatch batch;
    for (int32_t slot = 0; slot <= kSlots; ++slot)
      batch.slot_inits.push_back({.slot = slot, .sampling = sampling(slot)});
    for (int32_t slot = 0; slot < kSlots; ++slot)
      if (slot != kSharing[1]) add_entry(batch, slot, 0, kPrefix[slot], 0);
    run(executor, batch);
  }

  Results decode(CudaExecutor& executor, int32_t offset) {
    ForwardBatch batch;
    for (int32_t slot = 0; slot < kSlots; ++slot)
      add_entry(batch, slot, kPrefix[slot] + offset, 1, 0);
    return run(executor, batch);
  }

  void expect_like(TokenId token, const TokenLogprobs& got, const EntryResult& want,
                   const std::string& where) {
    const float tolerance = GetParam().tolerance;
    if (tolerance < 0.01f) {
      EXPECT_EQ(token, want.token) << where;
    }
    EXPECT_NEAR(got.logprob, want.logprobs.logprob, tolerance) << where;
    ASSERT_EQ(got.top.size(), want.logprobs.top.size()) << where;
    for (size_t i = 0; i < got.top.size(); ++i)
      EXPECT_NEAR(got.top[i].second, want.logprobs.top[i].second, tolerance) << where;
    if (std::isfinite(got.logprob))
      largest_ = std::max(largest_, std::abs(got.logprob - want.logprobs.logprob));
  }
  void expect_like(const ForwardBatch& batch, const Results& got, const std::vector<Results>& want,
                   const std::string& how) {
    for (size_t i = 0; i < batch.entries.size(); ++i) {
      const BatchEntry& entry = batch.entries[i];
      const auto slot = static_cast<size_t>(entry.slot);
      if (entry.slot == kSlots) continue;
      const std::string where = how + ", slot " + std::to_string(slot);
      const int32_t first = entry.output_index - kFirstOutput;
      const auto at = [&](int32_t offset) -> const EntryResult& {
        return want[static_cast<size_t>(first + offset)][slot];
      };
      expect_like(got[i].token, got[i].logprobs, at(0), where);
      ASSERT_EQ(std::ssize(got[i].draft_tokens), entry.num_draft_samples) << where;
      ASSERT_EQ(std::ssize(got[i].draft_logprobs), entry.num_draft_samples) << where;
      for (size_t k = 0; k < got[i].draft_tokens.size(); ++k)
        expect_like(got[i].draft_tokens[k], got[i].draft_logprobs[k],
                    at(1 + batch.draft_samples[static_cast<size_t>(entry.draft_samples_begin) + k]),
                    where + ", draft token " + std::to_string(k));
    }
  }

  std::vector<Results> decoded() {
    const auto reference = executor();
    run_prompts(*reference);
    std::vector<Results> want;
    for (int32_t offset = 0; offset < kOffsets; ++offset)
      want.push_back(decode(*reference, offset));
    return want;
  }

  fs::path folder_;
  uint64_t step_ = 0;
  GraphUse graph_use_ = GraphUse::kNone;  // of the last step
  float largest_ = 0;
};

TEST_P(CudaDraftTokens, GiveWhatDecodeStepsGive) {
  const std::vector<Results> want = decoded();
  const auto verifying = executor();
  run_prompts(*verifying);
  ForwardBatch draft;
  for (int32_t slot = 0; slot < kSlots; ++slot)
    add_entry(draft, slot, kPrefix[slot], 1, kDraftTokens[slot]);
  draft.shared_prefixes.push_back({.begin = 0, .end = kSharedPrefix, .num_entries = 2});
  draft.shared_entries = {kSharing[0], kSharing[1]};
  for (int round = 0; round < 3; ++round) {
    expect_like(draft, run(*verifying, draft), want, "round " + std::to_string(round));
    EXPECT_EQ(graph_use_, !GetParam().graphs ? GraphUse::kNone
                          : round == 0       ? GraphUse::kRecorded
                                             : GraphUse::kReplayed);
  }
  EXPECT_EQ(verifying->counts().verifications, 3);
  if (GetParam().cascade && !GetParam().deterministic && GetParam().dtype == "bfloat16") {
    EXPECT_EQ(verifying->counts().cascades, 3);
  }
  EXPECT_EQ(verifying->counts().replays, GetParam().graphs ? 2 : 0);
  // All are accepted: the steps behind them read what the verification has written.
  ForwardBatch next;
  for (int32_t slot = 0; slot < kSlots; ++slot)
    add_entry(next, slot, kPrefix[slot] + kDraftTokens[slot] + 1, 1, 0);
  expect_like(next, run(*verifying, next), want, "behind the draft tokens");
  std::printf("%s: largest difference of a log-probability %g\n", GetParam().name,
              static_cast<double>(largest_));
}

// Other draft tokens than those that come: what is sampled behind the known token is right all the
// same, and what the rejected ones have written is written over.
TEST_P(CudaDraftTokens, LeaveNothingWhereTheyAreRejected) {
  const std::vector<Results> want = decoded();
  const auto verifying = executor();
  run_prompts(*verifying);
  ForwardBatch wrong;
  for (int32_t slot = 0; slot < kSlots; ++slot)
    add_entry(wrong, slot, kPrefix[slot], 1, kDraftTokens[slot]);
  for (const BatchEntry& entry : wrong.entries)
    for (int32_t i = 1; i < entry.num_query_tokens; ++i)
      wrong.token_ids[static_cast<size_t>(entry.query_begin + i)] = (i * 31) % kVocab;
  const Results results = run(*verifying, wrong);
  for (int32_t slot = 0; slot < kSlots; ++slot)
    expect_like(results[static_cast<size_t>(slot)].token,
                results[static_cast<size_t>(slot)].logprobs, want[0][static_cast<size_t>(slot)],
                "known, slot " + std::to_string(slot));
  for (int32_t offset = 1; offset < kOffsets; offset += 4) {
    ForwardBatch draft;
    for (int32_t slot = 0; slot < kSlots; ++slot)
      add_entry(draft, slot, kPrefix[slot] + offset, 1, std::min(3, kOffsets - 1 - offset));
    expect_like(draft, run(*verifying, draft), want, "offset " + std::to_string(offset));
  }
}

// Beside a prompt, behind a chunk of several known tokens, and with draft tokens that nothing is
// sampled behind.
TEST_P(CudaDraftTokens, GoWithPromptsChunksAndForcedTokens) {
  const std::vector<Results> want = decoded();
  const auto verifying = executor();
  run_prompts(*verifying);
  ForwardBatch draft;
  add_entry(draft, 0, kPrefix[0], 1, 6);
  draft.draft_samples = {0, 3};
  draft.entries[0].num_draft_samples = 2;
  add_entry(draft, 1, kPrefix[1], 3, 5);
  draft.entries[1].output_index += 2;
  add_entry(draft, kSlots, 0, kPrompt, 0);
  add_entry(draft, 2, kPrefix[2], 1, 2);
  expect_like(draft, run(*verifying, draft), want, "mixed");
  ForwardBatch next;
  add_entry(next, 0, kPrefix[0] + 7, 1, 0);
  add_entry(next, 1, kPrefix[1] + 8, 1, 0);
  add_entry(next, 2, kPrefix[2] + 3, 1, 0);
  expect_like(next, run(*verifying, next), want, "behind it");
}

// The mask of each row is its own.
TEST_P(CudaDraftTokens, HaveMasksOfTheirOwn) {
  const auto verifying = executor();
  run_prompts(*verifying);
  constexpr int32_t kWords = (kVocab + 31) / 32;
  ForwardBatch draft;
  for (int32_t slot = 1; slot < 4; ++slot)
    add_entry(draft, slot, kPrefix[slot], 1, kDraftTokens[slot]);
  draft.entries[0].has_mask = draft.entries[2].has_mask = true;
  std::vector<uint32_t> words;
  const auto allow = [&](int32_t token) {
    words.resize(words.size() + kWords, 0);
    words[words.size() - kWords + static_cast<size_t>(token / 32)] = 1u << (token % 32);
  };
  for (int32_t row = 0; row <= kDraftTokens[1]; ++row) allow(100 + row);
  for (int32_t row = 0; row <= kDraftTokens[3]; ++row) allow(500 + 3 * row);
  draft.step = ++step_;
  verifying->launch(draft);
  verifying->provide_masks(draft.step, {.words = words, .words_per_mask = kWords});
  const StepResult& result = verifying->wait(draft.step);
  const auto expect_rows = [](const EntryResult& entry, int32_t first, int32_t apart) {
    ASSERT_TRUE(entry.status.ok()) << entry.status.message();
    EXPECT_EQ(entry.token, first);
    for (size_t k = 0; k < entry.draft_tokens.size(); ++k)
      EXPECT_EQ(entry.draft_tokens[k], first + apart * (static_cast<int32_t>(k) + 1)) << k;
  };
  expect_rows(result.entries[0], 100, 1);
  expect_rows(result.entries[2], 500, 3);
  EXPECT_TRUE(result.entries[1].status.ok());
}

INSTANTIATE_TEST_SUITE_P(
    Steps, CudaDraftTokens,
    testing::Values(
        Case{.name = "plain"}, Case{.name = "no_graphs", .graphs = false},
        Case{.name = "no_cascade", .cascade = false}, Case{.name = "pages_of_16", .page_size = 16},
        Case{.name = "float32", .dtype = "float32", .tolerance = 1e-3f},
        Case{.name = "float32_drawn", .dtype = "float32", .temperature = 0.9f, .tolerance = 1e-3f},
        Case{.name = "deterministic", .deterministic = true, .tolerance = 0},
        Case{.name = "deterministic_drawn",
             .deterministic = true,
             .page_size = 16,
             .temperature = 0.8f,
             .tolerance = 0}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace espalier
