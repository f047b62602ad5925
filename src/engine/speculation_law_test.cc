// The law of sampled tokens does not depend on draft tokens: an engine over the CPU's executor and
// a model whose logits are known draws tokens with each drafter, and each token is compared with
// the law that the request's parameters and the tokens before it give.
//
// With U uniform, F(x-) + U * p(x) of a drawn x is uniform in [0, 1) whatever p is, and independent
// of the draws before. So one chi square over cells of [0, 1) tests laws that change with every
// token, as penalties make them do. ESPALIER_LAW_TOKENS sets how many tokens each case draws, and
// has the cases' p-values printed; ESPALIER_LAW_SEED is added to their seeds.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "engine/executor/cpu_executor.h"
#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

constexpr std::string_view kLetters = "abcdefgh";  // all that is likely
constexpr int32_t kTokensOfOne = 60;
constexpr size_t kNumCells = 40;

int32_t number_in(const char* variable, int32_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}
int32_t num_tokens_of_a_case() { return number_in("ESPALIER_LAW_TOKENS", 1500); }

// Logits after a token: one letter of eight is likely, all else is next to impossible.
std::vector<float> logits_after(TokenId token) {
  std::vector<float> row(kByteVocabSize, -30.0f);
  Rng rng(static_cast<uint64_t>(token) + 17);
  for (const char letter : kLetters)
    row[static_cast<size_t>(letter)] = static_cast<float>(rng.uniform() * 2);
  row[static_cast<size_t>(kLetters[rng.below(kLetters.size())])] += 2.5f;
  return row;
}

// Predicts the likeliest token, which is right in a third to a half of all draws.
class MarkovHead final : public DraftHead {
 public:
  explicit MarkovHead(bool reads_states) {
    info_.reads_states = reads_states;
    info_.draft_vocab_size = kByteVocabSize;
    for (TokenId token = 0; token < kByteVocabSize; ++token) {
      const std::vector<float> row = logits_after(token);
      likeliest_.push_back(static_cast<TokenId>(std::ranges::max_element(row) - row.begin()));
    }
  }
  const DraftHeadInfo& info() const override { return info_; }
  std::span<const TokenId> draft(const ForwardBatch& batch, std::span<const int32_t>,
                                 const KvView&) override {
    drafted_.clear();
    for (const BatchEntry& entry : batch.entries) {
      if (!entry.sample) continue;
      const int32_t last = entry.query_begin + entry.num_query_tokens - 1;
      drafted_.push_back(
          likeliest_[static_cast<size_t>(batch.token_ids[static_cast<size_t>(last)])]);
    }
    return drafted_;
  }
  std::span<const TokenId> draft_next(const ForwardBatch& batch, std::span<const int32_t> rows,
                                      const KvView& kv) override {
    return draft(batch, rows, kv);
  }
  Status reserve(int32_t, int32_t) override { return {}; }
  DraftKvInfo kv_info() const override { return {}; }
  std::span<const float> logits() const override { return {}; }

 private:
  DraftHeadInfo info_;
  std::vector<TokenId> likeliest_, drafted_;
};

class MarkovModel final : public Model {
 public:
  explicit MarkovModel(const SpeculationSettings& settings) {
    info_.vocab_size = kByteVocabSize;
    for (TokenId token = 0; token < kByteVocabSize; ++token) table_.push_back(logits_after(token));
    if (settings.has_draft_head())
      head_ = std::make_unique<MarkovHead>(!settings.has_draft_model());
  }
  const ModelInfo& info() const override { return info_; }
  DraftHead* draft_head() override { return head_.get(); }
  Status reserve(int32_t, int32_t) override { return {}; }
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView&, const InputLogitsSink&) override {
    rows_.clear();
    for (const BatchEntry& entry : batch.entries) {
      if (!entry.sample) continue;
      const int32_t last = entry.query_begin + entry.last_known();
      append(token_ids[static_cast<size_t>(last)]);
      for (int32_t k = 0; k < entry.num_draft_samples; ++k) {
        const int32_t index =
            batch.draft_samples[static_cast<size_t>(entry.draft_samples_begin + k)];
        append(token_ids[static_cast<size_t>(last + 1 + index)]);
      }
    }
    return {.sample_logits = rows_};
  }

 private:
  void append(TokenId token) {
    const std::vector<float>& row = table_[static_cast<size_t>(token)];
    rows_.insert(rows_.end(), row.begin(), row.end());
  }
  ModelInfo info_;
  std::unique_ptr<MarkovHead> head_;
  std::vector<std::vector<float>> table_;
  std::vector<float> rows_;
};

