// Steady decode asks the heap for nothing: counted over the whole loop, from the answer to a step
// to the wait for the next, with a tokenizer and callers that read their events. On the loop's
// thread alone: others may only now be starting.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "base/heap_count.h"
#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

constexpr int kRunning = 32, kTokens = 400;

// Answers at once, from when all requests are in; counts what the loop allocates between two of its
// waits.
class CountingExecutor final : public Executor {
 public:
  void launch(const ForwardBatch& batch) override {
    StepResult& result = results_[batch.step % kMaxInFlight];
    result.step = batch.step;
    result.entries.resize(batch.entries.size());
    for (size_t i = 0; i < batch.entries.size(); ++i)
      result.entries[i].token = batch.entries[i].sample ? 'a' : -1;
    steady_ = batch.entries.size() == kRunning && batch.num_tokens() == kRunning;
  }
  void provide_masks(uint64_t, const MaskView&) override {}
  const StepResult& wait(uint64_t step) override {
    all_in.wait(false);
    num_steady_ = steady_ ? num_steady_ + 1 : 0;
    // Its tables and buffers have grown to their size by then.
    if (num_steady_ > 50 && num_steady_ < 200) {
      ++num_counted;
      allocated_bytes += heap_use_of_this_thread().total - before_;
    }
    before_ = heap_use_of_this_thread().total;
    return results_[step % kMaxInFlight];
  }

  std::atomic<bool> all_in{false};
  std::atomic<int> num_counted{0};
  std::atomic<int64_t> allocated_bytes{0};

 private:
  StepResult results_[kMaxInFlight];
  bool steady_ = false;
  int num_steady_ = 0;
  int64_t before_ = 0;
};

TEST(Allocation, SteadyDecodeAllocatesNothing) {
  auto executor = std::make_unique<CountingExecutor>();
  CountingExecutor& counts = *executor;
  EngineConfig config{.cache = {.max_total_tokens = 30000},
                      .schedule = {.max_running_requests = kRunning}};
  config.sampling.random_seed = 1;
  Engine::Parts parts{
      .tokenizer = make_byte_tokenizer(),
      .executor = std::move(executor),
      .info = {.vocab_size = kByteVocabSize, .context_length = 4096, .eos_ids = {kByteEosId}}};
  auto engine = Engine::create(config, std::move(parts));
  ASSERT_TRUE(engine) << engine.error().to_string();
  std::mutex mutex;
  std::condition_variable changed;
  int num_ended = 0;
  std::atomic<int64_t> num_tokens{0};
  for (int i = 0; i < kRunning; ++i) {
    GenerateRequest request;
    // Ids are in when submit() returns; a text's may be a tokenizer's thread later.
    request.input_ids = bytes_of(std::string(1, static_cast<char>('A' + i)) + " prompt of its own");
    request.sampling.max_new_tokens = kTokens;
    request.sampling.temperature = 0.0f;
    const auto rid = (*engine)->submit(std::move(request), [&](TokenEvent&& event) {
      num_tokens += static_cast<int64_t>(event.ids.size());
      if (!event.finish) return;
      std::lock_guard lock(mutex);
      ++num_ended;
      changed.notify_one();
    });
    EXPECT_TRUE(rid);
  }
  counts.all_in = true;
  counts.all_in.notify_all();
  std::unique_lock lock(mutex);
  ASSERT_TRUE(
      changed.wait_for(lock, std::chrono::seconds(30), [&] { return num_ended == kRunning; }));
  EXPECT_EQ(num_tokens, kRunning * kTokens);
  EXPECT_GT(counts.num_counted, 50);
  EXPECT_EQ(counts.allocated_bytes, 0);
}

}  // namespace
}  // namespace espalier
