// An allocation that fails ends one request with kResourceExhausted, and no other.
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <future>
#include <new>
#include <string>
#include <utility>

#include "engine/constrained/grammar_compiler.h"
#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

// The byte tokenizer, which finds no memory for long texts.
class PoorTokenizer final : public Tokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    if (text.size() > 100) throw std::bad_alloc();
    return bytes_->encode(text, options);
  }
  std::unique_ptr<DecodeStream> decode_stream(const DecodeOptions& options) const override {
    return bytes_->decode_stream(options);
  }
  const VocabView& vocab() const override { return bytes_->vocab(); }
  std::optional<TokenId> token_to_id(std::string_view token) const override {
    return bytes_->token_to_id(token);
  }
  std::string id_to_token(TokenId id) const override { return bytes_->id_to_token(id); }
  std::optional<TokenId> bos_id() const override { return bytes_->bos_id(); }

 private:
  const std::unique_ptr<Tokenizer> bytes_ = make_byte_tokenizer();
};

TEST(MemoryShortage, ATokenizerWithoutMemoryEndsOnePrompt) {
  auto executor = std::make_unique<NullExecutor>(NullExecutorConfig{.vocab_size = kByteVocabSize});
  auto engine = Engine::create({.cache = {.max_total_tokens = 1000}},
                               {.tokenizer = std::make_unique<PoorTokenizer>(),
                                .executor = std::move(executor),
                                .info = {.vocab_size = kByteVocabSize, .context_length = 500}});
  ASSERT_TRUE(engine) << engine.error().to_string();
  const auto long_one =
      (*engine)->generate({.text = std::string(200, 'a'), .sampling = {.max_new_tokens = 2}});
  ASSERT_FALSE(long_one);
  EXPECT_EQ(long_one.error().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE((*engine)->generate({.text = "a", .sampling = {.max_new_tokens = 2}}));
}

// Throws at its third event, then gathers the rest.
struct PoorSink {
  EventSink sink() {
    return [this](TokenEvent&& event) {
      if (++num_events == 3) throw std::bad_alloc();
      if (event.finish) last.set_value(*event.finish);
    };
  }
  int num_events = 0;
  std::promise<FinishReason> last;
};

TEST(MemoryShortage, ASinkWithoutMemoryEndsItsRequestAlone) {
  auto [engine, device] = make_test_engine({.step_delay = std::chrono::milliseconds(1)});
  Collector other;
  PoorSink poor;
  const SamplingParams sampling{.max_new_tokens = 200, .ignore_eos = true};
  ASSERT_TRUE(engine->submit({.text = "other", .sampling = sampling}, other.sink()));
  ASSERT_TRUE(engine->submit({.text = "poor", .sampling = sampling}, poor.sink()));
  auto last = poor.last.get_future();
  ASSERT_EQ(last.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  const FinishReason finish = last.get();
  EXPECT_EQ(finish.type, FinishReason::Type::kAbort);
  EXPECT_EQ(finish.status.code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(other.wait_end());
  EXPECT_EQ(other.finish_type(), FinishReason::Type::kLength);
  EXPECT_EQ(engine->stats().requests.num_aborted, 1);
}

int64_t address_space_bytes() {
  std::ifstream pages("/proc/self/statm");
  int64_t count = 0;
  pages >> count;
  return count * 4096;
}

GrammarCompiler::Compiled compiled(GrammarCompiler& compiler, std::string regex) {
  std::promise<GrammarCompiler::Compiled> made;
  compiler.compile({.kind = grammar::GrammarSpec::Kind::kRegex, .source = std::move(regex)}, 1,
                   [&](GrammarCompiler::Compiled grammar) { made.set_value(std::move(grammar)); });
  return made.get_future().get();
}

// In a process of its own, whose memory is limited.
int compiles_without_memory() {
  const auto tokenizer = make_byte_tokenizer();
  GrammarCompiler compiler(tokenizer->vocab(), 1, {.compile_seconds_max = 60});
  if (!compiled(compiler, "a")) return 1;
  // Room for copies of the source, and none for an automaton of four million states.
  std::string source = "(?:" + std::string(4 << 20, 'b') + ")x";
  const auto bytes = static_cast<rlim_t>(address_space_bytes() + (32 << 20));
  const rlimit limit{bytes, bytes};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) return 2;
  const auto large = compiled(compiler, std::move(source));
  if (large || large.error().code() != StatusCode::kUnavailable) return 3;
  if (!compiled(compiler, "c")) return 4;
  return 0;
}

TEST(MemoryShortage, ACompilerWithoutMemoryRefusesOneGrammar) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow memory is beyond any limit";
#endif
  EXPECT_EXIT(std::_Exit(compiles_without_memory()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace espalier
