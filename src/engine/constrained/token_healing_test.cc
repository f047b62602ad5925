// Token healing: what is taken back and what may come instead, against trying every token; and
// whole answers of the model that ships.
#include "engine/constrained/token_healing.h"

#include <gtest/gtest.h>

#include <regex>

#include "base/rng.h"
#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

constexpr const char* kTexts[] = {"Hermione walked to the lib",
                                  "http:",
                                  "There are 12 gob",
                                  "\"name\": \"Har",
                                  "caf\xc3\xa9 cr\xc3\xa8",
                                  "a  b\n\n",
                                  "x"};

class TokenHealing : public testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = load_tokenizer("share/default_model");
    ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
    tokenizer_ = std::move(*tokenizer);
    tokens_ = std::make_unique<TokensByBytes>(*tokenizer_);
    trie_ = std::make_shared<const grammar::TokenTrie>(tokenizer_->vocab());
  }
  std::vector<TokenId> encode(std::string_view text) const {
    return tokenizer_->encode(text, {.add_special_tokens = false});
  }
  std::string bytes_of(std::span<const TokenId> ids) const {
    std::string text;
    for (const TokenId id : ids) text += tokens_->bytes_of(id);
    return text;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<TokensByBytes> tokens_;
  std::shared_ptr<const grammar::TokenTrie> trie_;
};

TEST_F(TokenHealing, TakesBackWhatALongerTokenBeginsWith) {
  size_t healed = 0;
  for (const std::string_view whole : kTexts) {
    for (size_t size = 1; size <= whole.size(); ++size) {
      const std::vector<TokenId> ids = encode(whole.substr(0, size));
      size_t expected = 0;
      for (size_t count = 1; count <= kHealedTokensMax && count < ids.size(); ++count) {
        const std::string tail = bytes_of(std::span(ids).last(count));
        bool longer = (static_cast<uint8_t>(tail[0]) & 0xc0) != 0x80;
        if (longer) {
          longer = false;
          for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id) {
            const std::string_view bytes = tokens_->bytes_of(id);
            longer |= bytes.size() > tail.size() && bytes.starts_with(tail);
          }
        }
        if (longer) expected = count;
      }
      EXPECT_EQ(num_tokens_to_heal(*tokens_, ids), expected) << whole.substr(0, size);
      healed += expected;
    }
  }
  EXPECT_GT(healed, 20u);
  const TokenId eos = tokenizer_->vocab().eos_ids[0];
  EXPECT_EQ(num_tokens_to_heal(*tokens_, std::vector{eos, eos}), 0u);
  EXPECT_EQ(num_tokens_to_heal(*tokens_, std::vector<TokenId>{}), 0u);
}