std::unique_ptr<Engine> make_engine(const std::string& algorithm, bool overlap) {
  EngineConfig config{.compute = {.disable_overlap_schedule = !overlap},
                      .speculation = {.speculative_algorithm = algorithm}};
  if (config.speculation.has_draft_model())
    config.speculation.speculative_draft_model_path = "of the test";
  config.cache.max_total_tokens = 20000;
  config.schedule.max_running_requests = 8;
  config.sampling.random_seed = 1;
  constexpr int32_t kSlots = 8;
  const int32_t num_pages = config.cache.max_total_tokens;
  CpuExecutorParts parts{
      .pool = std::make_unique<WorkPool>(1),
      .model = std::make_unique<MarkovModel>(config.speculation),
      .kv = *KvPool::create({.num_layers = 1,
                             .num_kv_heads = 1,
                             .head_dim = 8,
                             .num_pages = num_pages + DraftChains::num_pages(kSlots, 1)})};
  auto executor = CpuExecutor::create(
      std::move(parts), {.max_slots = kSlots, .max_tokens = 1024, .first_chain_page = num_pages});
  EXPECT_TRUE(executor) << executor.error().to_string();
  Engine::Parts made{
      .executor = std::move(*executor),
      .info = {.vocab_size = kByteVocabSize, .context_length = 4096, .eos_ids = {kByteEosId}}};
  made.tokenizer = make_byte_tokenizer();
  auto engine = Engine::create(config, std::move(made));
  EXPECT_TRUE(engine) << engine.error().to_string();
  return engine ? std::move(*engine) : nullptr;
}

// The tokens that the parameters leave, with their probabilities: seams/sampling.h's definition.
std::vector<double> law_of(const SamplingParams& params, std::span<const TokenId> text,
                           size_t prompt_size, std::string_view allowed) {
  const std::vector<float> logits = logits_after(text.back());
  std::vector<double> row(logits.begin(), logits.end());
  std::vector<int> seen(row.size()), drawn(row.size());
  for (size_t i = 0; i < text.size(); ++i) {
    ++seen[static_cast<size_t>(text[i])];
    if (i >= prompt_size) ++drawn[static_cast<size_t>(text[i])];
  }
  for (size_t t = 0; t < row.size(); ++t) {
    row[t] -= double{params.frequency_penalty.value_or(0)} * drawn[t] +
              (drawn[t] > 0 ? double{params.presence_penalty.value_or(0)} : 0);
    const double repeated = params.repetition_penalty.value_or(1);
    if (seen[t] > 0) row[t] = row[t] > 0 ? row[t] / repeated : row[t] * repeated;
    const auto bias = params.logit_bias.find(static_cast<TokenId>(t));
    if (bias != params.logit_bias.end()) row[t] += double{bias->second};
    const bool in_mask = t < 256 && allowed.find(static_cast<char>(t)) != std::string_view::npos;
    if (!allowed.empty() && !in_mask) row[t] = -std::numeric_limits<double>::infinity();
    row[t] /= double{params.temperature.value_or(1)};
  }
  const double max = *std::ranges::max_element(row);
  for (double& x : row) x = std::exp(x - max);
  const double total = std::accumulate(row.begin(), row.end(), 0.0);
  for (double& x : row) x /= total;
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return row[a] > row[b]; });
  std::vector<double> kept(row.size());
  double before = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const double p = row[order[rank]];
    const int32_t top_k = params.top_k.value_or(-1);
    if ((top_k > 0 && rank >= static_cast<size_t>(top_k)) ||
        before > double{params.top_p.value_or(1)} ||
        p < double{params.min_p.value_or(0)} * row[order[0]])
      break;
    kept[order[rank]] = p;
    before += p;
  }
  for (double& x : kept) x /= before;
  return kept;
}

