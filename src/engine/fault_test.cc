// A fault ends the requests that it touches, is counted, and touches no others.
#include <atomic>
#include <chrono>
#include <thread>

#include "engine/testing/test_faults.h"

namespace espalier {
namespace {

TEST(Fault, LogitsThatAreNotFiniteEndTheirRequestAlone) {
  for (const int32_t page_size : {1, 16}) {
    SCOPED_TRACE(page_size);
    expect_not_finite_ends_one_request("cpu", page_size);
  }
}

// A device that fails from some step on, as one that is lost does.
TEST(Fault, ALostDeviceEndsWhatRunsAndWhatComes) {
  const Status lost = error(StatusCode::kInternal, "the GPU failed: CUDA: wait for an event");
  std::atomic<int> tokens_left{40};
  auto executor = std::make_unique<NullExecutor>(NullExecutorConfig{
      .vocab_size = kByteVocabSize, .next_token = [&](uint64_t h) -> Result<TokenId> {
        if (--tokens_left < 0) return fail(lost);
        return Script().next(h);
      }});
  auto engine = Engine::create({.cache = {.max_total_tokens = 1000}, .check_invariants = true},
                               {.tokenizer = make_byte_tokenizer(),
                                .executor = std::move(executor),
                                .info = {.vocab_size = kByteVocabSize, .context_length = 500}});
  ASSERT_TRUE(engine) << engine.error().to_string();
  std::list<Collector> collectors;
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE((*engine)->submit({.text = "running", .sampling = {.max_new_tokens = 100}},
                                  collectors.emplace_back().sink()));
  for (Collector& c : collectors) {
    ASSERT_TRUE(c.wait_end());
    EXPECT_EQ(c.finish_type(), FinishReason::Type::kError);
    EXPECT_EQ(c.result().finish.status, lost);
  }
  const auto later = (*engine)->generate({.text = "later", .sampling = {.max_new_tokens = 3}});
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error(), lost);
  EXPECT_EQ((*engine)->stats().requests.num_failed, 5);
  EXPECT_EQ((*engine)->stats().requests.num_not_finite, 0);
  // Given back when the step in flight has been committed, which may be after the end was reported.
  for (int i = 0; i < 1000 && (*engine)->stats().memory.kv_tokens_running > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ((*engine)->stats().memory.kv_tokens_running, 0);
}

}  // namespace
}  // namespace espalier