TEST_F(TokenHealing, MasksEqualTryingEachToken) {
  const auto grammar = compile_grammar(
      {.kind = grammar::GrammarSpec::Kind::kRegex, .source = "(rary|rarian)s?( at [0-9]+)?\\."},
      trie_);
  ASSERT_TRUE(grammar) << grammar.error().to_string();
  grammar::Matcher matcher(*grammar);
  std::vector<uint32_t> words(static_cast<size_t>(trie_->words_per_mask()));
  for (const std::string left : {" lib", "b", "lib", "\xc3\xa9", " "}) {
    for (grammar::Matcher* rest_of : {static_cast<grammar::Matcher*>(nullptr), &matcher}) {
      fill_healing_mask(*tokens_, left, rest_of, words);
      int64_t allowed = 0;
      for (TokenId id = 0; id < tokenizer_->vocab_size(); ++id) {
        const std::string_view bytes = tokens_->bytes_of(id);
        bool expected = false;
        if (!bytes.empty() && bytes.size() <= left.size()) {
          expected = left.starts_with(bytes);
        } else if (bytes.starts_with(left)) {
          grammar::Matcher fresh(*grammar);
          expected = rest_of == nullptr || fresh.accept_bytes(bytes.substr(left.size()));
        }
        const bool bit = words[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
        ASSERT_EQ(bit, expected && !bytes.empty()) << left << ": " << bytes;
        allowed += bit ? 1 : 0;
      }
      EXPECT_GT(allowed, 0) << left;
      EXPECT_EQ(matcher.steps(), 0u);
    }
  }
}

TEST_F(TokenHealing, AnswersGoOnFromThePromptsText) {
  auto made = Engine::create(
      {.model = {.model_path = "share/default_model"}, .cache = {.max_total_tokens = 4096}});
  ASSERT_TRUE(made) << made.error().to_string();
  Engine& engine = **made;
  int healed = 0;
  for (const std::string prompt : kTexts) {
    const std::vector<TokenId> ids = encode(prompt);
    for (const char* regex : {"", "[a-z]{3,9}[.!]"}) {
      GenerateRequest request{.input_ids = ids,
                              .sampling = {.max_new_tokens = 24, .temperature = 0.0f},
                              .return_logprob = true};
      if (*regex != 0) request.sampling.regex = regex;
      const auto plain = engine.generate(request);
      request.sampling.token_healing = true;
      const auto answer = engine.generate(request);
      ASSERT_TRUE(plain && answer) << answer.error().to_string();
      const size_t taken = num_tokens_to_heal(*tokens_, ids);
      EXPECT_EQ(answer->stats.prompt_tokens, static_cast<int32_t>(ids.size() - taken));
      const std::string left = bytes_of(std::span(ids).last(taken));
      const std::string spelt = bytes_of(answer->output_ids);
      ASSERT_TRUE(spelt.starts_with(left)) << prompt << ": " << spelt;
      // What is shown is what comes behind; an incomplete character at the end shows as U+FFFD.
      const std::string_view rest = std::string_view(spelt).substr(left.size());
      EXPECT_TRUE(answer->text == rest || answer->text.ends_with("\xef\xbf\xbd"))
          << prompt << ": " << spelt << " shown as " << answer->text;
      if (*regex != 0) {
        EXPECT_TRUE(std::regex_match(answer->text, std::regex(regex))) << answer->text;
      }
      EXPECT_EQ(answer->output_logprobs.size(), answer->output_ids.size());
      if (taken == 0) {
        EXPECT_EQ(answer->output_ids, plain->output_ids);
      }
      healed += taken > 0 ? 1 : 0;
    }
  }
  EXPECT_GE(healed, 4);
  // A stop string is not looked for in the prompt's own end.
  const auto stopped = engine.generate({.input_ids = encode("http:"),
                                        .sampling = {.max_new_tokens = 8,
                                                     .temperature = 0.0f,
                                                     .n = 2,
                                                     .stop = {"http:", ":"},
                                                     .regex = "//[a-z:]{9,}",
                                                     .token_healing = true}});
  ASSERT_TRUE(stopped);
  EXPECT_TRUE(stopped->text.starts_with("//")) << stopped->text;
}

TEST_F(TokenHealing, IsRefusedWhereItCannotBe) {
  auto without = make_test_engine({.tokenizer = false});
  EXPECT_EQ(without.engine->generate({.input_ids = {1}, .sampling = {.token_healing = true}})
                .error()
                .code(),
            StatusCode::kFailedPrecondition);
  auto [engine, device] = make_test_engine();
  const auto id = engine->open_session({.capacity = 1000});
  ASSERT_TRUE(id);
  const auto answer = engine->generate(
      {.text = "a", .sampling = {.token_healing = true}, .session = SessionParams{.id = *id}});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), StatusCode::kInvalidArgument);
  // Tokens of one byte: nothing is longer, and nothing changes.
  const auto plain = engine->generate({.text = "abc", .sampling = {.max_new_tokens = 9}});
  const auto healed =
      engine->generate({.text = "abc", .sampling = {.max_new_tokens = 9, .token_healing = true}});
  ASSERT_TRUE(plain && healed);
  EXPECT_EQ(plain->output_ids, healed->output_ids);
}

}  // namespace
}  // namespace espalier