struct Case {
  std::string name;
  SamplingParams params;
  std::string_view allowed;  // by a grammar; empty: all
};

std::vector<Case> make_cases() {
  std::vector<Case> cases(11);
  size_t count = 0;
  const auto add = [&](const char* name, float temperature) -> SamplingParams& {
    cases[count].name = name;
    cases[count].params.temperature = temperature;
    return cases[count++].params;
  };
  add("temperature 1", 1.0f);
  add("temperature 0.5", 0.5f);
  add("temperature 1.7", 1.7f);
  add("top-k", 1.2f).top_k = 3;
  add("top-p", 1.2f).top_p = 0.83f;
  add("min-p", 1.2f).min_p = 0.12f;
  SamplingParams& filters = add("all filters", 1.4f);
  filters.top_k = 5, filters.top_p = 0.9f, filters.min_p = 0.04f;
  add("bias", 1.0f).logit_bias = {{'a', 1.5f}};
  SamplingParams& penalties = add("penalties", 1.0f);
  penalties.frequency_penalty = 0.2f, penalties.presence_penalty = 0.3f;
  penalties.repetition_penalty = 1.1f;
  add("mask", 1.0f);
  cases[count - 1].allowed = "aceg";
  add("mask and filters", 1.3f).top_p = 0.9f;
  cases[count - 1].allowed = "bcdefh";
  for (Case& c : cases)
    if (!c.allowed.empty())
      c.params.regex = "[" + std::string(c.allowed) + "]{" + std::to_string(2 * kTokensOfOne) + "}";
  return cases;
}

struct Drawn {
  std::vector<TokenId> prompt, output;
};

std::vector<Drawn> draw(Engine& engine, const Case& c, uint64_t first_seed) {
  std::vector<Drawn> all;
  const int32_t count = (num_tokens_of_a_case() + kTokensOfOne - 1) / kTokensOfOne;
  for (int32_t i = 0; i < count; ++i) {
    GenerateRequest request{.input_ids = bytes_of(i % 2 == 0 ? "abcabc" : "hgf"),
                            .sampling = c.params};
    request.sampling.max_new_tokens = kTokensOfOne;
    request.sampling.ignore_eos = true;
    request.sampling.sampling_seed = first_seed + static_cast<uint64_t>(i);
    const auto answer = engine.generate(request);
    EXPECT_TRUE(answer) << answer.error().to_string();
    if (!answer) return {};
    EXPECT_EQ(answer->output_ids.size(), size_t{kTokensOfOne});
    all.push_back({request.input_ids, answer->output_ids});
  }
  return all;
}

double chi_square(const std::vector<Drawn>& all, const SamplingParams& params,
                  std::string_view allowed) {
  std::vector<double> cells(kNumCells);
  Rng rng(99);
  double count = 0;
  for (const Drawn& drawn : all) {
    std::vector<TokenId> text = drawn.prompt;
    for (const TokenId token : drawn.output) {
      const std::vector<double> law = law_of(params, text, drawn.prompt.size(), allowed);
      const auto at = law.begin() + token;
      EXPECT_GT(*at, 0) << "a token that cannot come";
      const double u = std::accumulate(law.begin(), at, 0.0) + rng.uniform() * *at;
      ++cells[std::min(kNumCells - 1, static_cast<size_t>(u * kNumCells))];
      ++count;
      text.push_back(token);
    }
  }
  double chi = 0;
  const double expected = count / kNumCells;
  for (const double cell : cells) chi += (cell - expected) * (cell - expected) / expected;
  return chi;
}

// The probability of at least this chi square, by Wilson and Hilferty's approximation.
double p_value(double chi) {
  const double freedom = kNumCells - 1, part = 2 / (9 * freedom);
  const double z = (std::cbrt(chi / freedom) - (1 - part)) / std::sqrt(part);
  return std::erfc(z / std::sqrt(2)) / 2;
}
constexpr double kTests = 132;  // 6 drafters with and without overlap, 11 cases each
constexpr double kLeastP = 0.001 / kTests;

// The drafter, and whether steps overlap.
class SpeculationLaw : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  const std::string drafter_ = std::get<0>(GetParam());
  const bool overlap_ = std::get<1>(GetParam());

  double p_of(const std::vector<Drawn>& all, const Case& c) const {
    const double p = p_value(chi_square(all, c.params, c.allowed));
    if (std::getenv("ESPALIER_LAW_TOKENS") != nullptr)
      std::printf("law: %-9s %-10s %-17s %zu tokens, p %.5f\n", drafter_.c_str(),
                  overlap_ ? "overlap" : "no overlap", c.name.c_str(), all.size() * kTokensOfOne,
                  p);
    return p;
  }
};

TEST_P(SpeculationLaw, IsThatOfTheParameters) {
  // Other tokens for each drafter: of one seed all would draw the same.
  uint64_t seed = std::hash<std::string>()(drafter_) % 1'000'000'007 * (overlap_ ? 2 : 1) +
                  static_cast<uint64_t>(number_in("ESPALIER_LAW_SEED", 0));
  auto engine = make_engine(drafter_, overlap_);
  ASSERT_NE(engine, nullptr);
  const auto by_head = [&] {
    const auto by_drafter = engine->stats().speculation.by_drafter;
    return by_drafter[static_cast<size_t>(Drafter::kHead)].drafted_tokens;
  };
  const bool has_head = drafter_ == "EAGLE3" || drafter_ == "STANDALONE";
  for (const Case& c : make_cases()) {
    const int64_t before = by_head();
    EXPECT_GT(p_of(draw(*engine, c, seed += 10'000'000), c), kLeastP) << c.name;
    if (c.allowed.empty() || !has_head) {
      EXPECT_EQ(by_head() > before, has_head) << c.name;
    }
  }
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.speculation.accepted_tokens, 0);  // masks have a drafter of their own
  EXPECT_GT(stats.speculation.drafted_tokens, stats.speculation.accepted_tokens)
      << "none was refused";
  int64_t by_others = 0;
  for (const Drafter drafter : {Drafter::kNgram, Drafter::kRadix, Drafter::kHead})
    by_others += stats.speculation.by_drafter[static_cast<size_t>(drafter)].verify_steps;
  EXPECT_EQ(by_others > 0, drafter_ != "none");
}

// The test distinguishes laws: what is drawn at one temperature is refused as that of another.
TEST_P(SpeculationLaw, OfOtherParametersIsRefused) {
  auto engine = make_engine(drafter_, overlap_);
  ASSERT_NE(engine, nullptr);
  const Case c{"temperature 1", {.temperature = 1.0f}, {}};
  const std::vector<Drawn> all = draw(*engine, c, 7);
  EXPECT_GT(p_value(chi_square(all, c.params, {})), kLeastP);
  EXPECT_LT(p_value(chi_square(all, {.temperature = 1.4f}, {})), kLeastP);
}

INSTANTIATE_TEST_SUITE_P(Drafters, SpeculationLaw,
                         testing::Combine(testing::Values("none", "NGRAM", "RADIX", "COMBINED",
                                                          "EAGLE3", "STANDALONE"),
                                          testing::Bool()),
                         [](const auto& param) {
                           return std::get<0>(param.param) +
                                  (std::get<1>(param.param) ? "_overlap" : "");
                         });

}  // namespace
}  // namespace espalier
